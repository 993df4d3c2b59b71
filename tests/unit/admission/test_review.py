"""The answer to an AdmissionReview, as a pure function of the request.

* creations: a good job, a job with several faults, a dry run
* updates: immutable fields, allowed changes, an old job that is wrong
* requests that are not judged: deletions, the status, other kinds
* the work for large and for hostile requests
* random JSON in place of a review, of an object and of a field
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtj.admission.review import Malformed, review
from dtj.api.crd import custom_resource_definition
from dtj.api.identity import GROUP, KIND, VERSION
from dtj.api.immutable import forbidden_changes
from dtj.api.job import Manifest, read_job
from dtj.api.manifest_check import MOST_ENTRIES
from tests.unit.support.admission import WRONG, job, request
from tests.unit.support.bad_jobs import BadJob, bad_jobs
from tests.unit.support.cel import holds
from tests.unit.support.jobs import manifest
from tests.unit.support.steps import steps
from tests.unit.support.structural import with_defaults

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def answer(operation: str, job: Any, old: Any = None, **more: Any) -> Manifest:
    reviewed = review(request(operation, job, old, **more))
    assert (reviewed["apiVersion"], reviewed["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: Manifest = reviewed["response"]
    assert response["uid"] == "705ab4f5-6393-11e8-b7cc-42010a800002"
    return response


def test_a_good_job_is_taken_without_a_word() -> None:
    assert set(answer("CREATE", job())) == {"uid", "allowed"}
    assert answer("CREATE", job())["allowed"] is True


def test_all_faults_are_told_at_once_each_with_its_field() -> None:
    refused = answer("CREATE", job(image="No Image", **WRONG))

    assert refused["allowed"] is False
    status = refused["status"]
    assert (status["status"], status["reason"], status["code"]) == ("Failure", "Invalid", 422)
    details = status["details"]
    assert (details["group"], details["kind"], details["name"]) == (
        GROUP,
        KIND,
        manifest()["metadata"]["name"],
    )
    assert [cause["field"] for cause in details["causes"]] == [
        "spec.image", "spec.env[0].name", "spec.env[1].name",
    ]  # fmt: skip
    assert {cause["reason"] for cause in details["causes"]} == {"FieldValueInvalid"}
    for cause in details["causes"]:
        assert f"{cause['field']}: {cause['message']}" in status["message"]


@pytest.mark.parametrize("bad", bad_jobs("status"), ids=lambda bad: bad.file.stem)
def test_what_only_code_can_say_is_said_at_once(bad: BadJob) -> None:
    refused = answer("CREATE", bad.manifest)

    assert not refused["allowed"]
    assert not bad.unsaid(refused["status"]["message"]), refused["status"]["message"]


def test_a_dry_run_is_answered_as_any_other() -> None:
    assert answer("CREATE", job(**WRONG), dryRun=True) == answer("CREATE", job(**WRONG))


# --- updates -----------------------------------------------------------------------------------------


def sized(workers: int, **policy: Any) -> Manifest:
    return job(replicaSpecs={"worker": {"replicas": workers}}, runPolicy=policy)


def stored(uri: str, endpoint: str | None = None, **policy: Any) -> Manifest:
    return job(artifacts={"uri": uri, **({"endpoint": endpoint} if endpoint else {})}, runPolicy=policy)


FORBIDDEN: dict[str, tuple[Manifest, Manifest, str]] = {
    "another strategy": (
        job(),
        job(strategy="ParameterServer", replicaSpecs={"worker": {}, "ps": {}}),
        "spec.strategy: strategy is immutable",
    ),
    "another launcher": (
        job(),
        job(horovod={"launcher": "MPIJob"}),
        "spec.horovod.launcher: horovod.launcher is immutable",
    ),
    "more workers of one that runs": (
        sized(2),
        sized(3),
        "spec.replicaSpecs.worker.replicas: the number of workers can only be changed while the job is suspended",
    ),
    "more workers with the suspension": (
        sized(2),
        sized(3, suspend=True),
        "the number of workers can only be changed while the job is suspended",
    ),
    "other parameter servers": (
        job(strategy="ParameterServer", replicaSpecs={"worker": {}, "ps": {"replicas": 1}}),
        job(strategy="ParameterServer", replicaSpecs={"worker": {}, "ps": {"replicas": 2}}),
        "the number of parameter servers can only be changed while the job is suspended",
    ),
    "no chief any more": (
        job(strategy="ParameterServer", replicaSpecs={"worker": {}, "ps": {}}),
        job(strategy="ParameterServer", replicaSpecs={"worker": {}, "ps": {}, "chief": {"replicas": 0}}),
        "spec.replicaSpecs.chief.replicas: the number of chiefs can only be changed while the job is suspended",
    ),
    "a master in the chief's place": (
        job(strategy="ParameterServer", replicaSpecs={"worker": {}, "ps": {}}),
        job(strategy="ParameterServer", replicaSpecs={"worker": {}, "ps": {}, "master": {}}),
        "spec.replicaSpecs.master.replicas: the number of masters can only be changed while the job is suspended",
    ),
    "no workers any more": (
        sized(2),
        job(replicaSpecs={}),
        "spec.replicaSpecs.worker.replicas: the number of workers can only be changed while the job is suspended",
    ),
    "workers that come": (
        job(replicaSpecs={}),
        sized(2),
        "spec.replicaSpecs.worker.replicas: the number of workers can only be changed while the job is suspended",
    ),
    "parameter servers that come": (
        sized(2),
        job(replicaSpecs={"worker": {"replicas": 2}, "ps": {}}),
        "spec.replicaSpecs.ps.replicas: the number of parameter servers can only be changed",
    ),
    "another bucket": (
        stored("s3://one/jobs"),
        stored("s3://two/jobs"),
        "spec.artifacts.uri: artifacts.uri can only be changed while the job is suspended",
    ),
    "another bucket with the suspension": (
        stored("s3://one/jobs"),
        stored("s3://two/jobs", suspend=True),
        "spec.artifacts.uri: artifacts.uri can only be changed while the job is suspended",
    ),
    "another store": (
        stored("s3://one/jobs"),
        stored("s3://one/jobs", "https://s3.example.com"),
        "spec.artifacts.endpoint: artifacts.endpoint can only be changed while the job is suspended",
    ),
    "a bucket that comes": (
        job(),
        stored("s3://one/jobs"),
        "spec.artifacts.uri: artifacts.uri can only be changed while the job is suspended",
    ),
    "a bucket that goes": (
        stored("s3://one/jobs", "https://s3.example.com"),
        job(),
        "spec.artifacts.endpoint: artifacts.endpoint can only be changed while the job is suspended",
    ),
    "another controller": (
        job(),
        sized(2, managedBy="kueue.x-k8s.io/multikueue"),
        "spec.runPolicy.managedBy: runPolicy.managedBy is immutable",
    ),
    "another gang": (
        job(),
        sized(2, schedulingPolicy={"gang": "Volcano"}),
        "spec.runPolicy.schedulingPolicy.gang: runPolicy.schedulingPolicy.gang is immutable",
    ),
    "another queue": (
        sized(2, schedulingPolicy={"gang": "Volcano", "queue": "a"}),
        sized(2, schedulingPolicy={"gang": "Volcano", "queue": "b"}),
        "spec.runPolicy.schedulingPolicy.queue: runPolicy.schedulingPolicy.queue is immutable",
    ),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_may_not_change_is_refused(name: str) -> None:
    old, new, says = FORBIDDEN[name]
    refused = answer("UPDATE", new, old)

    assert not refused["allowed"]
    assert says in refused["status"]["message"]


SCHEMA = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
RULES = [
    rule for rule in SCHEMA["properties"]["spec"]["x-kubernetes-validations"] if "oldSelf" in rule["rule"]
]


def broken_rules(old: Manifest, new: Manifest) -> set[str]:
    """The messages of the CRD's rules that an update breaks."""
    specs = [with_defaults(SCHEMA, each)["spec"] for each in (new, old)]
    return {rule["message"] for rule in RULES if not holds(rule["rule"], *specs)}


def test_everything_that_the_crd_calls_immutable_is_and_nothing_else() -> None:
    """For API servers that do not know CEL."""
    said = {
        fault.message
        for old, new, _ in FORBIDDEN.values()
        for fault in forbidden_changes(old["spec"], new["spec"])
    }
    assert {rule["message"] for rule in RULES} == said


@pytest.mark.parametrize("name", FORBIDDEN)
def test_the_crd_refuses_the_same_changes(name: str) -> None:
    old, new, _ = FORBIDDEN[name]

    assert broken_rules(old, new) == {fault.message for fault in forbidden_changes(old["spec"], new["spec"])}
    assert broken_rules(new, new) == broken_rules(old, old) == set()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (sized(2, suspend=True), sized(3, suspend=True)),
        (sized(2, suspend=True), sized(3)),
        (sized(2), sized(2, suspend=True)),
        (sized(1), job(replicaSpecs={"worker": {}})),
        (
            stored("s3://one/jobs", suspend=True),
            stored("s3://two/jobs", "https://s3.example.com", suspend=True),
        ),
        (stored("s3://one/jobs", suspend=True), stored("s3://two/jobs")),
        (job(runPolicy={"suspend": True}), stored("s3://one/jobs")),
        (
            stored("s3://one/jobs"),
            job(artifacts={"uri": "s3://one/jobs", "resume": "Never", "secretName": "s"}),
        ),
        (sized(2), job(replicaSpecs={"worker": {"replicas": 2}, "launcher": {}})),
        (job(), job(image="example.com/other:2")),
        (job(), sized(2, schedulingPolicy={"gang": "None"})),
    ],
)
def test_what_may_change_does(old: Manifest, new: Manifest) -> None:
    assert answer("UPDATE", new, old)["allowed"]
    assert broken_rules(old, new) == set()


def test_an_update_that_breaks_a_job_is_refused_with_every_fault() -> None:
    refused = answer("UPDATE", sized(3) | {"spec": sized(3)["spec"] | WRONG}, sized(2))

    assert [cause["field"] for cause in refused["status"]["details"]["causes"]] == [
        "spec.replicaSpecs.worker.replicas", "spec.env[0].name", "spec.env[1].name",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"name": "One.Two", "finalizers": [], "deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"metadata": {"name": "One.Two", "labels": {"team": "a"}}},
        {"status": {"phase": "Failed"}},
    ],
)
def test_an_old_job_that_is_wrong_stays_manageable(change: Manifest) -> None:
    old = job(**WRONG) | {"metadata": {"name": "One.Two", "finalizers": ["example.com/kept"]}}

    assert answer("UPDATE", old | change, old)["allowed"]
    assert not answer("UPDATE", old | {"spec": job(args=["--more"], **WRONG)["spec"]}, old)["allowed"]


# --- what is not looked at ---------------------------------------------------------------------------


def test_a_delete_is_not_looked_at() -> None:
    assert answer("DELETE", None, job(**WRONG))["allowed"]


def test_a_status_is_not_looked_at() -> None:
    assert answer("UPDATE", job(**WRONG), job(), subResource="status")["allowed"]
    odd = job() | {"status": ["of", "a", "newer", "version"]}
    assert answer("CREATE", odd)["allowed"]


def test_what_is_no_job_is_not_looked_at() -> None:
    pod = {"group": "", "version": "v1", "kind": "Pod"}
    assert answer("CREATE", {"spec": {}}, kind=pod)["allowed"]


# --- how much work it is ------------------------------------------------------------------------------


def huge(kind: str, size: int) -> Manifest:
    """A job with so many faults of a kind."""
    match kind:
        case "unknown fields":
            return job(**{f"field{number}": {} for number in range(size)})
        case "unknown fields of the manifest":
            return {**job(), **{f"field{number}": {} for number in range(size)}}
        case "labels":
            return {**job(), "metadata": {"name": "one", "labels": dict.fromkeys(map(str, range(size)), 1)}}
        case "quantities":
            resources = {"limits": {f"example.com/r{number}": [] for number in range(size)}}
            return job(replicaSpecs={"worker": {"resources": resources}})
        case "a good part besides":
            labels = {f"example.com/{number}": 1 for number in range(size)}
            return job(replicaSpecs={"worker": {"template": {"metadata": {"labels": labels}}}}, image=7)
    raise AssertionError(kind)


HUGE = [
    "unknown fields", "unknown fields of the manifest", "labels", "quantities", "a good part besides",
]  # fmt: skip


@pytest.mark.bound(
    "webhook",
    "Who may create jobs",
    "Steps of a review",
    "In proportion to the request",
)
@pytest.mark.parametrize("kind", HUGE)
def test_the_work_grows_no_faster_than_the_request(kind: str) -> None:
    few, many = (steps(lambda size=size: answer("CREATE", huge(kind, size))) for size in (200, 1600))

    assert many <= 9 * few


@pytest.mark.bound(
    "webhook",
    "Who may create jobs",
    "Faults in an answer",
    "100, and the number of the rest",
)
@pytest.mark.parametrize("kind", HUGE)
def test_a_hundred_faults_are_told_and_the_number_of_the_rest(kind: str) -> None:
    causes = answer("CREATE", huge(kind, 1600))["status"]["details"]["causes"]

    assert len(causes) == 101
    assert re.fullmatch(r"has 15\d\d more faults than are listed here", causes[-1]["message"])


@pytest.mark.bound(
    "webhook",
    "Who may create jobs",
    "Fields and entries of a job",
    "20,000",
)
def test_a_job_of_too_many_fields_is_refused_before_anything_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[Mapping[str, Any]] = []
    monkeypatch.setattr("dtj.api.manifest_check.read_job", lambda job: checked.append(job) or read_job(job))
    most = MOST_ENTRIES
    refused = answer("CREATE", job(args=["x"] * most))

    assert not refused["allowed"]
    assert refused["status"]["message"] == (
        f"spec: the job has more than {most} fields and list entries; "
        "move large data to a ConfigMap or to the bucket"
    )
    assert not checked
    assert "more than" not in answer("CREATE", job(args=["x"] * (most - 100)))["status"]["message"]
    assert checked
    checked.clear()
    nested = {"apiVersion": [[[{"a": ["x"] * 10}] * 10] * 10] * (most // 900)}
    assert not answer("CREATE", nested)["allowed"]
    assert not checked


def test_a_value_and_a_key_that_are_long_are_told_cut() -> None:
    long = "x" * 100_000
    refused = answer("CREATE", job(**{long: 1, "args": long, "strategy": long}) | {"kind": long, long: 2})

    assert {cause["field"] for cause in refused["status"]["details"]["causes"]} == {
        "kind", f"{long[:100]}…", f"spec.{long[:100]}…", "spec.args", "spec.strategy",
    }  # fmt: skip
    assert len(refused["status"]["message"]) < 2000


# --- any JSON ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (None, "send an AdmissionReview of admission.k8s.io/v1"),
        ([], "send an AdmissionReview"),
        ({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview"}, "send an AdmissionReview"),
        ({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}, "request: required"),
        (request("CREATE", job(), uid=7), "request.uid: required"),
        (request("CREATE", None), "request.object: required"),
        (request("UPDATE", job()), "request.oldObject: required"),
    ],
)
def test_what_is_no_review_is_refused_with_what_is_missing(sent: Any, says: str) -> None:
    with pytest.raises(Malformed, match=says):
        review(sent)


@given(JSON)
def test_no_json_is_taken_for_a_review_that_is_none(sent: Any) -> None:
    with pytest.raises(Malformed):
        review(sent)


@given(
    operation=st.sampled_from(["CREATE", "UPDATE", "DELETE", "CONNECT"]) | JSON,
    spec=JSON,
    old=JSON,
    metadata=JSON,
)
@settings(max_examples=100, deadline=None)
def test_any_object_is_answered(operation: Any, spec: Any, old: Any, metadata: Any) -> None:
    wrong = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": metadata, "spec": spec}
    answered = review(request(operation, wrong, {"spec": old}))

    assert isinstance(answered["response"]["allowed"], bool)
    json.dumps(answered)


@given(st.sampled_from([*sorted(manifest()["spec"]), "runPolicy", "env", "horovod", "data"]), JSON)
@settings(max_examples=150, deadline=None)
def test_any_value_of_a_field_is_answered(field: str, value: Any) -> None:
    changed = job(**{field: value})

    assert isinstance(answer("CREATE", changed)["allowed"], bool)
    assert isinstance(answer("UPDATE", changed, job())["allowed"], bool)

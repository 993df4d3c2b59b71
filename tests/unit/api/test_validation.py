"""Validation beyond the schema: valid jobs pass, faults are named, and no input raises an exception.

* random templates, specs and metadata
* images and quantities
* launchers, mounts and labels of a template
* several faults at once, and long values

The exact messages of wrong jobs are in tests/bad_jobs.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtj.api.job import Fault, InvalidJob, read_job
from dtj.api.manifest_check import check
from dtj.api.shown import shown
from dtj.api.spec import JobSpec
from dtj.api.strategies import RULES
from dtj.api.validation import faults
from dtj.plan.job import plan_job
from tests.unit.support.jobs import job, manifest, with_template

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from(["", "trainer", "x", "/etc/dtj"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["name", "env", "volumeMounts", "mountPath", "command", "ports", "securityContext", "x"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
POD_SPECS = st.dictionaries(
    st.sampled_from(
        ["containers", "initContainers", "volumes", "hostname", "tolerations", "securityContext"]
    ),
    JSON | st.lists(st.fixed_dictionaries({"name": st.just("trainer")}, optional={"env": JSON}), max_size=2),
    max_size=3,
)
TEMPLATES = st.fixed_dictionaries(
    {},
    optional={
        "metadata": JSON | st.fixed_dictionaries({}, optional={"labels": JSON, "annotations": JSON}),
        "spec": JSON | POD_SPECS,
        "x": JSON,
    },
)


@settings(max_examples=300)
@given(TEMPLATES, st.sampled_from(["worker", "launcher"]))
def test_no_template_makes_validation_or_the_plan_raise(template: dict[str, Any], role: str) -> None:
    made = read_job(with_template(template, role))

    if not faults(made):
        for pod in plan_job(made).pods:
            assert pod["metadata"]["labels"]["dtj.dev/job"] == "mnist"
            assert pod["metadata"]["ownerReferences"][0]["uid"] == made.uid


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from([f.alias or "" for f in JobSpec.model_fields.values()]), JSON))
def test_no_spec_makes_reading_raise_anything_but_its_faults(spec: dict[str, Any]) -> None:
    with contextlib.suppress(InvalidJob):
        faults(read_job(manifest() | {"spec": spec}))


@pytest.mark.parametrize("wrong", [5, "x", [1]])
def test_metadata_that_is_no_object_is_a_fault(wrong: Any) -> None:
    with pytest.raises(InvalidJob, match=r"metadata: must be an object, got "):
        read_job(manifest() | {"metadata": wrong})


@pytest.mark.parametrize("wrong", [5, "x", [1]])
def test_a_spec_that_is_no_object_is_a_fault(wrong: Any) -> None:
    with pytest.raises(InvalidJob) as caught:
        read_job(manifest() | {"spec": wrong})

    assert [fault.field for fault in caught.value.faults] == ["spec"]


@pytest.mark.parametrize(
    "image",
    [
        "python",
        "python:3.11",
        "docker.io/library/python:3.11-slim",
        "localhost:5000/a/b_c/d-e:v1.0",
        "ghcr.io/me/trainer@sha256:" + "0" * 64,
        "123456789012.dkr.ecr.eu-west-1.amazonaws.com/team/trainer:2026-11-20",
    ],
)
def test_image_references_that_registries_know(image: str) -> None:
    assert faults(job(image=image)) == []


@pytest.mark.parametrize(
    "quantity", [1, 0, "1", "0.5", "500m", "4Gi", "1e3", "1E3", "100k", "2Ti", ".5", "+1"]
)
def test_quantities_that_kubernetes_knows(quantity: Any) -> None:
    roles = {"worker": {"resources": {"limits": {"memory": quantity}}}}

    assert faults(job(replicaSpecs=roles)) == []


@pytest.mark.parametrize("quantity", ["", "4GB", "4 Gi", "1.2.3", "Gi", "1e", "0x10", "4gi", "٣"])
def test_quantities_that_kubernetes_refuses(quantity: str) -> None:
    roles = {"worker": {"resources": {"limits": {"memory": quantity}}}}

    assert [str(f) for f in faults(job(replicaSpecs=roles))] == [
        f"spec.replicaSpecs.worker.resources.limits[memory]: {quantity!r} is not a quantity such as 2, 500m or 4Gi"
    ]


@pytest.mark.parametrize(
    "name",
    [
        "DTJ_MPI_ARGS",
        "DTJ_PEER_TIMEOUT_SECONDS",
        "DTJ_CHECKPOINTS_KEEP",
        "DTJ_CHECKPOINTS_KEEP_EVERY_MINUTES",
        "DTJ_S3_SSE",
        "NCCL_DEBUG",
        "a.b-c",
    ],
)
def test_settings_of_the_launch_may_be_given(name: str) -> None:
    assert faults(job(env=[{"name": name, "value": "1"}])) == []


def test_a_launcher_with_its_own_command_needs_no_program() -> None:
    template = {"spec": {"containers": [{"name": "trainer", "command": ["mpirun", "train"]}]}}
    roles = {"worker": {"replicas": 2}, "launcher": {"template": template}}

    assert faults(job(command=[], replicaSpecs=roles)) == []


@pytest.mark.parametrize("path", ["/etc/dtj/", "/etc//dtj", "/dtj/./run", "/etc/dtj-ssh"])
def test_mounts_over_the_operators_are_found_however_they_are_written(path: str) -> None:
    template = {
        "spec": {
            "containers": [{"name": "trainer", "volumeMounts": [{"name": "v", "mountPath": path}]}],
            "volumes": [{"name": "v", "emptyDir": {}}],
        }
    }

    (fault,) = faults(read_job(with_template(template)))

    assert str(fault) == (
        f"spec.replicaSpecs.worker.template.spec.containers[trainer].volumeMounts: {path} belongs to the operator"
    )


def test_the_label_by_which_pods_are_found_can_not_be_replaced() -> None:
    template = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "me"}}}

    (fault,) = faults(read_job(with_template(template)))

    assert "the operator finds its pods by this label" in fault.message


@pytest.mark.parametrize(
    "template",
    [{"metadata": None}, {"spec": None}, {"metadata": {"labels": None}}, {"spec": {"volumes": None}}],
)
def test_null_can_not_take_away_what_the_operator_needs(template: dict[str, Any]) -> None:
    assert faults(read_job(with_template(template)))


def test_every_fault_is_found_at_once() -> None:
    made = job(
        "a.b",
        image="Not An Image",
        command=[],
        env=[{"name": "A"}, {"name": "A"}],
        replicaSpecs={"worker": {"replicas": 1}, "launcher": {"gpus": 1, "replicas": 2}},
        artifacts={"uri": "s3://bucket", "resume": "FromURI"},
    )

    assert [fault.field for fault in faults(made)] == [
        "metadata.name",
        "spec.replicaSpecs.launcher.replicas",
        "spec.replicaSpecs.launcher.gpus",
        "spec.image",
        "spec.command",
        "spec.env[1].name",
        "spec.artifacts.resumeUri",
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"image": "i" * 900_000},
        {"replicaSpecs": {"worker": {"template": {"spec": ["x" * 99] * 9000}}}},
        {"replicaSpecs": {"worker": {"template": {"spec": {"containers": "A" * 900_000}}}}},
        {"replicaSpecs": {"worker": {"template": {"spec": {"containers": [["a"] * 90_000]}}}}},
        {"replicaSpecs": {"worker": {"template": {"metadata": {"labels": {"a": list(range(90_000))}}}}}},
        {"replicaSpecs": {"worker": {"resources": {"limits": {"cpu": "9" * 90_000 + "x"}}}}},
        {"env": [{"name": " " * 256}]},
        {"args": {"deep": [["x"] * 500] * 500}},
    ],
)
def test_no_fault_tells_a_large_value_whole(wrong: dict[str, Any]) -> None:
    told = check(manifest(**wrong))[1]

    assert told
    assert max(len(str(fault)) for fault in told) < 500


def test_a_short_value_is_told_whole() -> None:
    assert shown({"a": ["b", 1.5, None]}) == "{'a': ['b', 1.5, None]}"
    assert shown("x" * 198) == f"'{'x' * 198}'"
    assert shown("é" * 199) == f"'{'é' * 199}…"


def test_many_faults_of_a_job_without_a_strategy_cost_no_square(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault is compared only with its equals: one for each strategy."""
    compared = 0
    equal = Fault.__eq__

    def counting(self: Fault, other: object) -> bool:
        nonlocal compared
        compared += 1
        return equal(self, other)

    monkeypatch.setattr(Fault, "__eq__", counting)
    count = 300
    wrong = {"replicas": 1, "template": {"spec": {"tolerations": [{"no": ""}] * count}}}
    found = check(manifest(strategy="None", replicaSpecs={"worker": wrong}))[1]
    assert sum(fault.count for fault in found) > count
    assert compared <= 2 * len(RULES) * count

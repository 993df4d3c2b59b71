"""The conditions CheckpointDelayed and ArtifactsIncomplete say what hinders the uploads."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

from dtj.status import progress
from dtj.status.events import happenings
from dtj.status.failure import read_termination
from dtj.status.observed import read_report
from dtj.views.sentences import sentence_of
from tests.unit.support.pods import LAUNCHER, WORKER_0, WORKER_1, Life, condition, ended, healthy, running

HELD_UP = "checkpoint s3://bucket/job/checkpoints/7 waits for files of worker-1"
REFUSED = "'a.log': access to s3://bucket/job/logs/attempt-1/a.log is denied (AccessDenied)"


class Reported(NamedTuple):
    """A condition, and how a pod reports it."""

    kind: str
    reason: str
    field: str
    """In the report of a pod."""
    observed: str
    said: str
    message: str


DELAYED = Reported(
    "CheckpointDelayed", "CheckpointIncomplete", "heldUp", "checkpoint_held_up", HELD_UP, HELD_UP
)
INCOMPLETE = Reported(
    "ArtifactsIncomplete",
    "FilesRefused",
    "notUploaded",
    "artifacts_incomplete",
    f"files are not uploaded: {REFUSED}",
    f"files are not uploaded: {REFUSED}",
)
of_both = pytest.mark.parametrize("each", [DELAYED, INCOMPLETE], ids=lambda each: each.kind)


@pytest.fixture
def life() -> Life:
    return Life(artifacts={"uri": "s3://bucket/jobs"})


@of_both
def test_it_holds_while_it_is_reported_and_makes_one_event(life: Life, each: Reported) -> None:
    said, nothing = {each.observed: each.said}, {each.observed: ""}
    assert condition(life.see(*healthy(), **nothing), each.kind) == {}
    old = life.job.status
    found = condition(life.see(*healthy(), **said), each.kind)
    assert (found["status"], found["reason"], found["message"]) == ("True", each.reason, each.message)
    assert sentence_of(life.job.status) == f"The job trains: {each.message}"
    told = [happening for happening in happenings(old, life.job.status) if happening.reason == each.reason]
    assert [(happening.type, happening.message) for happening in told] == [("Warning", each.message)]
    old = life.job.status
    life.see(*healthy(), **said)
    assert each.reason not in [happening.reason for happening in happenings(old, life.job.status)]
    life.see(*healthy())
    assert life.job.status.holds(found["type"]), "nothing is reported: nothing is known to have changed"
    assert condition(life.see(*healthy(), **nothing), each.kind)["status"] == "False"


def test_a_delay_ends_with_the_attempt(life: Life) -> None:
    life.see(*healthy(), checkpoint_held_up=HELD_UP)
    status = life.see(*healthy()[1:])
    assert condition(status, "CheckpointDelayed")["reason"] == "NotRunning"


def test_the_last_message_of_a_job_that_succeeds_tells_what_is_refused(life: Life) -> None:
    life.see(*healthy())
    said = {"artifacts": {"model": "s3://bucket/jobs/x/model", "notUploaded": REFUSED}}
    status = life.see(running(WORKER_0), running(WORKER_1), ended(LAUNCHER, 0, said), seconds=30)
    assert condition(status, "Succeeded")["status"] == "True"
    assert condition(status, "ArtifactsIncomplete")["status"] == "True"
    assert sentence_of(life.job.status).startswith("The job succeeded: files are not uploaded: 'a.log'")


def torch_life(pods: int) -> tuple[Life, list[str]]:
    """A job whose pods all run ranks, and the names of its pods."""
    life = Life(
        strategy="TorchDistributed",
        replicaSpecs={"worker": {"replicas": pods}},
        artifacts={"uri": "s3://bucket/jobs"},
    )
    return life, [f"mnist-worker-{index}" for index in range(pods)]


def test_the_last_message_of_any_pod_tells_what_is_refused() -> None:
    life, names = torch_life(3)
    life.see(*map(running, names))
    said = {"artifacts": {"notUploaded": REFUSED}}
    status = life.see(*map(running, names[:2]), ended(names[2], 0, said), artifacts_incomplete="")
    found = condition(status, "ArtifactsIncomplete")
    assert (found["status"], found["message"]) == ("True", f"{names[2]}: files are not uploaded: {REFUSED}")
    status = life.see(
        *map(running, names[:2]),
        ended(names[2], 0, said),
        artifacts_incomplete="files are not uploaded: 'b.log': denied",
    )
    assert condition(status, "ArtifactsIncomplete")["message"] == (
        f"files are not uploaded: 'b.log': denied; {names[2]}: files are not uploaded: {REFUSED}"
    )


def test_refused_files_of_many_pods_are_told_in_a_few_words(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[object] = []
    monkeypatch.setattr(progress, "read_termination", lambda end: parsed.append(end) or read_termination(end))
    life, names = torch_life(40)
    refusing = [ended(name, 0, {"artifacts": {"notUploaded": "denied"}}) for name in names[20:]]
    others = [ended(name, 0, {"exitCode": 0}) for name in names[1:20]]
    status = life.see(running(names[0]), *others, *refusing)
    told = condition(status, "ArtifactsIncomplete")["message"]
    said = [f"mnist-worker-{index}: files are not uploaded: denied" for index in (20, 21, 22)]
    assert told == "; ".join([*said, "and files of 17 more pods"])
    assert len(parsed) <= 3, "each event parses the messages of all pods"


@of_both
@pytest.mark.parametrize(
    ("artifacts", "taken"),
    [
        ('{"uri": "s3://b"}', ""),
        ('{"%s": "file\\u0007"}', "file\ufffd"),
        ('{"%s": 7}', None),
        ("[]", None),
        ("null", None),
    ],
)
def test_a_report_is_read_with_care(each: Reported, artifacts: str, taken: str | None) -> None:
    report, _ = read_report(f'{{"artifacts": {artifacts.replace("%s", each.field)}}}')
    assert report is not None
    told = taken if each is DELAYED else taken and f"files are not uploaded: {taken}"
    assert getattr(report, each.observed) == told


def test_files_that_are_not_restored_are_told_beside_those_that_are_not_uploaded() -> None:
    report, _ = read_report(
        json.dumps({"artifacts": {"notUploaded": REFUSED, "notRestored": "no room: 'a'"}})
    )
    assert report is not None
    assert report.artifacts_incomplete == (
        f"files are not uploaded: {REFUSED}; files are not restored: no room: 'a'"
    )

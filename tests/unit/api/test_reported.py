"""Validation of reports from pods: no report of a program keeps the job from ending.

* times, numbers and texts that a program reports
* reports that are no object
* a status that the API server refuses because of a report
* conditions of other controllers
* the number of events of a job
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dtj.api.job import Manifest
from dtj.api.reported import take
from dtj.api.status import ArtifactsStatus, ProgressStatus
from dtj.cluster.interface import ApiError
from dtj.reconcile.boot_clock import BootClock
from dtj.reconcile.memory import EventRecorder
from dtj.status.events import Happening
from dtj.status.observed import ProgressReport, read_report
from tests.unit.support.fake_cluster import SCHEMA, Call, FakeCluster
from tests.unit.support.jobs import job
from tests.unit.support.kubelet import Ending
from tests.unit.support.pods import at
from tests.unit.support.structural import schema_faults
from tests.unit.support.world import KEY, World

STATUS = SCHEMA["properties"]["status"]
TEXT = st.text(st.characters(exclude_categories=[]), max_size=40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(min_value=2**62) | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)
TIMES = st.sampled_from(
    ["2026-01-01 00:00:00+00:00", "20260101T000000Z", "2026-W01-1T00:00Z", "0001-01-01T00:00:00+14:00"]
)
FIGURES = (*(field.alias or name for name, field in ProgressStatus.model_fields.items()), "bottleneck")
SAID = st.dictionaries(st.sampled_from(FIGURES), JSON | TIMES)
KEPT = st.dictionaries(
    st.sampled_from(["uri", "model", "tensorboard", "checkpoint"]),
    JSON | st.dictionaries(st.sampled_from(["step", "time", "uri"]), JSON | TIMES),
)
REPORT = st.fixed_dictionaries(
    {}, optional={"progress": SAID | JSON, "artifacts": KEPT | JSON, "phases": JSON}
)
MESSAGE = st.dictionaries(
    st.sampled_from(
        [
            "class",
            "message",
            "role",
            "index",
            "rank",
            "host",
            "exitCode",
            "signal",
            "lastLogLines",
            "progress",
        ]
    ),
    JSON,
)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("2026-01-01 00:00:00+00:00", "2026-01-01T00:00:00Z"),
        ("20260101T020000+0200", "2026-01-01T00:00:00Z"),
        ("2026-11-21T12:00:00.5Z", "2026-11-21T12:00:00Z"),
        ("2026-W01-4T00:00Z", "2026-01-01T00:00:00Z"),
        ("2026-01-01T00:00:00", None),
        ("0001-01-01T00:00:00+14:00", None),
        ("9999-12-31T23:59:59-14:00", None),
        ("yesterday", None),
        ("2026-01-01T00:00:00Z" + " " * 10**6, None),
        (1767225600, None),
    ],
)
def test_a_time_is_that_of_rfc_3339_or_dropped(written: Any, read: str | None) -> None:
    progress, dropped = take(ProgressStatus, {"updatedTime": written})

    assert progress is not None
    assert (progress.updated_time, dropped) == (read, 0 if read else 1)


@pytest.mark.bound(
    "operator",
    "A program, by what it reports",
    "Numbers in the status",
    "What a field can hold; others are dropped",
)
@pytest.mark.parametrize(
    ("field", "written", "read"),
    [
        ("step", 7, 7),
        ("step", 2**53 - 1, None),
        ("step", -1, None),
        ("step", True, None),
        ("step", "7", None),
        ("loss", 0.123456, 0.1235),
        ("loss", 10**400, None),
        ("loss", float("nan"), None),
        ("loss", float("-inf"), None),
        ("loss", -5e300, None),
        ("percent", 100.4, 100),
        ("percent", -3, 0),
    ],
)
def test_a_number_is_bounded_or_dropped(field: str, written: Any, read: float | None) -> None:
    progress, dropped = take(ProgressStatus, {field: written})

    assert progress is not None
    assert (getattr(progress, field), dropped) == (read, 0 if read is not None else 1)


@pytest.mark.bound(
    "operator",
    "A program, by what it reports",
    "Texts in the status",
    "1,024 characters each",
)
def test_a_text_has_no_control_characters_and_a_bounded_length() -> None:
    artifacts, _ = take(
        ArtifactsStatus, {"model": "s3://b/\x1b]52;c;x\x07\ud800\x9b\nm" + "x" * 10**6, "uri": 5}
    )

    assert artifacts is not None
    assert artifacts.uri is None
    assert artifacts.model is not None
    assert artifacts.model.startswith("s3://b/\ufffd]52;c;x\ufffd\ufffd\ufffd m")
    assert len(artifacts.model) == 1024


def test_one_bad_value_does_not_drop_the_others() -> None:
    report, dropped = read_report('{"progress": {"step": 7, "loss": "low"}, "artifacts": "none"}')

    assert report == ProgressReport(progress=ProgressStatus(step=7))
    assert dropped == 2


@pytest.mark.parametrize("body", [b"", b"not JSON \xff", b"[]", b"5", b"[" * 20_000, b"9" * 10_000])
def test_an_answer_that_is_no_object_is_dropped(body: bytes) -> None:
    assert read_report(body) == (None, 1)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=60) | REPORT.map(lambda said: json.dumps(said).encode()) | JSON.map(json.dumps))
def test_no_report_makes_a_value_that_the_api_server_refuses(body: bytes | str) -> None:
    report, _ = read_report(body)

    for part in ("progress", "artifacts"):
        said = getattr(report, part) if report else None
        if said is not None:
            written = said.model_dump(by_alias=True, mode="json", exclude_none=True)
            assert not list(schema_faults(STATUS["properties"][part], written, part))
            assert_harmless(written)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(report=REPORT, message=MESSAGE | JSON | TEXT, code=st.sampled_from([0, 3]))
async def test_no_pod_keeps_its_job_from_ending(report: Manifest, message: Any, code: int) -> None:
    world = World(runPolicy={"backoffLimit": 0})
    said = message if isinstance(message, str) else json.dumps(message)
    # The API server has no lone surrogates: what a kubelet reads as such it replaces.
    said = said.encode("utf-8", "replace").decode()

    def program(pod: Manifest, ran: int) -> Ending | None:
        return (code, said) if pod["metadata"]["name"] == "mnist-launcher-0" and ran > 3 else None

    world.kubelet.program = program
    found, _ = read_report(json.dumps(report))
    await world.until(lambda: world.phase == "Running")
    if found is not None:
        world.progress.reports[KEY] = found

    await world.until(lambda: world.phase in ("Succeeded", "Failed"), steps=60)

    assert world.phase == ("Failed" if code else "Succeeded")
    assert "StatusRefused" not in world.events(), "the gate leaves nothing to refuse"
    assert_harmless({key: world.status.get(key) for key in ("failure", "progress", "artifacts")})


def assert_harmless(value: Any) -> None:
    """No text of it has a control character or a surrogate."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            assert_harmless(each)
    elif isinstance(value, str):
        assert not {unicodedata.category(letter) for letter in value} & {"Cc", "Cs"}


async def test_a_status_that_the_api_server_refuses_is_stored_without_what_pods_said() -> None:
    world = World(runPolicy={"backoffLimit": 0})
    world.kubelet.program = lambda pod, ran: (3, "ended \u2603") if ran > 3 else None
    await world.until(lambda: world.phase == "Running")

    def refuse(call: Call, manifest: Manifest) -> None:
        patch = json.dumps(manifest.get("status") or {}, ensure_ascii=False)
        if call.verb == "patch" and ("\u2603" in patch or '"step"' in patch):
            raise ApiError(422, "Invalid", "status: Invalid value: no")

    world.cluster.meanwhile = refuse
    world.progress.reports[KEY] = ProgressReport(progress=ProgressStatus(step=7))
    await world.until(lambda: world.phase == "Failed")

    assert world.status["failure"]["class"] == "ApplicationError"
    assert "progress" not in world.status
    assert world.events()[-2:] == ["StatusRefused", "BackoffLimitExceeded"]
    (refused,) = [event for event in world.cluster.of_kind("Event") if event["reason"] == "StatusRefused"]
    assert "status: Invalid value: no" in refused["message"]


async def test_conditions_of_other_controllers_stay() -> None:
    world = World()
    await world.step()
    foreign = {
        "type": "QuotaReserved",
        "status": "True",
        "reason": "Reserved",
        "message": "by another controller",
        "lastTransitionTime": "2026-11-21T12:00:00Z",
    }
    world.cluster.change(
        ("DistributedTrainingJob", *KEY), lambda job: job["status"]["conditions"].append(foreign)
    )

    await world.rest()

    assert world.phase == "Succeeded"
    assert world.condition("QuotaReserved") == foreign


async def test_a_program_that_reports_another_bottleneck_each_time_makes_one_event_of_each_kind() -> None:
    world = World()
    world.kubelet.program = lambda pod, ran: None
    await world.until(lambda: world.phase == "Running")

    for number in range(12):
        reason = ("ParameterServersSlow", "StragglingWorker")[number % 2]
        world.progress.reports[KEY] = ProgressReport(
            ProgressStatus(step=number), bottleneck=(reason, f"{number} s")
        )
        await world.step()

    assert sorted(world.events()) == ["JobRunning", "ParameterServersSlow", "StragglingWorker"]


async def test_a_job_tells_25_events_at_once_then_one_each_five_minutes_and_always_its_end() -> None:
    passed = 0.0
    cluster, recorder = FakeCluster(), EventRecorder(BootClock(lambda: at(passed), lambda: passed))

    async def tell(message: str, seconds: float, *, final: bool = False) -> None:
        nonlocal passed
        passed = seconds
        recorder.record(job(), Happening("Warning", "Unschedulable", message, final=final))
        await recorder.flush(cluster)

    for number in range(40):
        await tell(f"0/{number} nodes", number)
    await tell("0/99 nodes", 400)
    await tell("0/100 nodes", 401)
    await tell("failed", 402, final=True)

    told = [event["message"] for event in cluster.of_kind("Event")]
    assert told == [*(f"0/{number} nodes" for number in range(25)), "0/99 nodes", "failed"]

"""The condition ArtifactsIncomplete names the files that are not uploaded, also after the job's end."""

from __future__ import annotations

import pytest

from dtj.cli.sentences import sentence_of
from dtj.status.events import happenings
from dtj.status.progress_report import read_report
from tests.unit.support.pods import LAUNCHER, WORKER_0, WORKER_1, Life, condition, ended, healthy, running

REFUSED = "'a.log': access to s3://bucket/job/logs/attempt-1/a.log is denied (AccessDenied)"


@pytest.fixture
def life() -> Life:
    return Life(artifacts={"uri": "s3://bucket/jobs"})


def test_it_holds_while_files_are_refused_and_makes_one_event(life: Life) -> None:
    assert condition(life.see(*healthy(), not_uploaded=""), "ArtifactsIncomplete") == {}
    old = life.job.status
    status = life.see(*healthy(), not_uploaded=REFUSED)
    told = f"files are not uploaded: {REFUSED}"
    assert condition(status, "ArtifactsIncomplete")["reason"] == "FilesRefused"
    assert condition(status, "ArtifactsIncomplete")["message"] == told
    assert sentence_of(life.job.status) == f"The job trains: {told}"
    events = [each for each in happenings(old, life.job.status) if each.reason == "FilesRefused"]
    assert [(each.type, each.message) for each in events] == [("Warning", told)]
    old = life.job.status
    life.see(*healthy(), not_uploaded=REFUSED)
    assert "FilesRefused" not in [each.reason for each in happenings(old, life.job.status)]
    life.see(*healthy())
    assert life.job.status.holds("ArtifactsIncomplete"), (
        "nothing is reported: nothing is known to have changed"
    )
    status = life.see(*healthy(), not_uploaded="")
    assert condition(status, "ArtifactsIncomplete")["status"] == "False"


def test_the_last_message_of_a_job_that_succeeds_tells_it(life: Life) -> None:
    life.see(*healthy())
    said = {"artifacts": {"model": "s3://bucket/jobs/x/model", "notUploaded": REFUSED}}
    status = life.see(running(WORKER_0), running(WORKER_1), ended(LAUNCHER, 0, said), seconds=30)
    assert condition(status, "Succeeded")["status"] == "True"
    assert condition(status, "ArtifactsIncomplete")["status"] == "True"
    assert sentence_of(life.job.status).startswith("The job succeeded: files are not uploaded: 'a.log'")


@pytest.mark.parametrize(
    ("artifacts", "refused"),
    [
        ('{"uri": "s3://b"}', ""),
        ('{"notUploaded": "x\\u0007"}', "x\ufffd"),
        ('{"notUploaded": 7}', None),
        ("[]", None),
    ],
)
def test_a_report_is_read_with_care(artifacts: str, refused: str | None) -> None:
    report, _ = read_report(f'{{"artifacts": {artifacts}}}')
    assert report is not None
    assert report.not_uploaded == refused

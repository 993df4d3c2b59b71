"""A checkpoint that only a pod has: told with the progress, and never by a write of its own."""

from __future__ import annotations

from dtj.api.status import ArtifactsStatus, PodCheckpointStatus, ProgressStatus
from dtj.cli.status_view import pod_checkpoint
from dtj.status.observed import read_report
from tests.unit.support.pods import Life, healthy

AT = PodCheckpointStatus(claim=1, number=12, step=1200)


def test_it_rides_along_with_progress_and_goes_with_the_upload() -> None:
    life = Life(artifacts={"uri": "s3://bucket/jobs"})
    artifacts = ArtifactsStatus.model_validate({"checkpoint": {"uri": "s3://b/j/checkpoints/11"}})
    stored = life.see(*healthy(), artifacts=artifacts)
    assert life.see(*healthy(), artifacts=artifacts, pod_checkpoint=AT) == stored
    status = life.see(*healthy(), artifacts=artifacts, progress=ProgressStatus(step=1300), pod_checkpoint=AT)
    assert status["podCheckpoint"] == {"claim": 1, "number": 12, "step": 1200}
    said = "checkpoint 12 (step 1200) is complete in the pod; the newest in the bucket is 11"
    assert pod_checkpoint(life.job.status) == said
    assert "podCheckpoint" in life.see(*healthy())
    newer = ArtifactsStatus.model_validate({"checkpoint": {"uri": "s3://b/j/checkpoints/12"}})
    assert "podCheckpoint" not in life.see(*healthy(), artifacts=newer)


def test_without_artifacts_the_first_one_is_told_and_goes_with_the_pod() -> None:
    life = Life()
    life.see(*healthy())
    stored = life.see(*healthy(), pod_checkpoint=PodCheckpointStatus(claim=1, number=1))
    assert stored["podCheckpoint"] == {"claim": 1, "number": 1}
    assert life.see(*healthy(), pod_checkpoint=AT) == stored
    said = "a checkpoint is only in the pod, and is lost with the pod: the job has no artifacts"
    assert pod_checkpoint(life.job.status) == said
    assert "podCheckpoint" not in life.see(*healthy()[1:])


def test_a_report_is_read_with_care() -> None:
    for said, found in [
        ('{"claim": 1, "number": 12, "step": 1200, "uploaded": false}', AT),
        ('{"claim": 1, "number": 12, "step": 1200, "uploaded": true}', None),
        ('{"number": -1, "uploaded": false}', PodCheckpointStatus()),
        ("7", None),
        ("{}", None),
    ]:
        report, _ = read_report(f'{{"checkpoint": {said}}}')
        assert report is not None
        assert report.pod_checkpoint == found, said

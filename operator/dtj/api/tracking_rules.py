"""What can't work of `spec.tracking`."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from dtj.api.job import Fault, Job
from dtj.api.tracking import MLflow

MLFLOW_URI, MLFLOW_NAME, MLFLOW_ID = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"
_MLFLOW = "spec.tracking.mlflow"


def mlflow_of(job: Job) -> MLflow | None:
    """The MLflow server of a job's spec, where the job asks for one."""
    return job.spec.tracking.mlflow if job.spec.tracking else None


def tracking_faults(job: Job) -> Iterator[Fault]:
    """Yield what is wrong with a job's `spec.tracking`."""
    mlflow = mlflow_of(job)
    if mlflow is None:
        return
    if "@" in urlsplit(mlflow.uri).netloc:
        yield Fault(
            f"{_MLFLOW}.uri",
            "must not contain a user or a password: put MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD into "
            "the Secret of secretName",
        )
    own = {variable.name for variable in job.spec.env}
    if MLFLOW_URI in own:
        yield Fault(f"{_MLFLOW}.uri", f"given by {MLFLOW_URI} in spec.env already; give one of the two")
    if mlflow.experiment is not None:
        for name in sorted(own & {MLFLOW_NAME, MLFLOW_ID}):
            yield Fault(f"{_MLFLOW}.experiment", f"given by {name} in spec.env already; give one of the two")

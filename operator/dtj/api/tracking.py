"""`spec.tracking` of a DistributedTrainingJob: where the runs of jobs are recorded."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dtj.api.base import OBJECT_NAME, ApiModel

TRACKER_URL = r"^https?://[^\s/?#]+(/[^\s?#]*)?$"


class MLflow(ApiModel):
    """An MLflow tracking server. Each job is one run there, over all attempts."""

    uri: Annotated[str, Field(pattern=TRACKER_URL, max_length=1024)]
    """URL of the tracking server."""
    experiment: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    """Name of the experiment, which is made where it does not exist. Not given: MLFLOW_EXPERIMENT_NAME of env, else
    MLflow's experiment Default."""
    secret_name: Annotated[str, Field(pattern=OBJECT_NAME, max_length=253)] | None = None
    """Secret with MLFLOW_TRACKING_TOKEN, or with MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD. Only the pod
    of rank 0 or of the chief has it, as environment; with horovod.launcher: MPIJob all workers."""


class Tracking(ApiModel):
    """Where metrics, parameters and the addresses of artifacts are recorded besides the bucket."""

    mlflow: MLflow | None = None
    """An MLflow tracking server. A server that is down or hangs ends no training, and delays a job by seconds."""

"""The tracking server, in the pods that upload the artifacts of rank 0 or of the chief."""

from __future__ import annotations

from dtj.api.job import Job, Manifest
from dtj.api.tracking_rules import mlflow_of
from dtj_trainer import contract


def tracking_environment(job: Job, info: contract.PodInfo) -> dict[str, str]:
    """Return the variables that name the tracking server; empty where the pod does not write to it."""
    mlflow = mlflow_of(job)
    if mlflow is None or info.uploads != "primary":
        return {}
    experiment = {contract.ENV_TRACKING_EXPERIMENT: mlflow.experiment} if mlflow.experiment else {}
    return {contract.ENV_TRACKING_URI: mlflow.uri, **experiment}


def tracking_credentials(job: Job, info: contract.PodInfo) -> list[Manifest]:
    """Return the sources of variables with the tracking server's credentials, in the pod that writes to it."""
    mlflow = mlflow_of(job)
    if mlflow is None or mlflow.secret_name is None or info.uploads != "primary":
        return []
    return [{"secretRef": {"name": mlflow.secret_name}}]

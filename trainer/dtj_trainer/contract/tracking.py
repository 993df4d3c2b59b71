"""Which tracking server a job's environment names. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

RunStatus = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]
"""MLflow's status of a run."""
MLFLOW_URI, MLFLOW_RUN = "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID"
MLFLOW_COMMIT = "mlflow.source.git.commit"
"""MLflow's tag of the commit of a program."""
WANDB_SIGNS = ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT", "WANDB_ENTITY", "WANDB_BASE_URL")
"""Variables of the job by which its programs use Weights & Biases."""


def tracking_uri(environment: Mapping[str, str], own: str) -> str | None:
    """Return the URL of the MLflow server to which dtj writes; None where it writes to none.

    own: the variable of `spec.tracking`. A MLFLOW_TRACKING_URI that is no http(s) URL (a folder, a database,
    `databricks`) is left to the program.
    """
    uri = environment.get(own) or environment.get(MLFLOW_URI, "")
    return uri.rstrip("/") if uri.startswith(("http://", "https://")) else None

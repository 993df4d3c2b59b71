"""Variables by which a program finds the job's run at MLflow or Weights & Biases."""

from __future__ import annotations

import json
from collections.abc import Mapping

from dtj_trainer import contract
from dtj_trainer.contract.tracker import MLFLOW_RUN, MLFLOW_URI, WANDB_SIGNS
from dtj_trainer.launch.settings import Settings


def tracker_variables(settings: Settings) -> dict[str, str]:
    """Return the variables of the program with these settings, without those that its environment has.

    Only rank 0, the chief, or the command that starts rank 0 gets the job's run: several writers would mix their
    values.
    """
    environment = settings.environment
    first = settings.rank == 0 if settings.rank is not None else settings.pod.uploads == "primary"
    given = _wandb(settings, first=first) if any(environment.get(name) for name in WANDB_SIGNS) else {}
    if first:
        given |= _mlflow(settings, environment)
    return {name: value for name, value in given.items() if name not in environment}


def _mlflow(settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    try:
        known = json.loads((settings.root / contract.TRACKED_RUN_FILE).read_bytes())
        variables = {MLFLOW_URI: str(known["uri"]), MLFLOW_RUN: str(known["runId"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    others = environment.get(MLFLOW_URI, "").rstrip("/") not in ("", variables[MLFLOW_URI])
    return {} if others else variables


def _wandb(settings: Settings, *, first: bool) -> dict[str, str]:
    group = {"WANDB_RUN_GROUP": f"{settings.job}-{settings.uid.split('-', 1)[0]}"}
    return group | ({"WANDB_RUN_ID": settings.uid, "WANDB_RESUME": "allow"} if first else {})

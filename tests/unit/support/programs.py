"""Programs of jobs: when and how the pods of a `World` end."""

from __future__ import annotations

import json
from typing import Any

from dtj.api.identity import LABEL_INDEX, LABEL_ROLE
from dtj.api.job import Manifest
from dtj.api.strategies import RULES
from dtj_trainer.contract import ENV_STRATEGY
from tests.unit.support.kubelet import Ending


def fails(attempts: int, code: int = 3) -> Any:
    """A program that fails in its first attempts."""

    def program(pod: Manifest, ran: int) -> Ending | None:
        labels = pod["metadata"]["labels"]
        if labels["dtj.dev/role"] != "launcher" or ran < 2:
            return None
        if int(labels["dtj.dev/attempt"]) > attempts:
            return 0, ""
        return code, json.dumps({"class": "ApplicationError", "message": "it broke", "exitCode": code})

    return program


def decides(pod: Manifest) -> bool:
    """Return whether the success of the pod is the job's success, or a part of it."""
    labels, variables = pod["metadata"]["labels"], pod["spec"]["containers"][0]["env"]
    (strategy,) = (each["value"] for each in variables if each["name"] == ENV_STRATEGY)
    role = RULES[strategy].roles[labels[LABEL_ROLE]]
    return role.decides and (role.all_decide or labels[LABEL_INDEX] == "0")


def endless(pod: Manifest, ran: int) -> Ending | None:
    return None

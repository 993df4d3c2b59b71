"""Programs of jobs: when and how the pods of a `World` end."""

from __future__ import annotations

import json
from typing import Any

from dtj.api.job import Manifest
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


def endless(pod: Manifest, ran: int) -> Ending | None:
    return None

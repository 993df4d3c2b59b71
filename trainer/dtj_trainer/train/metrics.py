"""metrics.jsonl: one JSON object a line, for people, for `dtj report` and for other plots.

Kinds: `start` (at each start and resume of a training, with its model and step), `train` (means since the line
before), `epoch` (those of an epoch that ends), `validation` and `test` (results on these splits) and `end` (when the
training is complete). `examples` are those of all ranks since the first step.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.clock import now_text

if TYPE_CHECKING:
    from collections.abc import Mapping


class MetricsFile:
    """Appends to the job's metrics.jsonl. Only rank 0 of a job writes.

    Every line has `kind`, `time` (RFC 3339, UTC), `attempt`, `worldSize` and the values of `add`.
    """

    def __init__(self, world_size: int, path: Path | None = None) -> None:
        self._path = path or Path(contract.root()) / contract.METRICS_FILE
        attempt = os.environ.get(contract.ENV_ATTEMPT, "1")
        self._always = {"attempt": int(attempt) if attempt.isdecimal() else 1, "worldSize": world_size}

    def add(self, kind: str, values: Mapping[str, object]) -> None:
        """Append a line. Numbers that JSON does not have (NaN, infinity) become null."""
        finite = {name: _finite(value) for name, value in values.items()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps({"kind": kind, "time": now_text(), **self._always, **finite}) + "\n")


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value

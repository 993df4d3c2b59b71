"""A run as it is given: the rows of its metrics files, and what is known of its job."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dtj.api.status import JobStatus


@dataclass(frozen=True)
class Row:
    """A line of metrics.jsonl."""

    kind: str
    """start, train, test or end."""
    time: float
    """Seconds since 1970."""
    step: int
    """Optimizer steps done."""
    values: Mapping[str, Any]
    """The whole line."""

    def number(self, name: str) -> float | None:
        """A value that is a number; None for anything else."""
        value = self.values.get(name)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class Run:
    """One training, over all its attempts."""

    name: str
    rows: Sequence[Row]
    """In the order in which they were written."""
    evaluator_rows: Sequence[Row] = ()
    job: Mapping[str, Any] | None = None
    """The job's manifest; None for a program that was started without one."""
    status: JobStatus | None = None
    """None where only files are left."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of the job."""


def read_rows(content: bytes) -> list[Row]:
    """The rows of a metrics file; without what is none, such as a line that was cut off by a kill."""
    found = []
    for line in content.splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            values = json.loads(line)
            time = datetime.fromisoformat(values["time"]).timestamp()
            found.append(Row(str(values.get("kind", "train")), time, int(values["step"]), values))
    return found

"""A run as the input of a report: the rows of its metrics files and, if known, its job."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from dtj.api.status import JobStatus
from dtj.report.numbers import MAX_NUMBER, number
from dtj.report.utilisation import UtilisationLine

_FIRST_TIME = datetime(1970, 1, 1, tzinfo=UTC).timestamp()
_LAST_TIME = datetime(2200, 1, 1, tzinfo=UTC).timestamp()
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""A surrogate in JSON, half of a character beyond U+FFFF. A lone surrogate can't be written as UTF-8."""


@dataclass(frozen=True, slots=True)
class MetricsRow:
    """A line of metrics.jsonl."""

    kind: str
    """start, train, epoch, validation, test or end."""
    time: float
    """Seconds since 1970."""
    step: int
    """Optimizer steps done."""
    values: Mapping[str, Any]
    """All fields of the line."""

    def number(self, name: str) -> float | None:
        """Return a value that is a number up to ±MAX_NUMBER; None for any other value, such as a loss that is NaN."""
        return number(self.values.get(name))

    @property
    def ranks(self) -> int | None:
        """The number of ranks at this row."""
        value = self.values.get("worldSize")
        return value if isinstance(value, int) and value is not True and 0 < value <= MAX_NUMBER else None


@dataclass(frozen=True)
class Run:
    """One training, over all its attempts."""

    name: str
    rows: Sequence[MetricsRow]
    """The rows in the order of writing."""
    evaluator_rows: Sequence[MetricsRow] = ()
    job: Mapping[str, Any] | None = None
    """The job's manifest; None for a program that was started without a job."""
    status: JobStatus | None = None
    """The status of the job; None if only files exist."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """The labels of the job."""
    left_out: int = 0
    """The number of unreadable lines in the metrics files."""
    utilisation: Sequence[UtilisationLine] = ()
    """Samples of the processors, memory and GPUs that the programs in the run's pods used."""
    utilisation_unread: int = 0
    """The number of pods' files that were left out because there are too many bytes."""
    unread: str = ""
    """Why the files of the run can't be read; empty where they were."""
    state: str = ""
    """A sentence about a run whose status does not tell its state, such as one without a recorded end."""


class RunMetrics(NamedTuple):
    """The content of a metrics file."""

    rows: list[MetricsRow]
    left_out: int
    """The number of lines that are not rows."""


def read_metrics(content: bytes) -> RunMetrics:
    """Read a metrics file. Leave out lines that are not rows, such as a line that a kill cut off."""
    lines = [line for line in content.splitlines() if line.strip()]
    rows = [row for line in lines if (row := _row(line)) is not None]
    return RunMetrics(rows, len(lines) - len(rows))


def _row(line: bytes) -> MetricsRow | None:
    try:
        values = json.loads(line)
        if _SURROGATE.search(line):
            values = _encodable(values)
        time = datetime.fromisoformat(values["time"]).timestamp()
        step = values["step"]
        if isinstance(step, bool) or not (0 <= step <= MAX_NUMBER and _FIRST_TIME <= time <= _LAST_TIME):
            return None
        # Rows share the strings of the names: a copy in each row would double the memory of the rows.
        values = {sys.intern(name): value for name, value in values.items()}
        return MetricsRow(str(values.get("kind", "train")), time, math.floor(step), values)
    # OverflowError, OSError and RecursionError: a number, a time or the nesting exceeds the limits of Python.
    except (ValueError, KeyError, TypeError, OverflowError, OSError, RecursionError):
        return None


def _encodable(values: Any) -> Any:
    """Return the values with a question mark for each lone surrogate, which UTF-8 can't express."""
    return json.loads(json.dumps(values, ensure_ascii=False).encode(errors="replace"))

"""Reports a program's progress: `dtj-launch` serves it, and the job's status shows it.

    from dtj_trainer import progress

    progress.report(step=step, total_steps=total, loss=loss, examples_per_second=rate)

Calls are cheap enough for every step, because the file is written at most every half second. Only rank 0 writes, so
that every rank may call it. Standard library only.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.clock import now_text

if TYPE_CHECKING:
    from collections.abc import Mapping

VALUES = "values"
"""The field of the file with a program's own numbers, which go to metrics.jsonl and not to the status."""
MOST_VALUES, LONGEST_NAME = 64, 64
INTERVAL_SECONDS = 0.5
"""The shortest time between two writes of the file."""


class Reporter:
    """Writes the progress file of one program. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._progress: contract.Progress = {}
        self._values: dict[str, float] = {}
        self._first: tuple[float, int] | None = None
        self._written_at = -math.inf
        self._unwritten = False

    def report(
        self,
        *,
        step: int | None = None,
        total_steps: int | None = None,
        epoch: int | None = None,
        examples_per_second: float | None = None,
        loss: float | None = None,
        accuracy: float | None = None,
        eta_seconds: float | None = None,
        applied_twice: int | None = None,
        final: bool = False,
        values: Mapping[str, float] | None = None,
    ) -> None:
        """Update the given fields and keep the others; see the module's `report`. `values`: the program's own."""
        now = time.monotonic()
        with self._lock:
            fields = self._progress
            if step is not None:
                fields["step"] = int(step)
            if total_steps is not None:
                fields["totalSteps"] = int(total_steps)
            if epoch is not None:
                fields["epoch"] = int(epoch)
            # JSON has neither NaN nor infinity: a diverged loss is left out.
            if examples_per_second is not None and math.isfinite(examples_per_second):
                fields["examplesPerSecond"] = float(examples_per_second)
            if loss is not None:
                fields.pop("loss", None)
                if math.isfinite(loss):
                    fields["loss"] = float(loss)
            if accuracy is not None and math.isfinite(accuracy):
                fields["accuracy"] = float(accuracy)
            if applied_twice is not None:
                fields["appliedTwice"] = int(applied_twice)
            for name, value in (values or {}).items():
                if (name in self._values or len(self._values) < MOST_VALUES) and len(name) <= LONGEST_NAME:
                    self._values[name] = float(value)
            self._derive(now, eta_seconds)
            self._unwritten = True
            if final or self._at_end() or now - self._written_at >= INTERVAL_SECONDS:
                self._write(now)

    def bottleneck(self, found: contract.Bottleneck | None) -> None:
        """Set or clear the bottleneck of the training; see the module's `bottleneck`."""
        with self._lock:
            if found == self._progress.get("bottleneck"):
                return
            if found is None:
                del self._progress["bottleneck"]
            else:
                self._progress["bottleneck"] = found
            self._write(time.monotonic())

    def export(self, error: str | None, *, runs: bool) -> None:
        """Set whether the model is being exported, and why its export failed; see `exporting` and `exported`."""
        with self._lock:
            for name in ("exporting", "exportError"):
                self._progress.pop(name, None)  # type: ignore[misc]
            if runs:
                self._progress["exporting"] = True
            if error is not None:
                self._progress["exportError"] = error[: contract.EXPORT_ERROR_LENGTH]
            self._write(time.monotonic())

    def flush(self) -> None:
        """Write updates that wait for the interval to pass."""
        with self._lock:
            if self._unwritten:
                self._write(time.monotonic())

    def _at_end(self) -> bool:
        total = self._progress.get("totalSteps", 0)
        return total > 0 and self._progress.get("step", 0) >= total

    def _derive(self, now: float, eta_seconds: float | None) -> None:
        fields = self._progress
        step, total = fields.get("step"), fields.get("totalSteps", 0)
        if eta_seconds is not None and math.isfinite(eta_seconds):
            fields["etaSeconds"] = max(float(eta_seconds), 0.0)
        if step is None:
            return
        if self._first is None or step < self._first[1]:
            self._first = (now, step)
        if total <= 0:
            return
        fields["percent"], left = remaining(step, total, self._first, now)
        if eta_seconds is None and left is not None:
            fields["etaSeconds"] = left

    def _write(self, now: float) -> None:
        self._progress["updatedTime"] = now_text()
        written = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            finite = {name: value for name, value in self._values.items() if math.isfinite(value)}
            written.write_text(json.dumps({**self._progress, **({VALUES: finite} if finite else {})}))
            written.replace(self._path)
        except OSError:
            return  # A full or missing disk must not stop the training.
        self._written_at = now
        self._unwritten = False


def remaining(step: int, total: int, first: tuple[float, int], now: float) -> tuple[float, float | None]:
    """Return the percent of all steps, and the seconds that are left at the rate since `first`; None: no rate yet.

    `first`: the time and the step of the first report, on the clock of `now`.
    """
    since, begun = first
    percent = round(min(100.0 * step / total, 100.0), 2)
    if step <= begun or now <= since:
        return percent, None
    return percent, round(max(total - step, 0) * (now - since) / (step - begun), 1)


_reporter: Reporter | None = None


def progress_file() -> Path:
    """Return the path of this process's progress file."""
    return Path(contract.root()) / contract.PROGRESS_FILE


def report(
    *,
    step: int | None = None,
    total_steps: int | None = None,
    epoch: int | None = None,
    examples_per_second: float | None = None,
    loss: float | None = None,
    accuracy: float | None = None,
    eta_seconds: float | None = None,
    applied_twice: int | None = None,
    final: bool = False,
    **values: float,
) -> None:
    """Report the progress of the program. A field that is not given keeps its last value.

    `step` is 1 when the first optimizer step is done. Percent and remaining time are derived from `step` and
    `total_steps` unless `eta_seconds` is given. `applied_twice` counts batches whose update came again after a loss.
    `values` are up to 64 numbers under names of the program's own, such as `lr=0.1`, `val_loss=0.4` or
    `**{"train/f1": 0.8}`: `dtj-launch` writes them into metrics.jsonl with the step, so that each has a curve.
    The file is written at once with `final`, at the last step, and at the end of the program. Ranks other than 0 do
    nothing.
    """
    if not _is_rank_0():
        return
    _shared_reporter().report(
        step=step,
        total_steps=total_steps,
        epoch=epoch,
        examples_per_second=examples_per_second,
        loss=loss,
        accuracy=accuracy,
        eta_seconds=eta_seconds,
        applied_twice=applied_twice,
        final=final,
        values=values,
    )


def bottleneck(found: contract.Bottleneck | None) -> None:
    """Report what slows the training down, or None for nothing. A change is written at once.

    Ranks other than 0 do nothing.
    """
    if _is_rank_0():
        _shared_reporter().bottleneck(found)


def exporting() -> None:
    """Report that the training is over and that its model is being exported: its steps no longer change.

    Ranks other than 0 do nothing.
    """
    if _is_rank_0():
        _shared_reporter().export(None, runs=True)


def exported(error: str | None = None) -> None:
    """Report the end of the export. `error`: why there is none; the job's status and an event show it.

    Ranks other than 0 do nothing.
    """
    if _is_rank_0():
        _shared_reporter().export(error, runs=False)


def flush() -> None:
    """Write pending updates: for a program that ends by `os._exit`."""
    if _reporter is not None:
        _reporter.flush()


def failed(cause: str, message: str) -> None:
    """Report why the program is about to exit with a failure. The job's status shows the cause.

    Any rank may call it. The program chooses its exit code itself.
    cause: a FailureClass; dtj-launch ignores any other word.
    """
    path = Path(contract.root()) / contract.FAILURE_FILE.format(rank=contract.rank_of(os.environ) or 0)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"class": cause, "message": message}))


def read(path: Path) -> contract.Progress:
    """Read the progress file at `path`; empty without a readable file."""
    return _known_fields(_content(path))


def _content(path: Path) -> Mapping[str, object]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def read_with_values(path: Path) -> tuple[contract.Progress, dict[str, float]]:
    """Return the progress in the file at `path`, and the program's own numbers; empty without a readable file."""
    content = _content(path)
    found = content.get(VALUES)
    if not isinstance(found, dict):
        return _known_fields(content), {}
    return _known_fields(content), {
        name[:LONGEST_NAME]: float(value)
        for name, value in list(found.items())[:MOST_VALUES]
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }


def _known_fields(content: Mapping[str, object]) -> contract.Progress:
    known: contract.Progress = {}
    for name in ("step", "totalSteps", "epoch", "appliedTwice"):
        value = content.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            known[name] = int(value)
    for name in ("percent", "examplesPerSecond", "stepsPerSecond", "loss", "accuracy", "etaSeconds"):
        value = content.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            known[name] = float(value)  # type: ignore[literal-required]
    if (updated := _time(content.get("updatedTime"))) is not None:
        known["updatedTime"] = updated
    match content.get("bottleneck"):
        case {"kind": ("ParameterServers" | "Worker") as kind, "message": str(message)}:
            known["bottleneck"] = {"kind": kind, "message": message}
    if content.get("exporting") is True:
        known["exporting"] = True
    if isinstance(error := content.get("exportError"), str):
        known["exportError"] = error[: contract.EXPORT_ERROR_LENGTH]
    return known


def _time(value: object) -> str | None:
    """Convert a time in any form that Python parses to RFC 3339: str(datetime) has a space instead of a T."""
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
        return time.astimezone(UTC).isoformat().replace("+00:00", "Z") if time and time.tzinfo else None
    except (ValueError, OverflowError):
        return None


def _shared_reporter() -> Reporter:
    global _reporter
    if _reporter is None:
        _reporter = Reporter(progress_file())
        atexit.register(_reporter.flush)
    return _reporter


def _is_rank_0() -> bool:
    return not contract.rank_of(os.environ)

"""The figures of a training's progress, and durations, as text. All functions are pure.

The tables of `cli` and the sentences of `sentences` show the figures. `dtj.report.numbers` has the rule for numbers.
"""

from __future__ import annotations

from dtj.api.status import JobStatus, ProgressStatus
from dtj.report.numbers import number_text

UNKNOWN = "-"
_SOURCES = {
    "TensorBoard": "TensorBoard",
    "Output": "its output",
    "TrustedOutput": "its output",
    "Program": "metrics.jsonl",
}


def figures(status: JobStatus) -> dict[str, str]:
    """Return the known figures by name, in the order in which a line shows them."""
    progress = status.progress
    if progress is None:
        return {}
    total = f"/{progress.total_steps}" if progress.total_steps else ""
    left = progress.eta_seconds
    ended = status.finished or progress.percent == 100
    forms = {
        "step": (f"step {{}}{total}", progress.step),
        "percent": ("{:.1f}%", progress.percent),
        "epoch": ("epoch {}", progress.epoch),
        "rate": ("{}", rate_with_unit(progress)),
        "loss": ("loss {}", None if progress.loss is None else number_text(progress.loss)),
        "accuracy": ("accuracy {}", None if progress.accuracy is None else number_text(progress.accuracy)),
        "source": ("from {}", _SOURCES.get(progress.source or "")),
        "applied twice": ("{} batches applied twice", progress.applied_twice),
        "eta": ("ETA {}", None if ended or left is None else brief(left)),
    }
    return {name: form.format(value) for name, (form, value) in forms.items() if value is not None}


def rate_with_unit(progress: ProgressStatus) -> str | None:
    """Return the rate as text: in steps where the number of examples is not known; None without a rate."""
    if progress.examples_per_second is not None:
        return f"{rate(progress.examples_per_second)} examples/s"
    return None if progress.steps_per_second is None else f"{rate(progress.steps_per_second)} step/s"


def rate(value: float | None) -> str:
    """Return examples per second as text."""
    return UNKNOWN if value is None else number_text(value)


def brief(seconds: float) -> str:
    """Return a duration in at most two units, as kubectl shows ages: 45s, 12m30s, 3h5m, 4d12h."""
    whole = max(int(seconds), 0)
    if whole < 120:
        return f"{whole}s"
    if whole < 3600:
        return _in_two(whole, 60, "m", 1, "s")
    if whole < 48 * 3600:
        return _in_two(whole, 3600, "h", 60, "m")
    return _in_two(whole, 86400, "d", 3600, "h")


def _in_two(whole: int, large: int, large_unit: str, small: int, small_unit: str) -> str:
    rest = whole % large // small
    return f"{whole // large}{large_unit}" + (f"{rest}{small_unit}" if rest else "")

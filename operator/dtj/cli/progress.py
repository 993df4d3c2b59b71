"""The figures of a training's progress, as text. All functions are pure."""

from __future__ import annotations

from dtj.api.status import JobStatus
from dtj.cli.durations import brief

UNKNOWN = "-"


def figures(status: JobStatus) -> dict[str, str]:
    """Return the known figures by name, in the order in which a line shows them."""
    progress = status.progress
    if progress is None:
        return {}
    total = f"/{progress.total_steps}" if progress.total_steps else ""
    speed, left = progress.examples_per_second, progress.eta_seconds
    ended = status.finished or progress.percent == 100
    forms = {
        "step": (f"step {{}}{total}", progress.step),
        "percent": ("{:.1f}%", progress.percent),
        "epoch": ("epoch {}", progress.epoch),
        "rate": ("{} examples/s", None if speed is None else rate(speed)),
        "loss": ("loss {:.4f}", progress.loss),
        "accuracy": ("accuracy {:.4f}", progress.accuracy),
        "applied twice": ("{} batches applied twice", progress.applied_twice),
        "eta": ("ETA {}", None if ended or left is None else brief(left)),
    }
    return {name: form.format(value) for name, (form, value) in forms.items() if value is not None}


def rate(value: float | None) -> str:
    """Return examples per second as text, from 10 on without decimals."""
    if value is None:
        return UNKNOWN
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}"

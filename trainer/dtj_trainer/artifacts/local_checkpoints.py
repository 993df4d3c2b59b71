"""The folders that `checkpoints.save` made in the checkpoints folder on disk."""

from __future__ import annotations

import json
import math
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.retention import Candidate, kept

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dtj_trainer.artifacts.manifest import MetricMode

MARK_FILE = ".dtj-checkpoint.json"
"""The mark that `dtj_trainer.artifacts.checkpoints.save` writes into a complete directory, with step and metric."""

RECORD_FILE = ".dtj-in-bucket.json"
"""The record of the directory's files that a restore has left in the bucket; see `file_fetch`."""


@dataclass(frozen=True)
class Mark:
    """The content of the mark file that `save` writes into a checkpoint's directory."""

    step: int
    metric: float | None
    metric_mode: MetricMode
    parts: int = 1
    """The number of pods that each hold a part of the checkpoint."""
    on_demand: str = ""
    """A pattern of the names of files that a restore leaves in the bucket until the program reads them."""


def read_mark(directory: Path) -> Mark | None:
    """Read the mark that `save` left in a directory; None when the directory has none."""
    try:
        content = json.loads((directory / MARK_FILE).read_bytes())
        metric = content.get("metric")
        return Mark(
            step=int(content["step"]),
            metric=float(metric) if metric is not None and math.isfinite(metric) else None,
            metric_mode="min" if content.get("metricMode") == "min" else "max",
            parts=int(content.get("parts", 1)),
            on_demand=str(content.get("onDemand", "")),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def saved_folders(folder: Path) -> dict[str, Mark]:
    """Return the marks of the complete folders of `save`, by their names."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - a Path for each of thousands is slow
    except OSError:
        return {}
    return {name: mark for name in names if name[0] != "." and (mark := read_mark(folder / name))}


def newest_of(marks: Mapping[str, Mark]) -> str | None:
    """Return the name of the folder with the highest step."""
    return max(marks, key=lambda name: marks[name].step, default=None)


def prune(folder: Path, marks: Mapping[str, Mark], keep: int) -> dict[str, Mark]:
    """Delete what `checkpoints.save` wrote, except the newest and the best. Return the marks of those left."""
    candidates = {
        Candidate(1, mark.step, mark.metric, mark.metric_mode): name for name, mark in marks.items()
    }
    stay = {candidates[candidate] for candidate in kept(candidates, keep)}
    for name in marks.keys() - stay:
        shutil.rmtree(folder / name, ignore_errors=True)
    return {name: mark for name, mark in marks.items() if name in stay}

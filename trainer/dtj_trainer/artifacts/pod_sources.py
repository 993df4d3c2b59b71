"""What a pod uploads besides checkpoints, depending on its part in the job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.upload_rules import (
    BESIDE_EVENTS,
    EVENTS,
    LOG,
    METRICS,
    MODEL,
    ONCE,
    TRACKING,
    UTILISATION,
    UTILISATION_EVENTS,
    Source,
    is_event_file,
    is_no_event_file,
)

if TYPE_CHECKING:
    from pathlib import Path

    from dtj_trainer.artifacts.fence import Fence
    from dtj_trainer.artifacts.upload_rules import Begin

METRICS_KEYS = {"primary": contract.METRICS_FILE, "evaluator": contract.EVALUATOR_METRICS_FILE}


@dataclass(frozen=True)
class PodFiles:
    """Where a pod's files are. The logs in `log_names` are uploaded; None means all logs."""

    root: Path
    config_dir: Path
    part: contract.Part
    attempt: int
    log_names: tuple[str, ...] | None = None
    pod: str | None = None
    """`<role>-<index>` of a pod whose utilisation is sampled."""
    archives: tuple[tuple[str, Path], ...] = ()
    """The archives of `spec.code` that no bucket has, with their names in the bucket."""


def pod_sources(files: PodFiles, fence: Fence | None, metrics: Begin | None = None) -> list[Source]:
    """Return the files of a pod that are uploaded. `metrics`: where the stored metrics of earlier attempts end."""
    root = files.root
    sources = [*_logs(files), *_utilisation(files)]
    if key := METRICS_KEYS.get(files.part):
        # Chief and evaluator share the folder: the names of event files contain host and time, so that keys differ.
        events = Source(root / contract.TENSORBOARD, contract.TENSORBOARD, EVENTS, fence, is_event_file)
        sources += [
            Source(root / contract.METRICS_FILE, key, METRICS, fence, begin=metrics),
            events,
            replace(events, rule=BESIDE_EVENTS, takes=is_no_event_file),
        ]
    if files.part == "primary":
        sources += [
            Source(files.config_dir / contract.JOB_FILE, contract.JOB_FILE, ONCE, fence),
            Source(root / contract.MODEL, contract.MODEL, MODEL, fence, essential=True),
            Source(root / contract.TRACKING_FILE, contract.TRACKING_FILE, TRACKING, fence),
        ]
        sources += [Source(path, key, ONCE, fence) for key, path in files.archives]
    return sources


def _logs(files: PodFiles) -> list[Source]:
    folder, key = files.root / contract.LOGS, f"{contract.LOGS}/attempt-{files.attempt}"
    if files.log_names is None:
        return [Source(folder, key, LOG)]
    stacks = Source(folder, key, LOG, takes=_has_stacks)
    return [stacks, *(Source(folder / name, f"{key}/{name}", LOG) for name in files.log_names)]


def _utilisation(files: PodFiles) -> list[Source]:
    """Return the files that dtj-launch writes in each pod. No other pod of the attempt has their keys."""
    if files.pod is None:
        return []
    folder, key = files.root / contract.UTILISATION, f"{contract.UTILISATION}/attempt-{files.attempt}"
    lines, events = f"{files.pod}.jsonl", f"{contract.TENSORBOARD}/{key}/{files.pod}"
    return [
        Source(folder / lines, f"{key}/{lines}", UTILISATION),
        Source(folder / contract.TENSORBOARD, events, UTILISATION_EVENTS, takes=is_event_file),
    ]


def _has_stacks(name: str) -> bool:
    return fnmatchcase(name, contract.STACKS_FILES)

"""A checkpoint of shards on disk: the files of `torch.distributed.checkpoint`, and the run's description.

Each rank writes `__<rank>_0.distcp`. Rank 0 also writes `.metadata`, which says where each tensor is, and `run.json`.
A pod has the files of its own ranks, until the checkpoint is restored, which brings all files to each pod.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint.filesystem import FileSystemReader

from dtj_trainer.artifacts import checkpoints
from dtj_trainer.train.file_saver import SHARDED_RUN

if TYPE_CHECKING:
    from pathlib import Path

    from torch.distributed.checkpoint.metadata import Metadata

_METADATA = ".metadata"


def write_run(folder: Path, run: dict[str, Any]) -> None:
    """Write the run's description, which is plain data."""
    (folder / SHARDED_RUN).write_text(json.dumps(run))


def read_run(folder: Path) -> dict[str, Any]:
    """Read the run's description."""
    run: dict[str, Any] = json.loads((folder / SHARDED_RUN).read_bytes())
    return run


def read_metadata(folder: Path) -> Metadata:
    """Read which tensors there are, and where."""
    return FileSystemReader(folder).read_metadata()


def whole_ones() -> dict[int, str]:
    """Return the identity of each checkpoint of this pod that has the files of all ranks, by its step.

    The identity is equal for copies of the same checkpoint.
    """
    found = {}
    for saved in checkpoints.saved():
        described = [saved.path / name for name in (SHARDED_RUN, _METADATA)]
        if all(path.is_file() for path in described) and _has_all_files(saved.path):
            digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in described))
            found[saved.step] = digest.hexdigest()
    return found


def _has_all_files(folder: Path) -> bool:
    ends: dict[str, int] = {}
    for place in read_metadata(folder).storage_data.values():
        ends[place.relative_path] = max(ends.get(place.relative_path, 0), place.offset + place.length)
    return all(
        (folder / name).is_file() and (folder / name).stat().st_size >= end for name, end in ends.items()
    )

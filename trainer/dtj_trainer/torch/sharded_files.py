"""A checkpoint of shards on disk: the files of `torch.distributed.checkpoint`, and the run's description.

Each rank writes `__<rank>_0.distcp`. Rank 0 also writes `.metadata`, which says where each tensor is, and `run.json`.
A pod has the files of its own ranks. A restore brings the description to each pod, and leaves the files of the ranks
in the bucket, until a rank of the pod reads some of them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader

from dtj_trainer.artifacts import checkpoints
from dtj_trainer.artifacts.on_demand import in_bucket
from dtj_trainer.train.file_saver import SHARDED_RUN

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
    from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan
    from torch.futures import Future

ON_DEMAND = "__*.distcp"
_METADATA = ".metadata"
_SMALL_BYTES = 2**16


class NeededFiles(FileSystemReader):
    """Reads tensors, after it has brought the files that hold them."""

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """See StorageReader. `plan` names the pieces that this rank needs."""
        names = {self.storage_data[item.storage_index].relative_path for item in plan.items}
        checkpoints.bring(Path(self.path), sorted(names))
        return super().read_data(plan, planner)


class SmallTogether(DefaultSavePlanner):
    """Gives small tensors that several ranks have to the lowest of them, so that one file has all of them.

    By default they are spread over the ranks' files, so that each rank would need each file for a few bytes, such as
    the optimizer's numbers of steps.
    """

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """See SavePlanner."""
        taken: set[MetadataIndex] = set()
        plans = []
        for plan in all_plans:
            small = {item.index for item in plan.items if (item.tensor_storage_size() or 0) < _SMALL_BYTES}
            own = [item for item in plan.items if item.index not in small & taken]
            plans.append(replace(plan, items=own))
            taken |= small
        return super().create_global_plan(plans)


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
    """Return the identity of each checkpoint of this pod that has the files of all ranks, or can bring them, by its
    step.

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
    sizes = {name: file.size for name, file in in_bucket(folder).files.items()}
    sizes |= {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    return all(sizes.get(name, -1) >= end for name, end in ends.items())

"""Checkpoints and the final model of a divided network: each rank writes and reads its own part of the state.

The state has the names and shapes of the whole network, so that another number of ranks, or another division, can go
on from it: `torch.distributed.checkpoint` reads the pieces that a rank needs, whichever rank wrote them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.staging import StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from dtj_trainer import contract
from dtj_trainer.artifacts import checkpoints
from dtj_trainer.artifacts.file_fetch import in_bucket
from dtj_trainer.data.sharding import Sharding
from dtj_trainer.torch import saved_model
from dtj_trainer.torch.model import digest_of
from dtj_trainer.torch.staging import Stager
from dtj_trainer.train.background_save import BackgroundSave
from dtj_trainer.train.file_saver import SHARDED_RUN, model_facts, position_of, run_at, why_not
from dtj_trainer.train.protocols import Position, RanksDiverged, Saver

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
    from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan
    from torch.futures import Future

    from dtj_trainer.data.pictures import PictureSet
    from dtj_trainer.torch.divided_model import DividedModel
    from dtj_trainer.torch.mesh_ranks import MeshRanks
    from dtj_trainer.train.options import TrainingOptions
    from dtj_trainer.train.schedule import Ramp


# A checkpoint of shards on disk: the files of `torch.distributed.checkpoint`, and the run's description.
#
# Each rank writes `__<rank>_0.distcp`. Rank 0 also writes `.metadata`, which says where each tensor is, and
# `run.json`. A pod has the files of its own ranks. A restore brings the description to each pod, and leaves the files
# of the ranks in the bucket, until a rank of the pod reads some of them.

ON_DEMAND = "__*.distcp"
_METADATA = ".metadata"
_SMALL_BYTES = 2**16


class NeededFiles(FileSystemReader):
    """Fetches the files that hold a rank's tensors from the bucket, and reads the tensors."""

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


log = logging.getLogger(__name__)

_NEEDED = ("momentum", "betas", "eps", "rho", "weight_decay")
"""What a checkpoint keeps of the optimizer's options, so that a resumed training goes on with them."""


class ShardedSaver(Saver):
    """See Saver. The ranks of one pod have one workspace; the lowest of them completes the pod's part."""

    def __init__(
        self, options: TrainingOptions, data: PictureSet, model: DividedModel, ranks: MeshRanks
    ) -> None:
        self._options, self._ranks, self._data = options, ranks, data
        sharding = Sharding(data.train.blocks, 1, rank=0, ranks=1, seed=options.seed, stock=data.train.stock)
        self._training_examples, self._order = sharding.examples, sharding.name
        self._network, self._optimizer = model.network, model.optimizer
        self._weights = dict(model.network.named_parameters())
        pods = ranks.gather((socket.gethostname(), os.path.realpath(contract.root())), "pods")
        self._leader = pods.index(pods[ranks.rank])
        self._pods = len(set(pods))
        self._background = BackgroundSave()
        # Saves use a process group of their own: a save exchanges in a thread beside the exchanges of the training.
        self._group = dist.new_group(backend="gloo")
        gpu = any(each.is_cuda for each in self._weights.values())
        self._stager = Stager(
            StagingOptions(
                use_pinned_memory=gpu,
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=gpu,
            )
        )

    def prepare_saves(self) -> None:
        """See Saver. The first copy also allocates memory, which takes several times as long as a later copy."""
        if self._options.async_save:
            self._stager.stage(self._state())

    @property
    def busy(self) -> bool:
        """See Saver."""
        return self._background.busy

    def close(self) -> None:
        """See Saver."""
        self._background.close()
        self._stager.close()

    def save(self, at: Position, ramp: Ramp, accuracy: float | None, *, final: bool, wait: bool) -> None:
        """See Saver."""
        del final
        examples, order = self._training_examples, self._order
        run = run_at(at, ramp, self._options, examples, order, self._data.class_names)
        group = self._optimizer.param_groups[0]
        run["optimizerOptions"] = {name: value for name, value in group.items() if name in _NEEDED}
        self._background.wait()
        step = at.step
        if wait or not self._options.async_save:
            self._save(step, self._state(), run, accuracy)
        else:
            copy = self._stager.stage(self._state())
            self._background.begin(lambda: self._save(step, copy, run, accuracy))

    def _save(self, step: int, state: Any, run: dict[str, Any], accuracy: float | None) -> None:
        """Save the ranks' parts together; the checkpoint is complete on all ranks at the return."""
        if self._ranks.rank == self._leader:
            checkpoints.save(
                step,
                lambda folder: self._write(folder, state, run),
                accuracy,
                parts=self._pods,
                on_demand=ON_DEMAND,
            )
        else:
            self._write(None, state, run)
        dist.barrier(self._group)

    def _write(self, folder: Path | None, state: dict[str, Tensor], run: dict[str, Any]) -> None:
        """Write this rank's part. Only the leader, the lowest rank of a pod, gets the pod's `folder`."""
        folders: list[str | None] = [None] * self._ranks.size
        dist.all_gather_object(folders, folder and str(folder), group=self._group)
        chosen = Path(folders[self._leader] or "")
        if self._ranks.rank == 0:
            write_run(chosen, run)
        save(
            state,
            storage_writer=FileSystemWriter(chosen),
            planner=SmallTogether(),
            process_group=self._group,
        )

    def _state(self) -> dict[str, Tensor]:
        """Return this rank's part of the state, by names that are the same in each division."""
        state = {f"model.{name}": value for name, value in self._network.state_dict().items()}
        for name, weight in self._weights.items():
            for what, value in self._optimizer.state[weight].items():
                if isinstance(value, Tensor):
                    state[_optimizer_name(name, what)] = value
        return state

    def resume(self) -> tuple[Position, dict[str, Any] | None]:
        """See Saver. Takes the newest checkpoint that every pod has with all its files.

        Ends the process if there are checkpoints, but no such one, or if it belongs to another training.
        """
        step = self._newest_of_all()
        if step is None:
            return Position(), None  # All ranks have rank 0's first weights already.
        folder = checkpoints.folder() / str(step)
        run = read_run(folder)
        examples, order = self._training_examples, self._order
        if refusal := why_not(run, self._options, examples, order, self._data.class_names):
            raise SystemExit(f"the checkpoint {folder} {refusal}, or start anew (artifacts.resume: Never)")
        self._load(folder)
        for group in self._optimizer.param_groups:
            group.update(
                {
                    name: tuple(value) if isinstance(value, list) else value
                    for name, value in run["optimizerOptions"].items()
                }
            )
        at = position_of(run)
        if self._ranks.rank == 0:
            log.info("resuming from the checkpoint of step %d, epoch %d", at.step, at.epoch + 1)
        return at, run.get("ramp")

    def _newest_of_all(self) -> int | None:
        """Return the step of the newest checkpoint that is whole, and the same, in each pod; None if none has any."""
        newest = checkpoints.newest()
        whole: list[dict[int, str]] = self._ranks.gather(whole_ones(), "checkpoints")
        common = set(whole[0].items()).intersection(*(each.items() for each in whole[1:]))
        if common:
            return max(step for step, _ in common)
        in_shards = newest and (newest.path / SHARDED_RUN).is_file()
        found = self._ranks.gather(newest and (str(newest.path), in_shards), "newest checkpoints")
        if any(found):
            path, in_shards = next(each for each in found if each)
            fault = "does not have all its files in each pod" if in_shards else "is not in shards"
            raise SystemExit(
                f"the checkpoint {path} {fault}: resume with the options that wrote it (docs/model-parallel.md), or "
                "start anew (artifacts.resume: Never)"
            )
        return None

    def _load(self, folder: Path) -> None:
        """Load this rank's part of the state, together with all ranks."""
        kept = read_metadata(folder).state_dict_metadata
        state = {f"model.{name}": value for name, value in self._network.state_dict().items()}
        if missing := [name for name in state if name not in kept]:
            raise SystemExit(
                f"the checkpoint {folder} has no tensor {missing[0]}: give the --model that wrote it"
            )
        for name, weight in self._weights.items():
            of_weight = self._optimizer.state[weight]
            for what in _optimizer_names(kept, name):
                found = kept[_optimizer_name(name, what)]
                assert isinstance(found, TensorStorageMetadata)
                of_weight[what] = (
                    torch.zeros_like(weight, requires_grad=False)
                    if found.size == weight.shape
                    else torch.zeros(found.size, dtype=found.properties.dtype)
                )
                state[_optimizer_name(name, what)] = of_weight[what]
        load(state, storage_reader=NeededFiles(folder))

    def export(self, at: Position, accuracy: float | None) -> dict[str, object]:
        """See Saver. First compares the weights of the ranks that hold the same part. Rank 0 gathers the network."""
        part = {name: _whole(value).cpu() for name, value in self._network.state_dict().items()}
        names = ",".join(sorted(part))
        self._compare(names, digest_of(part))
        whole = self._gathered(part)
        digest: str = self._ranks.broadcast(digest_of(whole))
        log.info("the ranks of each part have the same weights; sha256 of all weights: %s", digest)
        facts = model_facts(at, accuracy, self._ranks.size, digest)
        if self._ranks.rank == 0:
            folder = Path(contract.root()) / contract.MODEL
            shape, classes = self._data.shape, self._data.classes
            saved_model.write(
                folder,
                whole,
                name=self._options.model,
                shape=shape,
                classes=classes,
                facts=facts,
                class_names=self._data.class_names,
                orient=self._options.orient,
            )
            log.info("the model is in %s", folder)
        return facts

    def _compare(self, names: str, digest: str) -> None:
        """Raise RanksDiverged, on every rank, unless the ranks that have tensors of these names have equal ones."""
        of_ranks = self._ranks.gather((names, digest), "parts")
        first = dict(reversed(of_ranks))
        unlike = [rank for rank, (part, each) in enumerate(of_ranks) if each != first[part]]
        if unlike:
            rank = unlike[0]
            other = next(one for one, (part, _) in enumerate(of_ranks) if part == of_ranks[rank][0])
            raise RanksDiverged(
                f"rank {rank} and rank {other} have the same part of the network, but different weights"
            )

    def _gathered(self, part: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of all parts on rank 0; those of its own part on the others."""
        described = self._ranks.gather(
            {name: (value.shape, value.dtype) for name, value in part.items()}, "parts"
        )
        whole = dict(part)
        for rank, tensors in enumerate(described):
            lacking = {name: like for name, like in tensors.items() if name not in described[0]}
            if rank >= self._ranks.model.size() or not lacking:
                continue  # The ranks of the first copy of the network have all parts.
            for name, (shape, dtype) in lacking.items():
                if self._ranks.rank == rank:
                    dist.send(part[name], dst=0)
                elif self._ranks.rank == 0:
                    whole[name] = torch.empty(shape, dtype=dtype)
                    dist.recv(whole[name], src=rank)
        return whole


def _optimizer_name(weight: str, what: str) -> str:
    return f"optimizer.{weight}.{what}"


def _optimizer_names(kept: Mapping[str, object], weight: str) -> list[str]:
    """Return what a checkpoint has of the optimizer's state of a weight."""
    begin = _optimizer_name(weight, "")
    return [name.removeprefix(begin) for name in kept if name.startswith(begin)]


def _whole(value: Tensor) -> Tensor:
    """Gather a tensor whose shards several ranks have."""
    # Silence PyTorch's warning that shards of two dimensions of the mesh take two exchanges.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    return value.full_tensor() if isinstance(value, DTensor) else value

"""Divided networks on up to four ranks beside one process, all in one set of processes.

    RANK=… MASTER_ADDR=127.0.0.1 python -m tests.trainer.division_checks FOLDER PORT PORT PORT PORT PORT

Rank 0 prints as JSON the largest differences of numbers that should be equal, and the messages of refusals.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.trainer import own_networks
from tests.trainer.torch_checks import CPU, DATA, EXAMPLES, PICTURES, Build, State, difference, smooth
from torch import nn
from torch.distributed.tensor import DTensor

from dtj_trainer.artifacts import file_fetch
from dtj_trainer.artifacts.manifest import StoredFile, sha256_of
from dtj_trainer.artifacts.s3 import S3Location
from dtj_trainer.artifacts.store import Store
from dtj_trainer.data.sharding import Sharding
from dtj_trainer.programs.torch_image_classification import model_of, ranks_of, saver_of
from dtj_trainer.torch import divided_model, sharded_saver, trial
from dtj_trainer.torch import model as torch_model
from dtj_trainer.torch.mesh_ranks import MeshRanks
from dtj_trainer.torch.models import MODELS, PictureClassifier, build
from dtj_trainer.torch.ranks import TensorRanks
from dtj_trainer.torch.sharded_saver import ShardedSaver
from dtj_trainer.torch.trial import PassRefused
from dtj_trainer.train.options import TrainingOptions, parse
from dtj_trainer.train.protocols import Position, RanksDiverged
from dtj_trainer.train.schedule import Ramp

STEPS = 21
"""Three epochs of six steps of 16 and one of a single example, which only one share has."""
_TWO_STAGES = ("--pipeline-stages=2", "--micro-batches=4")
LAYOUTS = {
    "fsdp": ("--fsdp",),
    "fsdp with clipping": ("--fsdp", "--clip-norm=0.5", "--optimizer=sgd"),
    "fsdp in passes": ("--fsdp", "--batch-size=3"),
    "fsdp with SyncBatchNorm": ("--fsdp", "--sync-batchnorm"),
    "tensor": ("--tensor-parallel=4",),
    "tensor with dropout": ("--tensor-parallel=4", "--label-smoothing=0.1"),
    "tensor x data": ("--tensor-parallel=2", "--optimizer=sgd", "--clip-norm=0.5"),
    "tensor x fsdp": ("--tensor-parallel=2", "--fsdp", "--optimizer=sgd", "--clip-norm=0.5"),
    "stages": ("--pipeline-stages=4", "--micro-batches=4"),
    "stages x data": ("--pipeline-stages=2", "--micro-batches=3", "--label-smoothing=0.1"),
    "stages x data with clipping": (*_TWO_STAGES, "--optimizer=sgd", "--clip-norm=0.5"),
    "stages x fsdp": (*_TWO_STAGES, "--fsdp", "--optimizer=sgd", "--clip-norm=0.5"),
}


class Dropped(nn.Sequential):
    """Dense layers with dropout between the shared ones."""

    def tensor_layers(self) -> dict[str, str]:
        return {"1": "column", "3": "dropout", "4": "row"}


def dropped(*_: object) -> nn.Module:
    dense = (nn.Linear(64, 32), nn.SiLU(), nn.Dropout(0.5), nn.Linear(32, 10))
    return PictureClassifier(Dropped(nn.Flatten(), *dense), [0.5], [0.3])


class Shared(nn.Sequential):
    """The same, with BatchNorm before the shared layers."""

    def tensor_layers(self) -> dict[str, str]:
        return {"2": "column", "4": "dropout", "5": "row"}


def shared(channels: int, classes: int) -> nn.Module:
    first, second = nn.Linear(64 * channels, 32), nn.Linear(32, classes)
    return Shared(nn.Flatten(), nn.BatchNorm1d(64), first, nn.SiLU(), nn.Dropout(0.5), second)


NETWORKS: dict[str, Build] = {"fsdp with SyncBatchNorm": smooth, "tensor with dropout": dropped}


def options_of(*options: str) -> TrainingOptions:
    fixed = ("--data=none", "--global-batch-size=16", "--batch-size=16", "--optimizer=adamw")
    flags = {"sync_batchnorm": True, "pytorch": True, "division": True}
    return parse([*fixed, *options], "program", "", MODELS, **flags)


class Trained:
    """A model with its saver, or a rank's part of it."""

    def __init__(self, ranks: TensorRanks, *options: str, network: Build = build) -> None:
        torch_model.build = network  # type: ignore[assignment]
        self.options = options_of(*options)
        self.ranks = MeshRanks(self.options, CPU) if self.options.divided else ranks
        self.model = model_of(self.options, DATA, CPU, self.ranks)
        self.saver = saver_of(self.options, DATA, self.model, self.ranks)
        self.at = Position()

    def train(self, until: int) -> None:
        own = {"rank": self.ranks.data_rank, "ranks": self.ranks.data_size}
        sharding = Sharding(EXAMPLES, 1, **own, seed=1, step_size=16)
        counted = 0
        while self.at.step < until:
            for share in sharding.epoch(self.at.epoch, self.at.examples):
                if self.at.step == until:
                    break
                batch = self.model.prepare(PICTURES.pixels[share.indices], PICTURES.labels[share.indices])
                self.model.train(batch, share, 0.002, self.at.step)
                self.at.step, self.at.examples = self.at.step + 1, share.position
                counted += share.total
            else:
                self.at.epoch, self.at.examples = self.at.epoch + 1, 0
        found = self.ranks.total(self.model.take_sums(), "examples")
        assert found[2] == counted, (found, counted)
        self.model.average_statistics()

    def state(self) -> State:
        """The whole state, on each rank."""
        if not isinstance(self.saver, ShardedSaver):
            return {f"model.{name}": value for name, value in self.model.network.state_dict().items()}
        found: State = {}
        own = {name: whole(value) for name, value in self.saver._state().items()}
        for each in self.ranks.gather(own, "state"):
            for name, value in each.items():
                assert name not in found or torch.equal(found[name], value), f"{name} differs"
            found |= each
        return found

    def answers(self) -> State:
        """Right answers and loss of all pictures but one, which all shares have. The last share gets no picture."""
        shares, rank = self.ranks.data_size, self.ranks.data_rank
        each = 96 // max(shares - 1, 1)
        own = slice(each * rank, each * (rank + 1) if rank < max(shares - 1, 1) else each * rank)
        found = self.model.test(PICTURES.pixels[:96][own], PICTURES.labels[:96][own])
        right, loss, top5 = self.ranks.total([one * self.ranks.counts for one in found], "test")
        return {"right": torch.tensor(right), "loss": torch.tensor(loss / 96), "top5": torch.tensor(top5)}

    def save(self) -> None:
        """Save beside the training, and make a step meanwhile."""
        self.saver.prepare_saves()
        self.saver.save(self.at, Ramp(0.0, 1.0, 1.0), None, final=False, wait=False)
        self.train(self.at.step + 1)
        self.saver.close()

    def resume(self) -> None:
        self.at, _ = self.saver.resume()


def whole(value: torch.Tensor) -> torch.Tensor:
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()


def weights(state: State) -> State:
    return {name: value for name, value in state.items() if name.startswith("model.")}


@contextmanager
def world(size: int, port: str) -> Iterator[TensorRanks | None]:
    """The first ranks in a process group; None for the others."""
    if int(os.environ["RANK"]) >= size:
        yield None
        return
    os.environ |= {"WORLD_SIZE": str(size), "MASTER_PORT": port}
    with ranks_of(options_of("--fsdp"), CPU) as ranks:
        yield ranks


@cache
def trained_alone(network: Build, *options: str) -> Trained:
    trained = Trained(TensorRanks(), *options, network=network)
    trained.train(STEPS)
    return trained


def one_process(*options: str, network: Build = build) -> Trained:
    """The same training without a division."""
    same = (each for each in options if each.startswith(("--clip", "--label", "--optimizer")))
    return trained_alone(network, *same)


def layouts(ranks: TensorRanks) -> dict[str, float]:
    """Each layout for 21 steps."""
    found = {}
    for name, options in LAYOUTS.items():
        network = NETWORKS.get(name, build)
        trained = Trained(ranks, *options, network=network)
        trained.train(STEPS)
        state, answers = weights(trained.state()), trained.answers()
        if ranks.rank == 0:
            one = one_process(*options, network=network)
            found[name] = max(difference(one.state(), state), difference(one.answers(), answers))
    return found


def refused(ranks: TensorRanks, *options: str) -> str:
    try:
        Trained(ranks, *options).resume()
    except (SystemExit, PassRefused) as refusal:
        return str(refusal)
    return "not refused"


def refusals(ranks: TensorRanks) -> dict[str, str]:
    return {
        "ranks": refused(ranks, "--tensor-parallel=3"),
        "layers": refused(ranks, "--tensor-parallel=2", "--model=resnet18"),
        "blocks": refused(ranks, "--pipeline-stages=4", f"--model={__spec__.name}:two"),
        "micro batches": refused(ranks, "--pipeline-stages=2", "--micro-batches=9"),
        "passes": refused(ranks, "--pipeline-stages=2", "--micro-batches=2", "--batch-size=4"),
        "last step": refused(ranks, "--fsdp", "--model=tests.trainer.own_networks:picky"),
    }


def diverged(ranks: TensorRanks) -> list[str]:
    """A rank with other weights than the rank that has the same part of the layers, in a meeting and at the end."""
    trained = Trained(ranks, "--tensor-parallel=2")
    if ranks.rank == 3:
        with torch.no_grad():
            whole_layer = trained.model.network.get_parameter("network.features.0.bias")
            whole_layer += 1
    weights = trained.model.fingerprints(weights_alone=True)
    told = []
    for compare in (
        lambda: trained.ranks.same_on_all(repr(weights), weights),
        lambda: trained.saver.export(trained.at, None),
    ):
        try:
            compare()
        except RanksDiverged as error:
            told.append(str(error))
    return told


def two(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, 8), nn.ReLU(), nn.Linear(8, classes))


def drawn(channels: int, classes: int) -> nn.Module:
    """Draws from every generator, and has buffers that a pass changes."""
    return nn.Sequential(own_networks.Drawn(channels, 8), nn.ReLU(), nn.Linear(8, classes))


def with_and_without_trial(ranks: TensorRanks) -> dict[str, float]:
    """Ten steps of own networks, whether or not their smallest step is tried before."""
    found, sizes = {}, list[int]()
    tried = trial.try_step

    def kept(*given: Any) -> None:
        sizes.append(given[2])
        tried(*given)

    for options in (("--fsdp",), ("--tensor-parallel=2",), ("--pipeline-stages=2", "--micro-batches=2")):
        states: list[State] = []
        for each in (kept, lambda *_: None):
            trial.try_step = each
            random.seed(1)
            np.random.seed(1)
            name = "shared" if options[0].startswith("--tensor") else "drawn"
            trained = Trained(ranks, *options, f"--model={__spec__.name}:{name}")
            trained.train(10)
            states.append(trained.state() | {"drawn": torch.tensor([random.random(), np.random.rand()])})
        found[f"trial: {' '.join(options)}"] = difference(*states)
    trial.try_step = tried
    assert sizes == [int(ranks.rank == 0)] + 2 * [int(ranks.rank < 2)], sizes
    return found


class Chain:
    """A training that goes from one division to the next by its checkpoints."""

    def __init__(self, root: Path) -> None:
        self._root, self._expected = root, root / "state.pt"
        self.found: dict[str, float] = {}
        root.mkdir(parents=True, exist_ok=True)

    def go_on(self, ranks: TensorRanks, until: int, *options: str, pod: str = "pod") -> State:
        """Resume, compare with the state that was saved, train and save."""
        os.environ["DTJ_ROOT"] = str(self._root / pod)
        trained = Trained(ranks, *options)
        trained.resume()
        if self._expected.exists():
            expected, state = torch.load(self._expected), trained.state()
            assert expected.keys() == state.keys(), expected.keys() ^ state.keys()
            self.found[f"{ranks.size}: {' '.join(options)}"] = difference(expected, state)
        if trained.at.step < until:
            trained.train(until)
        state = trained.state()
        if ranks.rank == 0:
            torch.save(state, self._expected)
        if trained.at.step == until:
            trained.save()
        return state


class FolderStore(Store):
    """Reads the objects of a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(S3Location("folder", ""))
        self._folder = folder

    def get_with_sha256(self, key: str, path: Path, *, small: bool = False) -> str:
        shutil.copyfile(self._folder / key, path)
        return sha256_of(path)


def leave_in_bucket(pods: list[Path], store: Path) -> None:
    """Make each pod's checkpoint what a restore leaves of it: the ranks' files are in the store alone."""
    for pod in pods:
        shutil.copytree(pod / "checkpoints/2", store, dirs_exist_ok=True)
    files = [
        StoredFile(f"2/{path.name}", path.name, path.stat().st_size, sha256_of(path))
        for path in store.glob(sharded_saver.ON_DEMAND)
    ]
    for pod in pods:
        shutil.copytree(store, pod / "checkpoints/2", dirs_exist_ok=True)
        for path in (pod / "checkpoints/2").glob(sharded_saver.ON_DEMAND):
            path.unlink()
        file_fetch.write_records(FolderStore(store), "2", files, pod / "checkpoints")


def two_pods(root: Path, ranks: TensorRanks) -> tuple[str, dict[str, float]]:
    """Each pod has a part. Only once both can have all files, as after a restore, a training goes on from them.

    The pods bring the files of their own ranks, and that of rank 0, which has the small tensors.
    """
    chain, pod = Chain(root), f"pod{ranks.rank // 2}"
    chain.go_on(ranks, 2, "--fsdp", pod=pod)
    refusal = refused(ranks, "--fsdp")
    ranks.barrier()
    pods = [root / "pod0", root / "pod1"]
    file_fetch.open_store = lambda uri: FolderStore(root / "store")  # type: ignore[assignment]
    if ranks.rank == 0:
        leave_in_bucket(pods, root / "store")
    ranks.barrier()
    chain.go_on(ranks, 0, "--fsdp", pod=pod)
    ranks.barrier()
    brought = [sorted(path.name[2] for path in each.glob("checkpoints/2/__*.distcp")) for each in pods]
    assert brought == [["0", "1"], ["0", "2", "3"]], brought
    return refusal, {f"two pods, {name}": each for name, each in chain.found.items()}


def main(folder: Path, ports: list[str]) -> None:
    torch.set_num_threads(1)
    divided_model.BLOCK_PARAMETERS = 500
    shards, chain = Chain(folder / "shards"), Chain(folder / "chain")
    with world(4, ports[0]) as ranks:
        assert ranks is not None
        close, messages = layouts(ranks), refusals(ranks)
        messages["early"], messages["diverged"] = diverged(ranks)
        tried = with_and_without_trial(ranks)
        messages["parts"], equal = two_pods(folder / "pods", ranks)
        shards.go_on(ranks, 10, "--fsdp")
        chain.go_on(ranks, 10, "--tensor-parallel=2", "--fsdp")
    with world(3, ports[1]) as ranks:
        if ranks:
            shards.go_on(ranks, 0, "--fsdp")
            chain.go_on(ranks, 14, "--pipeline-stages=3", "--micro-batches=3")
    with world(2, ports[2]) as ranks:
        if ranks:
            chain.go_on(ranks, 17, "--tensor-parallel=2")
    with world(1, ports[3]) as ranks:
        if ranks:
            shards.go_on(ranks, 0, "--fsdp")
            state = chain.go_on(ranks, STEPS, "--fsdp")
            close["chain"] = difference(one_process().state(), weights(state))
            equal |= shards.found | chain.found | tried
            print(json.dumps({"close": close, "equal": equal, "messages": messages}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

"""Steps of two ranks beside those of one process and of Horovod, all in one pair of processes.

    MASTER_ADDR=127.0.0.1 MASTER_PORT=… mpirun -n 2 python -m tests.trainer.torch_checks

Rank 0 prints for each check the largest difference of a weight or statistic after 21 steps, as JSON.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable

import horovod.torch as hvd
import numpy as np
import torch
from torch import nn

from dtj_trainer.data.pictures import Pictures, PictureSet
from dtj_trainer.data.sharding import Sharding
from dtj_trainer.torch import model as torch_model
from dtj_trainer.torch.c10d_ranks import joined_ranks
from dtj_trainer.torch.horovod_ranks import TorchRanks
from dtj_trainer.torch.models import PictureClassifier, build
from dtj_trainer.torch.models.batch_norm import BatchNorm2d
from dtj_trainer.torch.ranks import TensorRanks
from dtj_trainer.train.options import parse

CPU = torch.device("cpu")
CHANCE = np.random.default_rng(1)
EXAMPLES = 97
"""Six steps of 16 and a last one of a single example, of which the second rank has none."""
PICTURES = Pictures(CHANCE.integers(0, 256, (EXAMPLES, 1, 8, 8)).astype("u1"), np.arange(EXAMPLES) % 10)
DATA = PictureSet(PICTURES, PICTURES, 10)

State = dict[str, torch.Tensor]
Build = Callable[..., nn.Module]


def smooth(*_: object) -> nn.Module:
    """Make a network with BatchNorm of many values and of one value for each picture, and without a ReLU.

    The rounding errors of a ReLU network grow a hundred times in 10 steps.
    """
    layers: list[nn.Module] = [nn.Conv2d(1, 8, 3, padding=1, bias=False), BatchNorm2d(8), nn.SiLU()]
    layers += [nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.AdaptiveAvgPool2d(1), BatchNorm2d(8), nn.SiLU()]
    network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 10))
    return PictureClassifier(network, [0.5], [0.3])


def in_float64(*given: object) -> nn.Module:
    return build(*given).double()  # type: ignore[arg-type]


def trained(ranks: TensorRanks, *options: str, network: Build = build, epochs: int = 3) -> State:
    """Train epochs of 7 steps of 16 examples on all ranks; return the weights and the statistics."""
    torch_model.build = network  # type: ignore[assignment]
    fixed = ("--optimizer=sgd", "--momentum=0.9", "--data=none")
    flags = {"grad_accumulation": True, "sync_batchnorm": True}
    chosen = parse([*fixed, *options], "program", "", ("cnn", "resnet18"), **flags)
    model = torch_model.TorchModel(chosen, DATA, CPU, ranks)
    size = chosen.batch_size * chosen.grad_accumulation
    sharding = Sharding(EXAMPLES, size, rank=ranks.rank, ranks=ranks.size, seed=1)
    step = 0
    for epoch in range(epochs):
        for share in sharding.epoch(epoch):
            batch = model.prepare(PICTURES.pixels[share.indices], PICTURES.labels[share.indices])
            model.train(batch, share, 0.02, step)
            step += 1
    assert step == 7 * epochs
    right = ranks.total(model.take_sums(), "examples")
    assert right[2] == epochs * EXAMPLES, right
    model.average_statistics()
    state: State = model.network.state_dict()
    assert len(set(ranks.gather(digest(state), "digest"))) == 1
    return state


def digest(state: State) -> bytes:
    return b"".join(value.numpy().tobytes() for value in state.values())


def difference(left: State, right: State) -> float:
    """The largest difference; infinite where a value is not finite."""
    found = [(value.double() - right[name].double()).abs().max().item() for name, value in left.items()]
    return max(each if np.isfinite(each) else float("inf") for each in found)


def main() -> None:
    os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
    os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
    torch.set_num_threads(1)
    hvd.init()
    alone, horovod = TensorRanks(), TorchRanks()
    accumulated = ("--batch-size=4", "--grad-accumulation=2")
    synchronized = ("--batch-size=8", "--sync-batchnorm")
    resnet18 = ("--model=resnet18", *synchronized)
    with joined_ranks(CPU) as ranks:
        kept = ranks.averaging(nn.Linear(1, 1), None, 1)
        reducer = weakref.ref(kept.network)
        together = {
            "cnn": trained(ranks, "--batch-size=8"),
            "accumulation": trained(ranks, *accumulated),
            "bfloat16": trained(ranks, "--batch-size=8", "--bf16"),
            "Horovod's accumulation": trained(horovod, *accumulated),
            "SyncBatchNorm": trained(ranks, *synchronized, network=smooth),
            "resnet18": trained(ranks, *resnet18, network=in_float64, epochs=1),
            "BatchNorm": trained(ranks, "--batch-size=8", network=smooth),
        }
        beside = {
            "cnn": trained(horovod, "--batch-size=8"),
            "BatchNorm": trained(horovod, "--batch-size=8", network=smooth),
        }
        found = {f"{name} by Horovod": difference(together[name], state) for name, state in beside.items()}
        if ranks.rank == 0:
            whole = trained(alone, "--batch-size=16")
            one = dict.fromkeys(("cnn", "accumulation", "bfloat16", "Horovod's accumulation"), whole)
            one["SyncBatchNorm"] = trained(alone, "--batch-size=16", network=smooth)
            one["resnet18"] = trained(
                alone, "--model=resnet18", "--batch-size=16", network=in_float64, epochs=1
            )
            together["accumulation of one process"] = trained(
                alone, "--batch-size=4", "--grad-accumulation=4"
            )
            one["accumulation of one process"] = whole
            found |= {name: difference(together[name], state) for name, state in one.items()}
    assert reducer() is None, "it would wait for gloo's threads for ever"
    if ranks.rank == 0:
        print(json.dumps(found), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()

"""Each network divided between two ranks, beside the same without a division.

    RANK=… WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=… DTJ_ROOT=… python -m tests.trainer.division_nets

Rank 0 prints the largest difference of a weight or statistic for each, as JSON.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
from tests.trainer import division_checks as checks
from tests.trainer.division_checks import Trained, options_of, weights
from tests.trainer.torch_checks import CPU, difference, in_float64
from torch import nn

from dtj_trainer.data.pictures import Pictures, PictureSet
from dtj_trainer.programs.torch_image_classification import ranks_of
from dtj_trainer.torch.c10d_ranks import C10dRanks
from dtj_trainer.torch.models import MODELS
from dtj_trainer.torch.ranks import TensorRanks

STEPS = 6
"""All of them have 16 examples: BatchNorm in a pipeline sees what it sees in passes of one process."""


def without_dropout(*given: object) -> nn.Module:
    """The last stage draws other random numbers than one process."""
    network = in_float64(*given)
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return network


def of_shards(ranks: TensorRanks, name: str) -> float:
    """FSDP beside DistributedDataParallel: each rank's BatchNorm sees the rank's own examples."""
    divided = Trained(ranks, "--fsdp", f"--model={name}", network=in_float64)
    whole = Trained(C10dRanks(), f"--model={name}", network=in_float64)
    for each in (divided, whole):
        each.train(STEPS)
    return difference(whole.state(), weights(divided.state()))


def of_stages(ranks: TensorRanks, name: str) -> float:
    """Micro batches of a pipeline beside passes of one process."""
    # The gradient of a bias before BatchNorm is a rounding error, which the other optimizers enlarge.
    same = (f"--model={name}", "--optimizer=sgd")
    divided = Trained(ranks, "--pipeline-stages=2", "--micro-batches=4", *same, network=without_dropout)
    divided.train(STEPS)
    state = weights(divided.state())
    if ranks.rank != 0:
        return 0.0
    whole = Trained(TensorRanks(), "--batch-size=4", *same, network=without_dropout)
    whole.train(STEPS)
    return difference(whole.state(), state)


def of_shared_layers(ranks: TensorRanks) -> float:
    """VGG16 for 64x64 pictures, whose dense layers have dropout."""
    pixels = np.random.default_rng(1).integers(0, 256, (checks.EXAMPLES, 1, 64, 64)).astype("u1")
    checks.PICTURES = Pictures(pixels, np.arange(checks.EXAMPLES) % 10)
    checks.DATA = PictureSet(checks.PICTURES, checks.PICTURES, 10)
    options = ("--model=vgg16", "--optimizer=sgd", "--momentum=0")
    divided = Trained(ranks, "--tensor-parallel=2", *options)
    divided.train(2)
    state = weights(divided.state())
    if ranks.rank != 0:
        return 0.0
    del divided
    whole = Trained(TensorRanks(), *options)
    whole.train(2)
    return difference(whole.state(), state)


def main() -> None:
    torch.set_num_threads(1)
    found = {}
    with ranks_of(options_of("--fsdp"), CPU) as ranks:
        for name in sys.argv[1:] or MODELS:
            found[f"{name} in shards"] = of_shards(ranks, name)
            found[f"{name} in stages"] = of_stages(ranks, name)
            print(name, found, file=sys.stderr, flush=True)
        found["vgg16 with shared layers"] = of_shared_layers(ranks)
        if ranks.rank == 0:
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

"""`python -m tests.gpu.rates DATA SHARDS CACHE WAY…`: a line of JSON for each way, with examples a second.

A way is dtj beside a loop by hand, which has the same network, batch and precision, and the data in the memory of the
device. Both take turns. The last line is of dtj alone with shards at the S3 URI SHARDS, and with the folder CACHE.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from dtj_trainer.data.pictures import PictureSet
from dtj_trainer.data.sharding import Sharding
from dtj_trainer.torch.model import TorchModel, _statistics
from dtj_trainer.torch.models import MODELS, build
from dtj_trainer.torch.ranks import TensorRanks
from dtj_trainer.train.batches import picture_batches
from dtj_trainer.train.loop import Training
from dtj_trainer.train.options import TrainingOptions, parse
from dtj_trainer.train.protocols import Position, Saver
from dtj_trainer.train.report import TrainingReport
from dtj_trainer.train.stop import StopRequest

WAYS = {
    "fp32": ["--no-amp"],
    "bf16": ["--amp-dtype=bfloat16"],
    "fp16": ["--amp-dtype=float16"],
    "channels-last": ["--amp-dtype=bfloat16", "--channels-last"],
    "compile": ["--amp-dtype=bfloat16", "--compile"],
}
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
MODEL, BATCH = ("resnet18", 2048) if GPU else ("cnn", 64)
"""With a batch of 512, an H200 waited half of the time for the CPU to start its kernels, by hand as by dtj."""
WARM_STEPS, STEPS, ROUNDS = (10, 40, 5) if GPU else (2, 10, 1)


class NoSaver(Saver):
    """Saves nothing."""

    def resume(self) -> tuple[Position, dict[str, Any] | None]:
        """See Saver."""
        return Position(), None

    def save(self, *_: object, **__: object) -> None:
        """See Saver."""

    def export(self, at: Position, accuracy: float | None) -> Mapping[str, object]:
        """See Saver."""
        del at, accuracy
        return {}


def options_of(*words: str) -> TrainingOptions:
    """Return the options of a training."""
    fixed = [
        f"--model={MODEL}",
        f"--batch-size={BATCH}",
        "--epochs=100000",
        "--no-export",
        "--data-workers=4",
    ]
    name = "dtj_trainer.programs.torch_image_classification"
    of_pytorch = {"grad_accumulation": True, "sync_batchnorm": True, "pytorch": True, "division": True}
    return parse([*fixed, *words], name, "", MODELS, **of_pytorch)


def by_dtj(options: TrainingOptions, data: PictureSet) -> Callable[[int], None]:
    """Return what trains so many steps more, with the loop, the batches and the reports of the program."""
    ranks = TensorRanks()
    model = TorchModel(options, data, DEVICE, ranks)
    sharding = Sharding(
        data.train.blocks, options.batch_size, rank=0, ranks=1, seed=1, step_size=options.step_size(1)
    )
    batches = picture_batches(
        data.train, sharding, model.prepare, workers=options.data_workers, augment=False, seed=1
    )
    at = Position()
    stop = StopRequest()

    def train(steps: int) -> None:
        until = replace(options, max_steps=at.step + steps)
        report = TrainingReport(until, 1, len(data.train), at.step)
        Training(until, batches, model, ranks, NoSaver(), at, None, stop, report).run()

    return train


def by_hand(options: TrainingOptions, data: PictureSet) -> Callable[[int], None]:
    """Return what trains so many steps more, in a loop that does nothing else."""
    read = data.train.read(torch.arange(len(data.train)).numpy())
    pixels, labels = torch.from_numpy(read.pixels).to(DEVICE), torch.from_numpy(read.labels).to(DEVICE)
    layout = torch.channels_last if options.channels_last else torch.preserve_format
    network = build(options.model, data.shape, data.classes, *_statistics(data)).to(DEVICE)
    network = network.to(memory_format=layout).train()  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(
        network.parameters(), options.lr, options.momentum, weight_decay=options.weight_decay, fused=True
    )
    if options.compile:
        network.compile()
    kind = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(options.amp_dtype or "")
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=kind is torch.float16)
    order = torch.randperm(len(pixels), device=DEVICE)
    begin = 0

    def train(steps: int) -> None:
        nonlocal begin, order
        for _ in range(steps):
            if begin + BATCH > len(order):
                begin, order = 0, torch.randperm(len(pixels), device=DEVICE)
            chosen = order[begin : begin + BATCH]
            begin += BATCH
            optimizer.zero_grad()
            with torch.autocast(DEVICE.type, dtype=kind) if kind else nullcontext():
                given = (
                    pixels[chosen].contiguous(memory_format=layout)
                    if options.channels_last
                    else pixels[chosen]
                )
                logits = network(given)
            loss = functional.cross_entropy(logits.float(), labels[chosen])
            torch.autograd.backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()

    return train


def rate(train: Callable[[int], None]) -> float:
    """Return the examples a second of STEPS steps."""
    _settle()
    began = time.monotonic()
    train(STEPS)
    _settle()
    return STEPS * BATCH / (time.monotonic() - began)


def _settle() -> None:
    if GPU:
        torch.cuda.synchronize()


def compared(words: list[str], data: PictureSet) -> dict[str, float]:
    """Return the medians of both ways, and that of the rounds' ratios."""
    options = options_of(*words)
    ours, theirs = by_dtj(options, data), by_hand(options, data)
    for train in (ours, theirs):
        train(WARM_STEPS)
    pairs = []
    for number in range(ROUNDS):
        # The way that goes first finds another machine than the way that goes last.
        ways = (ours, theirs)[:: 1 if number % 2 == 0 else -1]
        found = {train: rate(train) for train in ways}
        pairs.append((found[ours], found[theirs]))
    return {
        "dtj": statistics.median(pair[0] for pair in pairs),
        "hand": statistics.median(pair[1] for pair in pairs),
        "ratio": statistics.median(mine / other for mine, other in pairs),
    }


def stored(uri: str, cache: str) -> dict[str, float]:
    """Return the rates with shards in S3: while they fill the cache, and in a second training from the cache."""
    found = {}
    for name in ("S3, into the cache", "the cache"):
        options = options_of(f"--data={uri}", f"--data-cache={cache}")
        train = by_dtj(options, options.load())
        if name == "the cache":
            train(WARM_STEPS)
        found[f"examples/s from {name}"] = rate(train)
    return found


def main(data: str, shards: str, cache: str, *ways: str) -> None:
    """Print the lines."""
    pictures = options_of(f"--data={data}").load()
    for way in ways:
        print(json.dumps(compared(WAYS[way], pictures)), flush=True)
    print(json.dumps(stored(shards, cache)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

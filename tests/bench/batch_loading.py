"""Benchmark of the program's batch loader against a loop that reads the same pictures in the same order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np
import torch

from dtj_trainer.data.pictures import Pictures, load_pictures
from dtj_trainer.data.sharding import Sharding
from dtj_trainer.train.batches import picture_batches

BATCH_SIZE = 64
SEED = 1
WORKERS = 1
EPOCHS = 10


def rates(data: str) -> tuple[Callable[[], float], Callable[[], float]]:
    """Examples a second, by the loader and bare; each call makes some more epochs."""
    torch.set_num_threads(1)  # As ranks that share a machine have it.
    pictures = load_pictures(data).train
    sharding = Sharding(len(pictures), BATCH_SIZE, rank=0, ranks=1, seed=SEED)
    batches = picture_batches(pictures, sharding, prepared, workers=WORKERS, augment=False, seed=SEED)
    return (
        lambda: _rate(len(pictures), lambda: (batch.data for batch in batches.epoch(0, 0))),
        lambda: _rate(len(pictures), lambda: _bare(pictures, sharding)),
    )


def _bare(pictures: Pictures, sharding: Sharding) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    order = sharding.order(0)
    for start in range(0, len(order), BATCH_SIZE):
        chosen = order[start : start + BATCH_SIZE]
        yield prepared(pictures.pixels[chosen], pictures.labels[chosen])


def prepared(pixels: np.ndarray, labels: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """What a network of PyTorch takes."""
    return torch.from_numpy(pixels).float().div_(255), torch.from_numpy(labels)


def _rate(examples: int, epoch: Callable[[], Iterable[object]]) -> float:
    began = time.monotonic()
    for _ in range(EPOCHS):
        for _ in epoch():
            pass
    return EPOCHS * examples / (time.monotonic() - began)

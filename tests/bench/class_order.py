"""What the order of a set that is sorted by class costs in accuracy: a part of `make bench-data`.

A small network trains on pictures of Fashion-MNIST, as dtj's own order deals them: shuffled shards, shards sorted by
class, and the same sorted shards in the order of windows, which dtj uses for sets that it does not know to be sorted.
A block of 1 MiB has 10 pictures, as of photographs of 100 KB: the memory of a rank holds a twelfth of the set.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterator
from statistics import fmean, variance

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dtj_trainer.data.sharding import Sharding
from dtj_trainer.data.spread import Stock
from tests import fashion_mnist
from tests.bench.targets import Target
from tests.cluster.progress import note

EXAMPLES, OF_BLOCK, BATCH, EPOCHS, RATE = 24_000, 10, 128, 3, 0.05
SEEDS = range(1, 6)
SHUFFLED, SORTED, WINDOWS = "shuffled shards", "sorted by class", "sorted, in the order of windows"
Pictures = tuple[Tensor, Tensor]


def targets() -> list[Target]:
    """The bounds: differences of mean accuracies, in units of two standard errors."""
    return [
        Target("accuracy lost, sorted by class", f"lost: {SORTED}", 1, of_a_ratio=True),
        Target("accuracy lost, windows", f"lost: {WINDOWS}", 1, at_least=True, of_a_ratio=True),
    ]


def figures() -> dict[str, float]:
    """The mean accuracy of each order over the seeds, and what the others lose against shuffled shards."""
    pixels, labels = _read("train")
    chosen = np.random.default_rng(3).permutation(len(labels))[:EXAMPLES]
    by_class = chosen[np.argsort(labels[chosen], kind="stable")]
    test = _tensors(*_read("t10k"))
    count = EXAMPLES // OF_BLOCK
    stock = Stock(labels[by_class][::OF_BLOCK], np.full(count, 1 << 20))
    orders = {SHUFFLED: (chosen, None), SORTED: (by_class, stock), WINDOWS: (by_class, None)}
    found: dict[str, list[float]] = {}
    for seed in SEEDS:
        for name, (ids, known) in orders.items():
            sharding = Sharding(np.full(count, OF_BLOCK), BATCH, rank=0, ranks=1, seed=seed, stock=known)
            found.setdefault(name, []).append(
                _accuracy(_tensors(pixels[ids], labels[ids]), test, sharding, seed)
            )
            note(f"seed {seed}: {name}: accuracy {found[name][-1]:.4f}")
    told = {f"accuracy, {name}": fmean(each) for name, each in found.items()}
    for name in (SORTED, WINDOWS):
        error = math.sqrt((variance(found[name]) + variance(found[SHUFFLED])) / len(SEEDS))
        told[f"lost: {name}"] = (fmean(found[SHUFFLED]) - fmean(found[name])) / (2 * error)
    return told


def _accuracy(train: Pictures, test: Pictures, sharding: Sharding, seed: int) -> float:
    """Train a network with BatchNorm by one rank; the share of right answers in the test set."""
    torch.manual_seed(seed)
    network = nn.Sequential(*_layers(train[0].shape[1]))
    optimizer = torch.optim.SGD(network.parameters(), RATE, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * sharding.steps())
    for epoch in range(EPOCHS):
        for share in sharding.epoch(epoch):
            ids = torch.from_numpy(share.indices)
            optimizer.zero_grad()
            functional.cross_entropy(network(train[0][ids]), train[1][ids]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    network.eval()
    with torch.inference_mode():
        return float((network(test[0]).argmax(1) == test[1]).double().mean())


def _layers(inputs: int) -> Iterator[nn.Module]:
    for size in (inputs, 96):
        yield from (nn.Linear(size, 96), nn.BatchNorm1d(96), nn.ReLU())
    yield nn.Linear(96, 10)


def _tensors(pixels: np.ndarray, labels: np.ndarray) -> Pictures:
    return torch.from_numpy(pixels.astype(np.float32)) / 255 - 0.2856, torch.from_numpy(labels)


def _read(part: str) -> tuple[np.ndarray, np.ndarray]:
    """The pixels, a row for each picture, and the labels of a part of Fashion-MNIST."""
    folder = fashion_mnist.folder()

    def content(kind: str, head: int) -> np.ndarray:
        return np.frombuffer(
            gzip.decompress((folder / f"{part}-{kind}-ubyte.gz").read_bytes())[head:], np.uint8
        )

    labels = content("labels-idx1", 8).astype(np.int64)
    return content("images-idx3", 16).reshape(len(labels), -1), labels

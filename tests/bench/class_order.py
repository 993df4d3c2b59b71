"""What the order of a set that is sorted by class costs: a part of `make bench-data`. Alone: `python -m
tests.bench.class_order`.

Requests and bytes are those of one rank's epoch, from a set of 600 MB whose blocks have 10 pictures, beside the same
pictures shuffled: 10 classes, one after the other. Bits are those of the classes of a step and of a rank's batch, the
fewer of both, beside a true shuffle's.

For the accuracy, a small network trains on pictures of Fashion-MNIST, as dtj's own order deals them: shuffled shards,
shards sorted by class, and the same sorted shards in the order of windows, which dtj uses for sets that it does not
know to be sorted. A block of 1 MiB has 10 pictures, as of photographs of 100 KB: the memory of a rank holds a twelfth
of the set.
"""

from __future__ import annotations

import gzip
import io
import math
import shutil
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, variance
from tempfile import TemporaryDirectory
from unittest import mock

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from dtj_trainer.data import stage
from dtj_trainer.data.label_counts import counts_of
from dtj_trainer.data.mixing import GOOD_SHARE, mixing
from dtj_trainer.data.ranged import FolderObjects, Range
from dtj_trainer.data.sharding import Sharding
from dtj_trainer.data.spread import Stock
from dtj_trainer.data.stored_set import open_stored_set
from tests import fashion_mnist
from tests.bench.figures import table
from tests.bench.targets import Target, verdicts
from tests.cluster.progress import note

EXAMPLES, OF_BLOCK, BATCH, EPOCHS, RATE = 24_000, 10, 128, 3, 0.05
SEEDS = range(1, 6)
SHUFFLED, SORTED, WINDOWS = "shuffled shards", "sorted by class", "sorted, in the order of windows"
Pictures = tuple[Tensor, Tensor]
READ, SIDE, STEP = 6_000, 182, 128
"""Pictures of the set that is read, each of 100 KB, and examples of a step."""
SETS = {
    "1,000 classes, 9 a block": (1000, 1281, 9, 64),
    "130 classes, 200 a block": (130, 500, 200, 64),
    "10 classes, 10 a block": (10, 1000, 10, 32),
    "10 classes, 400 a block": (10, 5000, 400, 64),
}
"""Classes, examples of each, examples of a block, and the batch of each of 4 ranks."""


def targets() -> list[Target]:
    """The bounds. Differences of mean accuracies are in units of two standard errors."""
    return [
        Target("requests, sorted by class", "requests", 2, of_a_ratio=True),
        Target("bytes, sorted by class", "bytes", 1.02, of_a_ratio=True),
        *(
            Target(f"bits, {name}", f"bits, {name}", GOOD_SHARE, at_least=True, of_a_ratio=True)
            for name in SETS
        ),
        Target("accuracy lost, sorted by class", f"lost: {SORTED}", 1, of_a_ratio=True),
        Target("accuracy lost, windows", f"lost: {WINDOWS}", 1, at_least=True, of_a_ratio=True),
    ]


def figures(folder: Path) -> dict[str, float]:
    """All figures. The sets are written below the folder."""
    return _reads(folder) | _bits() | _accuracies()


def _reads(folder: Path) -> dict[str, float]:
    """The requests and bytes of an epoch of a set that is sorted by class, to those of the same set shuffled."""
    labels = np.repeat(np.arange(10), READ // 10)
    orders = {"sorted": np.arange(READ), "shuffled": np.random.default_rng(1).permutation(READ)}
    found: dict[str, tuple[int, int]] = {}
    for name, order in orders.items():
        _write(folder / name, labels[order])
        if stage.main([str(folder / name)]):
            raise RuntimeError(f"{folder / name} can't be indexed")
        asked = _epoch(str(folder / name))
        shutil.rmtree(folder / name)
        found[name] = len(asked), sum(asked)
        note(f"{name}: {len(asked)} requests, {sum(asked) / 1e6:.0f} MB")
    requests, size = (mine / other for mine, other in zip(found["sorted"], found["shuffled"], strict=True))
    return {"requests": requests, "bytes": size}


def _write(folder: Path, labels: np.ndarray) -> None:
    """Write shards of 60 MB, of pictures that differ in their label alone, and a small test set."""
    contents = []
    for label in range(10):
        content = io.BytesIO()
        Image.fromarray(np.full((SIDE, SIDE, 3), label, np.uint8)).save(content, "BMP")
        contents.append(content.getvalue())
    parts = {f"train/{number}": part for number, part in enumerate(np.array_split(labels, 10))}
    for name, part in (parts | {"test/0": np.arange(10)}).items():
        path = folder / f"{name}.tar"
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w") as shard:
            for number, label in enumerate(part):
                for ending, stored in (("bmp", contents[label]), ("cls", str(label).encode())):
                    entry = tarfile.TarInfo(f"{number:06d}.{ending}")
                    entry.size = len(stored)
                    shard.addfile(entry, io.BytesIO(stored))


def _epoch(uri: str) -> list[int]:
    """Read an epoch as a single rank does; the bytes of each request."""
    asked: list[int] = []
    read = FolderObjects.read

    def counted(objects: FolderObjects, range_: Range) -> bytes:
        asked.append(range_.length)
        return read(objects, range_)

    opened = open_stored_set(uri)
    assert opened
    examples = opened.examples("train")
    sharding = Sharding(examples.blocks, STEP, rank=0, ranks=1, seed=1, stock=examples.stock)
    seen = Counter[int]()
    with mock.patch.object(FolderObjects, "read", counted):
        examples.expect(share.indices for share in sharding.epoch(0))
        for share in sharding.epoch(0):
            seen.update(examples.read(share.indices).labels.tolist())
    assert set(seen.values()) == {READ // 10}, seen
    opened.close()
    return asked


def _bits() -> dict[str, float]:
    """The bits of each of SETS, to a true shuffle's."""
    found = {}
    for name, (classes, each, block, batch) in SETS.items():
        labels = np.repeat(np.arange(classes), each).tolist()
        counts = counts_of([Counter(labels[at : at + block]) for at in range(0, len(labels), block)])
        mixed = mixing(counts, np.full(len(counts.distinct), 1 << 20), batch, 4)
        note(f"{name}: {mixed.sentence()}")
        found[f"bits, {name}"] = mixed.share
    return found


def _accuracies() -> dict[str, float]:
    """The mean accuracy of each order over the seeds, and what the others lose against shuffled shards."""
    torch.set_num_threads(1)  # Threads of so small a network wait for each other on a busy machine.
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


def main() -> int:
    """Measure and print; 1 where a bound is missed."""
    with TemporaryDirectory(prefix="dtj-bench-") as name:
        found = figures(Path(name))
    print(table({"figure": found}))
    print("\n".join(["", *(lines := verdicts(targets(), found))]))
    return int(any(line.endswith("missed") for line in lines))


if __name__ == "__main__":
    sys.exit(main())

"""Data sets in each format, written once a process by the format's own writer, in a folder and in S3.

* idx; CIFAR-10 and CIFAR-100 in both forms; pictures in folders (Pillow); shards of WebDataset and of TensorFlow
* `staged`: shards that `dtj data stage` makes of pictures in folders
* shards with an index are cut into small blocks, so that a set of 140 pictures has many of them
"""

from __future__ import annotations

import functools
import gzip
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from tests.trainer.conftest import BUCKET
from tests.trainer.idx_files import NAMES, idx_bytes
from tests.trainer.picture_formats import (
    cifar_binary,
    cifar_python,
    encoded,
    pieces,
    python2_pickle,
    slim_example,
    write_folders,
    write_tar,
    write_tfrecords,
)

from dtj_trainer.artifacts.store import open_store
from dtj_trainer.data import stage
from dtj_trainer.data.cache import BlockCache
from dtj_trainer.data.examples import Examples
from dtj_trainer.data.formats import cifar
from dtj_trainer.data.formats import format as shard_format
from dtj_trainer.data.index import INDEX_NAME
from dtj_trainer.data.pictures import load_pictures
from dtj_trainer.data.stored_set import open_stored_set

SIZES = (5, 31, 140)
"""Examples for training. CIFAR-10 has five files."""
TESTED = 3
BLOCK_BYTES = 12_000
SIDE = 32
CLASSES = ("astronaut", "cat", "cup", "rocket")

Arrays = tuple[np.ndarray, np.ndarray]
"""Pixels, uint8, (examples, channels, height, width), and labels."""
Splits = Mapping[str, Arrays]


@functools.cache
def splits(count: int) -> dict[str, Arrays]:
    """Pieces of photographs. Noise makes each one different from all others."""
    made = {}
    for name, size in (("train", count), ("test", TESTED)):
        pixels, labels = pieces(size, SIDE, seed=size)
        noise = np.random.default_rng(size).integers(0, 8, pixels.shape)
        made[name] = pixels ^ noise.astype(np.uint8), labels
    return made


def _parts(arrays: Arrays, count: int) -> Iterator[Arrays]:
    yield from zip(*(np.array_split(each, count) for each in arrays), strict=True)


def write_idx(folder: Path, made: Splits) -> None:
    for (pixels_name, labels_name), split in ((NAMES[:2], "train"), (NAMES[2:], "test")):
        pixels, labels = made[split]
        (folder / f"{pixels_name}.gz").write_bytes(gzip.compress(idx_bytes(pixels[:, 0])))
        (folder / labels_name).write_bytes(idx_bytes(labels.astype("u1")))


def write_cifar10(folder: Path, made: Splits) -> None:
    for number, part in enumerate(_parts(made["train"], 5)):
        (folder / f"data_batch_{number + 1}.bin").write_bytes(cifar_binary(*part))
    (folder / "test_batch.bin").write_bytes(cifar_binary(*made["test"]))


def write_cifar10_python(folder: Path, made: Splits) -> None:
    for number, part in enumerate(_parts(made["train"], 5)):
        (folder / f"data_batch_{number + 1}").write_bytes(python2_pickle(cifar_python(*part)))
    (folder / "test_batch").write_bytes(python2_pickle(cifar_python(*made["test"])))


def write_cifar100(folder: Path, made: Splits) -> None:
    for split, arrays in made.items():
        (folder / f"{split}.bin").write_bytes(cifar_binary(*arrays, coarse=7))


def write_cifar100_python(folder: Path, made: Splits) -> None:
    for split, (pixels, labels) in made.items():
        content = cifar_python(pixels, labels, b"fine_labels") | {b"coarse_labels": [7] * len(labels)}
        (folder / split).write_bytes(python2_pickle(content))


def write_picture_folders(folder: Path, made: Splits) -> None:
    for split, name in (("train", "Training"), ("test", "Test")):
        write_folders(folder / name, encoded(*made[split]), CLASSES)


def write_tars(folder: Path, made: Splits) -> None:
    for split, arrays in made.items():
        for number, part in enumerate(_parts(arrays, 3)):
            write_tar(folder / f"{split}/{number:05d}.tar", encoded(*part))


def write_records(sets: Mapping[Path, Splits]) -> None:
    """Write all sets in one process of TensorFlow, which takes seconds to start."""
    files = {}
    for folder, made in sets.items():
        for split, arrays in made.items():
            for number, part in enumerate(_parts(arrays, 3)):
                written = [slim_example(picture, label) for picture, label in encoded(*part)]
                files[folder / f"pictures_{split}-{number:05d}-of-00003"] = written
    write_tfrecords(files)


def each_set(write: Callable[[Path, Splits], None]) -> Callable[[Mapping[Path, Splits]], None]:
    def write_all(sets: Mapping[Path, Splits]) -> None:
        for folder, made in sets.items():
            write(folder, made)

    return write_all


@dataclass(frozen=True)
class Written:
    """A set as its writer got it, and how a rank opens it. In S3, the blocks of an indexed set are cached."""

    pixels: np.ndarray
    labels: np.ndarray
    uri: str
    indexed: bool
    cache: Path

    @contextmanager
    def opened(self, window: int) -> Iterator[Examples]:
        """Open the examples for training as a rank does."""
        if not self.indexed:
            yield load_pictures(self.uri).train
            return
        cache = BlockCache(self.cache, 10**7) if self.uri.startswith("s3://") else None
        stored = open_stored_set(self.uri, cache=cache, window=window)
        assert stored
        try:
            yield stored.examples("train")
        finally:
            stored.close()


@dataclass(frozen=True)
class FormatSets:
    """The sets of one format. `forms`: whether each has an index."""

    write: Callable[[Mapping[Path, Splits]], None]
    forms: tuple[bool, ...]
    grey: bool = False
    _places: dict[tuple[int, bool, bool], str] = field(default_factory=dict)

    def make(self, folder: Path, number: int, count: int) -> Written:
        """Return a set of `count` examples for the history `number`: in a folder or in S3, with an index or without.

        A process writes each set once.
        """
        indexed, remote = self.forms[number // 2 % len(self.forms)], bool(number % 2)
        if not folder.exists():
            plain = {folder / f"plain-{count}": splits(count) for count in SIZES}
            for path in plain:
                path.mkdir(parents=True)
            self.write(plain)
        place = count, indexed, remote
        if place not in self._places:
            path = _with_index(folder / f"plain-{count}") if indexed else folder / f"plain-{count}"
            self._places[place] = _uploaded(path) if remote else str(path)
        pixels, labels = splits(count)["train"]
        kept = pixels[:, :1] if self.grey else pixels
        return Written(kept, labels, self._places[place], indexed, folder / "cache")


def _with_index(plain: Path) -> Path:
    """Return shards with an index: a copy of those in the folder, or shards that are made of its pictures."""
    folder = plain.with_name(plain.name.replace("plain", "indexed"))
    if folder.exists():
        return folder
    with pytest.MonkeyPatch.context() as patch:
        for module in (shard_format, cifar):
            patch.setattr(module, "BLOCK_BYTES", BLOCK_BYTES)
        if (plain / "Training").exists():
            arguments = [str(plain), str(folder), "--shard-megabytes=0.05"]
        else:
            shutil.copytree(plain, folder)
            arguments = [str(folder)]
        assert stage.main([*arguments, "--processes=1"]) == 0
    assert (folder / INDEX_NAME).exists()
    return folder


def _uploaded(folder: Path) -> str:
    uri = f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}"
    store = open_store(uri)
    for path in folder.rglob("*"):
        if path.is_file():
            store.put_bytes(path.relative_to(folder).as_posix(), path.read_bytes())
    return uri


FORMAT_SETS = {
    "idx": FormatSets(each_set(write_idx), (False,), grey=True),
    "cifar10": FormatSets(each_set(write_cifar10), (False, True)),
    "cifar10-python": FormatSets(each_set(write_cifar10_python), (False,)),
    "cifar100": FormatSets(each_set(write_cifar100), (False, True)),
    "cifar100-python": FormatSets(each_set(write_cifar100_python), (False,)),
    "folders": FormatSets(each_set(write_picture_folders), (False,)),
    "tar": FormatSets(each_set(write_tars), (False, True)),
    "tfrecord": FormatSets(write_records, (False, True)),
    "staged": FormatSets(each_set(write_picture_folders), (True,)),
}

"""Where `stage` takes examples from: any set that dtj reads, in any order, by several processes."""

from __future__ import annotations

import functools
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dtj_trainer.data.dataset import Dataset, read_dataset
from dtj_trainer.data.errors import DataCorrupt, DataNotFound, about
from dtj_trainer.data.files import Files, FolderFiles, StoreFiles
from dtj_trainer.data.folders import PassedOver, folders_of
from dtj_trainer.data.formats.format import Example
from dtj_trainer.data.formats.images import PictureForm
from dtj_trainer.data.order import WINDOW
from dtj_trainer.data.ranged import open_ranges
from dtj_trainer.data.sources import local_folder, s3_source
from dtj_trainer.data.stored_set import StoredSet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dtj_trainer.data.index import DataIndex
    from dtj_trainer.data.stored_examples import StoredExamples

_THREADS = 8
"""How many files a process reads at the same time."""
_BATCH = 64
"""How many examples of shards are read at once."""
Found = tuple[str, "Example | DataCorrupt"]
"""The place of an example, for messages, and the example, or the error of its reading."""


class Origin(Protocol):
    """The examples of a set. Processes exchange origins by pickle, and open the files each for itself."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes. A label is a place in them."""

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of examples of each split."""

    @property
    def channels(self) -> int:
        """1 for grey pictures, 3 for colours."""

    def order(self, split: str, seed: int) -> np.ndarray:
        """Return the numbers of a split's examples, int64, in an order that is fast to read. None is left out."""

    def read(self, split: str, ids: np.ndarray) -> Iterator[Found]:
        """Yield examples, in the order of their numbers."""


@dataclass(frozen=True)
class FolderOrigin:
    """Pictures in folders. `pictures`: path and label of each example of a split."""

    uri: str
    classes: tuple[str, ...]
    pictures: Mapping[str, tuple[tuple[str, int], ...]]
    channels: int = 3
    passed: PassedOver = field(default_factory=PassedOver)

    @property
    def counts(self) -> Mapping[str, int]:
        """See Origin."""
        return {split: len(pictures) for split, pictures in self.pictures.items()}

    def order(self, split: str, seed: int) -> np.ndarray:
        """See Origin."""
        return np.random.default_rng(seed).permutation(len(self.pictures[split]))

    def read(self, split: str, ids: np.ndarray) -> Iterator[Found]:
        """See Origin."""
        chosen = [self.pictures[split][id_] for id_ in ids]
        files = files_at(self.uri)
        with ThreadPoolExecutor(_THREADS) as pool:
            contents = pool.map(functools.partial(_read_file, files), [path for path, _ in chosen])
            for (path, label), content in zip(chosen, contents, strict=True):
                found = content if isinstance(content, DataCorrupt) else Example(content, label)
                yield f"{self.uri.rstrip('/')}/{path}", found


def _read_file(files: Files, path: str) -> bytes | DataCorrupt:
    try:
        return files.read(path)
    except DataCorrupt as error:
        return error


@dataclass(frozen=True)
class DatasetOrigin:
    """A set in one of the layouts that are read whole into memory."""

    uri: str
    classes: tuple[str, ...]
    counts: Mapping[str, int]
    channels: int
    chosen: tuple[str, ...]
    """The classes that were asked for; empty for all."""
    passed: PassedOver = field(default_factory=PassedOver)

    def order(self, split: str, seed: int) -> np.ndarray:
        """See Origin."""
        return np.random.default_rng(seed).permutation(self.counts[split])

    def read(self, split: str, ids: np.ndarray) -> Iterator[Found]:
        """See Origin."""
        pixels, labels = dataset_at(self.uri, self.chosen).splits[split]
        for id_ in ids:
            yield f"{self.uri}, example {id_} of {split}", Example(pixels[id_], int(labels[id_]))


@dataclass(frozen=True)
class ShardsOrigin:
    """Shards with an index. `single`: each block is read by a request of its own."""

    uri: str
    index: DataIndex
    single: bool = False

    @property
    def classes(self) -> tuple[str, ...]:
        """See Origin."""
        return self.index.classes

    @property
    def counts(self) -> Mapping[str, int]:
        """See Origin."""
        return {name: split.examples for name, split in self.index.splits.items()}

    @property
    def channels(self) -> int:
        """See Origin."""
        return len(self.index.mean)

    def order(self, split: str, seed: int) -> np.ndarray:
        """See Origin. This order is slow to read: `stage` first writes the examples in another order."""
        return np.random.default_rng(seed).permutation(self.counts[split])

    def read(self, split: str, ids: np.ndarray) -> Iterator[Found]:
        """See Origin."""
        examples = _examples_of(self, split)
        batches = [ids[first : first + _BATCH] for first in range(0, len(ids), _BATCH)]
        examples.expect(iter(batches))
        for batch in batches:
            found = examples.stored(batch)
            yield from ((examples.where(int(id_)), one) for id_, one in zip(batch, found, strict=True))

    def __hash__(self) -> int:
        """Hash by the URI alone, which is enough because a process opens one set."""
        return hash(self.uri)


@functools.cache
def _examples_of(origin: ShardsOrigin, split: str) -> StoredExamples:
    window = 1 if origin.single else WINDOW
    return StoredSet(origin.index, open_ranges(origin.uri), window=window, skip_corrupt=True).examples(split)


@functools.cache
def files_at(uri: str) -> Files:
    """Return the files at a URI, listed once a process. Raises DataNotFound or DataUnavailable."""
    folder = local_folder(uri)
    return FolderFiles(folder) if folder else StoreFiles(uri, s3_source(uri))


@functools.cache
def dataset_at(uri: str, classes: tuple[str, ...]) -> Dataset:
    """Return the set at a URI, read once a process. Raises DataError."""
    with about(uri):
        return read_dataset(files_at(uri), PictureForm(), classes)


def open_folder(uri: str, classes: Sequence[str]) -> FolderOrigin | None:
    """Return the origin of pictures in folders; None where there are none.

    `classes`: those to take, in the order of their labels; empty for all. Raises DataNotFound.
    """
    folders = folders_of(files_at(uri).names)
    splits = folders.splits
    if not splits:
        return None
    with about(uri):
        folders.check(classes)
    # ImageNet is published with `validation` and without a labelled `test`.
    if "test" not in splits and "validation" in splits:
        splits["test"] = splits.pop("validation")
    there = sorted({name for _, name in splits.get("train", [])})
    for name in classes:
        if name not in there:
            raise DataNotFound(f"{uri} has no class {name!r} for training; there is {', '.join(there[:8])}")
    names = tuple(classes or there)
    labels = {name: label for label, name in enumerate(names)}
    unknown = {name for pictures in splits.values() for _, name in pictures} - set(there)
    if unknown:
        raise DataCorrupt(f"{uri}: the class {min(unknown)!r} has pictures, but none for training")
    pictures = {
        split: tuple((path, labels[name]) for path, name in found if name in labels)
        for split, found in splits.items()
    }
    return FolderOrigin(uri, names, pictures, passed=folders.passed)


def open_dataset(uri: str, classes: Sequence[str]) -> DatasetOrigin:
    """Return the origin of a set that is read whole. `classes`: as for `open_folder`. Raises DataError."""
    dataset = dataset_at(uri, tuple(classes))
    counts = {split: len(labels) for split, (_, labels) in dataset.splits.items()}
    channels = dataset.splits["train"][0].shape[1]
    return DatasetOrigin(uri, dataset.classes, counts, channels, tuple(classes), dataset.passed)


def fingerprint(origin: Origin, uri: str) -> str:
    """Return a text that changes when the set changes."""
    if isinstance(origin, ShardsOrigin):
        return origin.index.to_json().decode()
    return json.dumps([files_at(uri).fingerprint(), origin.classes])

"""Reads sets that fit in memory: which layout lies in a folder, its splits, its classes, its pictures in one form."""

from __future__ import annotations

import io
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from dtj_trainer.data.class_names import EMNIST, distinct, of_lines
from dtj_trainer.data.errors import DataCorrupt, DataNotFound
from dtj_trainer.data.folders import Folders, PassedOver, beside, folders_of, hint
from dtj_trainer.data.formats import FORMATS
from dtj_trainer.data.formats.cifar import (
    CIFAR10,
    CIFAR100,
    BinaryCifar,
    check_labels,
    read_examples,
    read_names,
)
from dtj_trainer.data.formats.idx import class_names, read_idx
from dtj_trainer.data.formats.images import PictureForm, Stack, check_memory, pixels_of
from dtj_trainer.data.index import INDEX_NAME
from dtj_trainer.data.layouts import Layout, fixed_files, layout_of, shards_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dtj_trainer.data.files import Files

_REMOTE_THREADS = 16
Arrays = tuple[np.ndarray, np.ndarray]
"""Pixels, uint8, (examples, channels, height, width), and labels, int64."""


@dataclass(frozen=True)
class Dataset:
    """A set in memory: its splits `train`, `test` and maybe `validation`. A label is a place in `classes`."""

    splits: dict[str, Arrays]
    classes: tuple[str, ...]
    passed: PassedOver = field(default_factory=PassedOver)


def read_dataset(files: Files, form: PictureForm, classes: Sequence[str] = ()) -> Dataset:
    """Read a set of any layout. `classes`: those to take, in the order of their labels; empty for all.

    Raises DataNotFound where there is no known set or class, DataCorrupt, or DataTooLarge.
    """
    layout = layout_of(files.names)
    if layout:
        dataset = _chosen(_read_layout(files, layout), classes)
        passed = beside(files.names, layout.files(files.names) or [])
    elif (folders := folders_of(files.names)).splits:
        folders.check(classes)
        return replace(_complete(_read_folder(files, folders, form, classes)), passed=folders.passed)
    elif any(shards := shards_of(files.names)):
        dataset = _chosen(_read_shards(files, *shards, form), classes)
        read = [name for names in shards[1].values() for name in names]
        passed = beside(files.names, [*read, LABELS_FILE, INDEX_NAME])
    elif found := hint(files.names):
        raise DataNotFound(found)
    else:
        fixed_files(files.names)
    formed = {name: _formed(name, split, form) for name, split in dataset.splits.items()}
    return replace(_complete(Dataset(formed, dataset.classes)), passed=passed)


def known(files: Files) -> bool:
    """Return whether the files are pictures in folders, or shards. Raises DataNotFound for pictures elsewhere."""
    if folders_of(files.names).splits or shards_of(files.names)[0]:
        return True
    if found := hint(files.names):
        raise DataNotFound(found)
    return False


def _complete(dataset: Dataset) -> Dataset:
    """Check that the splits fit together. A set without `test` is tested with its `validation`, as ImageNet is."""
    splits = {name: split for name, split in dataset.splits.items() if len(split[1])}
    if "test" not in splits and "validation" in splits:
        splits["test"] = splits.pop("validation")
    for name in ("train", "test"):
        if name not in splits:
            raise DataNotFound(f"has no examples for {name}; there is {', '.join(splits) or 'nothing'}")
    shapes = {name: pixels.shape[1:] for name, (pixels, _) in splits.items()}
    if len(set(shapes.values())) > 1:
        raise DataCorrupt(f"the pictures of {' and '.join(shapes)} differ in size: {shapes}")
    return Dataset(splits, dataset.classes)


def _chosen(dataset: Dataset, classes: Sequence[str]) -> Dataset:
    if not classes:
        return dataset
    new = np.full(len(dataset.classes), -1)
    places = [label_of_class(name, dataset.classes) for name in classes]
    if len({*places}) < len(places):
        raise DataNotFound(f"has fewer classes than {', '.join(classes)}: two of these are the same class")
    new[places] = range(len(places))
    splits = {}
    for split, (pixels, labels) in dataset.splits.items():
        kept = np.flatnonzero(new[labels] >= 0)
        splits[split] = pixels[kept], new[labels[kept]]
    return Dataset(splits, tuple(dataset.classes[place] for place in places))


def label_of_class(name: str, classes: Sequence[str]) -> int:
    """Return the label of a class by its name, or by its number where no class has that name."""
    if name not in classes and name.isdecimal() and int(name) < len(classes):
        return int(name)
    if name not in classes:
        raise DataNotFound(
            f"has no class {name!r}; there is {', '.join(classes[:8])}{', …' * (len(classes) > 8)}"
        )
    return classes.index(name)


def _formed(name: str, split: Arrays, form: PictureForm) -> Arrays:
    pixels, labels = split
    _, channels, height, width = pixels.shape
    if form.size in (None, height) and form.size in (None, width) and form.channels in (None, channels):
        return split
    stack = Stack(len(pixels))
    for number, picture in enumerate(pixels):
        where = f"{name}, example {number}"
        stack.add(pixels_of(picture, form, where=where), where=where)
    return stack.pixels, labels


def _numbers(splits: dict[str, Arrays]) -> tuple[str, ...]:
    """Name classes by their numbers where the set has no names."""
    return tuple(map(str, range(max(int(labels.max(initial=0)) for _, labels in splits.values()) + 1)))


def _read_layout(files: Files, layout: Layout) -> Dataset:
    names = layout.files(files.names) or []
    named = layout.class_names if layout.class_names in files.names else None
    wanted = names[1:] if named else names
    train, test = wanted[: len(layout.train)], wanted[len(layout.train) :]
    if layout.emnist:
        splits = {"train": _read_emnist(files, layout.emnist, *train)}
        splits["test"] = _read_emnist(files, layout.emnist, *test)
        return Dataset(splits, tuple(EMNIST[layout.emnist]))
    if layout.name == "idx":
        splits = {"train": _read_idx(files, *train), "test": _read_idx(files, *test)}
        numbers = _numbers(splits)
        published = [class_names(labels) for _, labels in splits.values()]
        return Dataset(splits, next((each for each in published if len(each) == len(numbers)), numbers))
    cifar = CIFAR100 if layout.name.startswith("cifar100") else CIFAR10
    python = layout.name.endswith("python")
    splits = {
        split: _joined([_read_cifar(files.read(name), cifar, python, name) for name in part])
        for split, part in (("train", train), ("test", test))
    }
    return Dataset(splits, _cifar_names(files, named, cifar, python))


def _read_idx(files: Files, pixels_name: str, labels_name: str) -> Arrays:
    pixels = read_idx(files.read(pixels_name), where=pixels_name)
    labels = read_idx(files.read(labels_name), where=labels_name)
    if pixels.ndim != 3 or pixels.dtype != np.uint8:
        raise DataCorrupt(
            f"{pixels_name} holds no pictures: its shape is {pixels.shape}, its type {pixels.dtype}"
        )
    if labels.shape != (len(pixels),):
        raise DataCorrupt(f"{labels_name} has {labels.size} labels for {len(pixels)} pictures")
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= _MAX_IDX_LABEL:
        raise DataCorrupt(
            f"{labels_name} holds values that are no labels: a label is a whole number from 0 to {_MAX_IDX_LABEL - 1}"
        )
    return pixels[:, None], labels.astype("int64")


def _read_emnist(files: Files, kind: str, pixels_name: str, labels_name: str) -> Arrays:
    """Read a split of EMNIST, whose pictures are stored column by column."""
    pixels, labels = _read_idx(files, pixels_name, labels_name)
    labels -= kind == "letters"
    check_labels(labels, len(EMNIST[kind]), where=labels_name)
    return np.ascontiguousarray(pixels.swapaxes(2, 3)), labels


_MAX_IDX_LABEL = 1 << 16
LABELS_FILE = "labels.txt"
"""The file beside shards with the names of the classes."""


def _read_cifar(content: bytes, cifar: BinaryCifar, python: bool, name: str) -> Arrays:
    if python:
        labels = "fine_labels" if cifar is CIFAR100 else "labels"
        return read_examples(content, labels, cifar.classes, where=name)
    return cifar.arrays(content, where=name)


def _cifar_names(files: Files, name: str | None, cifar: BinaryCifar, python: bool) -> tuple[str, ...]:
    if name is None:
        return tuple(map(str, range(cifar.classes)))
    content = files.read(name)
    if python:
        key = "fine_label_names" if cifar is CIFAR100 else "label_names"
        names = read_names(content, key, where=name)
    else:
        names = tuple(content.decode("utf-8", "replace").split())
    if len(names) != cifar.classes:
        raise DataCorrupt(f"{name} has {len(names)} names, where {cifar.name} has {cifar.classes} classes")
    return distinct(names)


def _joined(parts: list[Arrays]) -> Arrays:
    return np.concatenate([pixels for pixels, _ in parts]), np.concatenate([labels for _, labels in parts])


@contextmanager
def _threads(files: Files) -> Iterator[ThreadPoolExecutor]:
    """Provide threads for decoding, and for requests. At an error, calls that have not begun are cancelled."""
    pool = ThreadPoolExecutor(_REMOTE_THREADS if files.remote else len(os.sched_getaffinity(0)))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _read_folder(files: Files, folders: Folders, form: PictureForm, wanted: Sequence[str]) -> Dataset:
    folder = folders.splits
    there = sorted({name for _, name in folder.get("train", [])})
    classes = tuple(there[label_of_class(name, there)] for name in wanted) or tuple(there)
    labels = {name: label for label, name in enumerate(classes)}
    splits = {}
    with _threads(files) as pool:
        for split, pictures in folder.items():
            taken = [(path, labels.get(name, -1)) for path, name in pictures if not wanted or name in labels]
            for path, label in taken:
                if label < 0:
                    raise DataCorrupt(f"{path} is of a class that the pictures for training don't have")

            def decode(path: str) -> np.ndarray:
                return pixels_of(files.read(path), form, where=path)

            stack = Stack(len(taken))
            paths = [path for path, _ in taken]
            for path, pixels in zip(paths, pool.map(decode, paths), strict=True):
                stack.add(pixels, where=path)
            splits[split] = stack.pixels, np.array([label for _, label in taken], np.int64)
    return Dataset(splits, classes)


def _read_shards(files: Files, kind: str, shards: dict[str, list[str]], form: PictureForm) -> Dataset:
    if "" in shards:
        raise DataNotFound(
            f"has {shards[''][0]}, whose path names no split: a shard's path has the word train, test or validation"
        )
    splits = {}
    with _threads(files) as pool:
        for split, names in shards.items():
            parts = list[Arrays]()
            for name in names:
                parts.append(_read_shard(files.read(name), kind, name, form, pool))
                check_memory(sum(pixels.nbytes for pixels, _ in parts), split)
            if len({pixels.shape[1:] for pixels, _ in parts}) > 1:
                raise DataCorrupt(
                    f"the pictures of {split} differ in size, and need an image size (--image-size)"
                )
            splits[split] = _joined(parts)
    numbers = _numbers(splits)
    named = of_lines(files.read(LABELS_FILE)) if LABELS_FILE in files.names else numbers
    if len(named) < len(numbers):
        raise DataCorrupt(f"{LABELS_FILE} has {len(named)} names, and there is the label {len(numbers) - 1}")
    return Dataset(splits, named)


def _read_shard(content: bytes, kind: str, name: str, form: PictureForm, pool: ThreadPoolExecutor) -> Arrays:
    reader = FORMATS[kind]
    cuts = list(reader.blocks(io.BytesIO(content), len(content), where=name))
    stack, labels = Stack(sum(cut.examples for cut in cuts)), list[int]()
    view = memoryview(content)
    for cut in cuts:
        where = f"{name}, bytes {cut.offset} to {cut.offset + cut.length}"
        examples = list(reader.examples(view[cut.offset : cut.offset + cut.length], where=where))
        names = [f"{where}, example {number}" for number in range(len(examples))]

        def decode(picture: bytes | np.ndarray, place: str) -> np.ndarray:
            return pixels_of(picture, form, where=place)

        pictures = [example.picture for example in examples]
        for pixels, place in zip(pool.map(decode, pictures, names), names, strict=True):
            stack.add(pixels, where=place)
        labels += [example.label for example in examples]
    return stack.pixels, np.array(labels, np.int64)

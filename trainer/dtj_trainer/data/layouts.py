"""Names of the files of published data sets. Standard library only: `dtj-launch` reads this module too."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from dtj_trainer.data.class_names import EMNIST
from dtj_trainer.data.errors import DataNotFound

Choice = tuple[str, ...]
"""The accepted names of a file, of which the first existing one is used."""
SPLITS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
}
"""The split that a word in the name of a folder or shard stands for."""
PICTURE_FILES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff")


@dataclass(frozen=True)
class Layout:
    """A data set of files with fixed names. `class_names`: the file with the names of the classes, if there is one.

    `emnist`: which of EMNIST's sets this is.
    """

    name: str
    train: tuple[Choice, ...]
    test: tuple[Choice, ...]
    class_names: str | None = None
    emnist: str | None = None

    def files(self, names: Collection[str]) -> list[str] | None:
        """Return which of `names` to read, that of the classes first; None where one is missing."""
        chosen = [_first(choice, names) for choice in (*self.train, *self.test)]
        if "" in chosen:
            return None
        return [self.class_names, *chosen] if self.class_names in names and self.class_names else chosen

    def missing(self, names: Collection[str]) -> list[str]:
        """Return the missing files, as `a.gz or a`."""
        return [" or ".join(choice) for choice in (*self.train, *self.test) if not _first(choice, names)]


def _idx(part: str) -> tuple[Choice, ...]:
    return tuple(
        (f"{part}-{kind}-ubyte.gz", f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1")
    )


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
MNIST = Layout("idx", _idx("train"), _idx("t10k"))
"""Pictures and labels of each split. Fashion-MNIST and KMNIST use the same names."""
LAYOUTS = (
    MNIST,
    *(
        Layout(f"emnist-{kind}", _idx(f"emnist-{kind}-train"), _idx(f"emnist-{kind}-test"), emnist=kind)
        for kind in EMNIST
    ),
    Layout(
        "cifar10", tuple((f"{name}.bin",) for name in _BATCHES), (("test_batch.bin",),), "batches.meta.txt"
    ),
    Layout("cifar10-python", tuple((name,) for name in _BATCHES), (("test_batch",),), "batches.meta"),
    Layout("cifar100", (("train.bin",),), (("test.bin",),), "fine_label_names.txt"),
    Layout("cifar100-python", (("train",),), (("test",),), "meta"),
)


def layout_of(names: Collection[str]) -> Layout | None:
    """Return the layout whose files are all in `names`, the names of a folder's files.

    Raises DataNotFound for several of EMNIST's sets: its archive unpacks six into one folder.
    """
    found = [layout for layout in LAYOUTS if layout.files(names)]
    kinds = [layout.emnist for layout in found if layout.emnist]
    if len(kinds) > 1:
        raise DataNotFound(
            f"has {len(kinds)} sets of EMNIST, {', '.join(map(str, kinds))}: a set is read from a folder of its own"
        )
    return next(iter(found), None)


def fixed_files(names: Collection[str]) -> list[str]:
    """Return which of the files at a URI make a set of a layout. Raises DataNotFound, which says what is missing."""
    layout = layout_of(names)
    if layout is not None:
        return layout.files(names) or []
    nearest = min(LAYOUTS, key=lambda layout: len(layout.missing(names)) / len(layout.train + layout.test))
    raise DataNotFound(
        f"has no {', no '.join(nearest.missing(names))}; there is {', '.join(sorted(names)[:8]) or 'nothing'}"
    )


def shards_of(names: Collection[str]) -> tuple[str, dict[str, list[str]]]:
    """Return the format, `tar` or `tfrecord`, and each split's shards by name; no split where there are no shards.

    The split is the first word for one in the path: `train/000.tar`, `cifar10_test.tfrecord`, `val-00000-of-00002`.
    """
    for format_name, pattern in (
        ("tar", r".*\.tar"),
        ("tfrecord", r".*(\.tfrecords?|-\d{5}-of-\d{5})(-\d{5}-of-\d{5})?"),
    ):
        splits: dict[str, list[str]] = {}
        for name in sorted(names):
            if re.fullmatch(pattern, name, re.DOTALL):
                splits.setdefault(_split_in(name), []).append(name)
        if splits:
            return format_name, splits
    return "", {}


def _split_in(path: str) -> str:
    """Return the split that a word of the path names; an empty text where none does."""
    return next((SPLITS[word] for word in re.split("[^a-z]+", path.lower()) if word in SPLITS), "")


def _first(choice: Choice, names: Collection[str]) -> str:
    return next((name for name in choice if name in names), "")

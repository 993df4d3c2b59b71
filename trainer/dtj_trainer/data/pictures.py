"""Reads labelled pictures in published layouts into memory."""

from __future__ import annotations

import logging
import operator
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dtj_trainer import contract
from dtj_trainer.data.errors import DataNotFound, about
from dtj_trainer.data.files import FolderFiles
from dtj_trainer.data.formats.images import Form
from dtj_trainer.data.sources import local_folder
from dtj_trainer.data.unpacked import read_again, read_once
from dtj_trainer.data.whole import read_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dtj_trainer.data.cache import BlockCache
    from dtj_trainer.data.examples import Examples
    from dtj_trainer.data.stored_set import StoredSet
    from dtj_trainer.data.whole import Whole

log = logging.getLogger(__name__)

ALL_AS_THEY_ARE = Form()
_GREY = (0.299, 0.587, 0.114)
"""The parts of red, green and blue in grey, as ITU-R 601-2 and PIL have them."""


@dataclass(frozen=True)
class Pictures:
    """Examples in memory: see Examples.

    `pixels`: uint8, (examples, channels, height, width). `labels`: int64, (examples,).
    """

    pixels: np.ndarray
    labels: np.ndarray

    @property
    def blocks(self) -> np.ndarray:
        """See Examples."""
        return np.array([len(self)])

    @property
    def stock(self) -> None:
        """See Examples."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """See Examples."""
        _, channels, height, width = self.pixels.shape
        return channels, height, width

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.labels)

    def read(self, ids: np.ndarray) -> Pictures:
        """See Examples. The result has copies."""
        return Pictures(self.pixels[ids], self.labels[ids])

    def readable(self) -> Pictures:
        """Return the examples but for those that could not be read, which have the label -1."""
        return self.read(np.flatnonzero(self.labels >= 0)) if (self.labels < 0).any() else self

    def mixing(self, batch: int, ranks: int) -> None:
        """See Examples. Examples in memory are shuffled as a whole."""

    def widen(self, times: float) -> None:
        """See Examples."""

    def expect(self, ids: Iterator[np.ndarray]) -> None:
        """See Examples."""


@dataclass(frozen=True)
class PictureSet:
    """A data set with its published split. Labels run from 0 to `classes` - 1, and are places in `class_names`.

    `mean` and `deviation` are those of each channel of the training set, on the scale 0 to 1; empty if nobody has
    computed them.
    """

    train: Examples
    test: Examples
    classes: int
    class_names: tuple[str, ...] = ()
    validation: Examples | None = None
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Check that the statistics are those of the pictures' channels."""
        channels = self.shape[0]
        if any(each and len(each) != channels for each in (self.mean, self.deviation)):
            raise ValueError(
                f"the set has pictures of {channels} channels, and statistics of {len(self.mean)} and "
                f"{len(self.deviation)}"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of each picture."""
        return self.train.shape


def data_uri(given: str | None) -> str:
    """Return the given URI, else the job's. Raises DataNotFound without either."""
    uri = given or os.environ.get(contract.ENV_DATA_URI)
    if not uri:
        raise DataNotFound(
            f"no data: the job has no spec.data.uri ({contract.ENV_DATA_URI}), and the program no argument --data"
        )
    return uri


def load_pictures(
    uri: str,
    form: Form = ALL_AS_THEY_ARE,
    classes: Sequence[str] = (),
    *,
    cache: BlockCache | None = None,
    skip_corrupt: bool = False,
) -> PictureSet:
    """Read the data set at `uri`: idx, CIFAR, pictures in folders, or shards. See docs/data.md.

    A set with an index is read block by block. Another set in S3 is fetched and unpacked once for all processes of a
    pod, which share the memory of its pixels.
    `form`: size and channels of the pictures. `classes`: those to take, in the order of their labels; empty for all.
    `cache` and `skip_corrupt` are for sets with an index: see StoredExamples.
    Raises DataNotFound, DataCorrupt, DataTooLarge or DataUnavailable.
    """
    # Import here: the examples of a stored set are read as Pictures.
    from dtj_trainer.data.stored_set import open_stored_set

    folder = local_folder(uri)
    try:
        with about(uri):
            whole = read_again(uri, form, classes) if folder is None else None
            if whole is None and (stored := open_stored_set(uri, cache=cache, skip_corrupt=skip_corrupt)):
                return _stored(stored, form, classes)
            if skip_corrupt:
                raise DataNotFound(
                    f"{uri} has no index: --skip-corrupt leaves out examples of shards with an index alone; "
                    f"`dtj data stage {uri} DST --skip-corrupt` writes such shards"
                )
            if whole is None:
                whole = (
                    read_whole(FolderFiles(folder), form, classes)
                    if folder
                    else read_once(uri, form, classes)
                )
                if passed := whole.passed.sentence():
                    log.warning("%s: %s", uri, passed)
    except OSError as error:
        raise DataNotFound(f"{uri}: {error}") from error
    return _set(whole)


def _stored(stored: StoredSet, form: Form, classes: Sequence[str]) -> PictureSet:
    index = stored.index
    if classes and tuple(classes) != index.classes:
        raise DataNotFound(
            "is a set with an index, which is read with all classes: `dtj data stage` takes --classes"
        )
    test = "test" if "test" in index.splits else "validation"
    return PictureSet(
        stored.examples("train", form),
        stored.examples(test, form),
        len(index.classes),
        index.classes,
        stored.examples("validation", form) if "validation" in index.splits and test == "test" else None,
        *for_channels(index.mean, index.deviation, stored.examples("train", form).shape[0]),
    )


def for_channels(
    mean: tuple[float, ...], deviation: tuple[float, ...], channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return statistics of a set for pictures of so many channels, whichever the set itself has.

    Red, green and blue of a grey picture are that grey. Grey is weighed from colours as pictures are. Its
    deviation is then that of colours that vary together, which those of photographs nearly do.
    """
    if len(mean) in (0, channels):
        return mean, deviation
    if channels == 1:
        grey = [sum(map(operator.mul, _GREY, each)) for each in (mean, deviation)]
        return (grey[0],), (grey[1],)
    return mean[:1] * channels, deviation[:1] * channels


def _set(whole: Whole) -> PictureSet:
    splits = {name: Pictures(*arrays) for name, arrays in whole.splits.items()}
    return PictureSet(
        splits["train"], splits["test"], len(whole.classes), whole.classes, splits.get("validation")
    )

"""Reads labelled pictures in published layouts into memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.data.errors import DataError, DataNotFound, DataUnavailable
from dtj_trainer.data.files import FolderFiles
from dtj_trainer.data.formats.images import Form
from dtj_trainer.data.sources import local_folder
from dtj_trainer.data.unpacked import read_once
from dtj_trainer.data.whole import read_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from dtj_trainer.data.whole import Whole

ALL_AS_THEY_ARE = Form()


@dataclass(frozen=True)
class Pictures:
    """`pixels`: uint8, (examples, channels, height, width). `labels`: int64, (examples,)."""

    pixels: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.labels)


@dataclass(frozen=True)
class PictureSet:
    """A data set with its published split. Labels run from 0 to `classes` - 1, and are places in `class_names`."""

    train: Pictures
    test: Pictures
    classes: int
    class_names: tuple[str, ...] = ()
    validation: Pictures | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of each picture."""
        _, channels, height, width = self.train.pixels.shape
        return channels, height, width


def data_uri(given: str | None) -> str:
    """Return the given URI, else the job's. Raises DataNotFound without either."""
    uri = given or os.environ.get(contract.ENV_DATA_URI)
    if not uri:
        raise DataNotFound(
            f"no data: the job has no spec.data.uri ({contract.ENV_DATA_URI}), and --data isn't given"
        )
    return uri


def load_pictures(uri: str, form: Form = ALL_AS_THEY_ARE, classes: Sequence[str] = ()) -> PictureSet:
    """Read the data set at `uri`: idx, CIFAR, pictures in folders, or small shards. See docs/data.md.

    A set in S3 is fetched and unpacked once for all processes of a pod, which share the memory of its pixels.
    `form`: size and channels of the pictures. `classes`: those to take, in the order of their labels; empty for all.
    Raises DataNotFound, DataCorrupt, DataTooLarge or DataUnavailable.
    """
    folder = local_folder(uri)
    try:
        whole = (
            read_once(uri, form, classes)
            if folder is None
            else read_whole(FolderFiles(folder), form, classes)
        )
    except DataUnavailable:
        raise
    except DataError as error:
        if uri in str(error):
            raise
        separator = " " if isinstance(error, DataNotFound) else ": "
        raise type(error)(f"{uri}{separator}{error}") from error
    except OSError as error:
        raise DataNotFound(f"{uri}: {error}") from error
    return _set(whole)


def _set(whole: Whole) -> PictureSet:
    splits = {name: Pictures(*arrays) for name, arrays in whole.splits.items()}
    return PictureSet(
        splits["train"], splits["test"], len(whole.classes), whole.classes, splits.get("validation")
    )

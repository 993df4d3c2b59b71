"""Reads labelled pictures in published layouts into memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dtj_trainer import contract
from dtj_trainer.data.errors import DataCorrupt, DataNotFound
from dtj_trainer.data.idx import read_idx
from dtj_trainer.data.layouts import MNIST, mnist_files
from dtj_trainer.data.staging import stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dtj_trainer.data.examples import Examples


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

    def expect(self, ids: Iterator[np.ndarray]) -> None:
        """See Examples."""


@dataclass(frozen=True)
class PictureSet:
    """A data set with its published split. Labels run from 0 to `classes` - 1.

    `mean` and `deviation` are those of each channel of the training set, on the scale 0 to 1; empty if nobody has
    computed them.
    """

    train: Examples
    test: Examples
    classes: int
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of each picture."""
        return self.train.shape


def data_uri(given: str | None) -> str:
    """Return the given URI, else the job's. Raises DataNotFound without either."""
    uri = given or os.environ.get(contract.ENV_DATA_URI)
    if not uri:
        raise DataNotFound(
            f"no data: the job has no spec.data.uri ({contract.ENV_DATA_URI}), and --data isn't given"
        )
    return uri


def load_pictures(uri: str) -> PictureSet:
    """Stage and read the data set at `uri`, in MNIST's layout: four idx files, each raw or gzipped.

    Raises DataNotFound, DataCorrupt or DataUnavailable.
    """
    paths = stage(uri, mnist_files())
    try:
        train = _read_split(paths, *MNIST["train"])
        test = _read_split(paths, *MNIST["test"])
    except DataCorrupt as error:
        raise DataCorrupt(f"{uri}: {error}") from error
    if train.pixels.shape[1:] != test.pixels.shape[1:]:
        raise DataCorrupt(f"{uri}: the pictures for training and test differ in size")
    classes = int(max(train.labels.max(), test.labels.max())) + 1
    return PictureSet(train, test, classes)


def _read_split(paths: dict[str, Path], pixels_name: str, labels_name: str) -> Pictures:
    pixels = read_idx(paths[f"{pixels_name}.gz"])
    labels = read_idx(paths[f"{labels_name}.gz"])
    if pixels.ndim != 3 or pixels.dtype.str[1:] != "u1" or not len(pixels):
        raise DataCorrupt(
            f"{pixels_name} holds no pictures: its shape is {pixels.shape}, its type {pixels.dtype}"
        )
    if labels.shape != (len(pixels),):
        raise DataCorrupt(f"{labels_name} has {labels.size} labels for {len(pixels)} pictures")
    return Pictures(pixels[:, None], labels.astype("int64"))

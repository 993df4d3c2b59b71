"""Options of the data set of a program."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtj_trainer.data.formats.images import Form
from dtj_trainer.data.pictures import data_uri, load_pictures
from dtj_trainer.train.argument_types import names, positive

if TYPE_CHECKING:
    from dtj_trainer.data.pictures import PictureSet


@dataclass(frozen=True)
class DataOptions:
    """The data set, and what of it to read; see `add_data`."""

    data: str | None
    image_size: int | None
    grey: bool | None
    classes: tuple[str, ...] | None

    def load(self) -> PictureSet:
        """Read the data set, or the job's where no other is given. Raises DataError."""
        channels = None if self.grey is None else 1 if self.grey else 3
        return load_pictures(data_uri(self.data), Form(self.image_size, channels), self.classes or ())


def add_data(group: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    """Add the options of `DataOptions`."""
    group.add_argument(
        "--data", metavar="URI", help="folder or s3://bucket/prefix; not given: the job's spec.data.uri"
    )
    group.add_argument(
        "--image-size",
        type=positive(int),
        help="pixels of a side: the shorter side is resized, and the centre cut out; not given: as stored",
    )
    group.add_argument(
        "--grey",
        action=argparse.BooleanOptionalAction,
        help="read pictures in grey, or not; not given: files in colour, arrays as stored",
    )
    group.add_argument(
        "--classes",
        type=names,
        metavar="NAME,...",
        help="train these classes alone, with labels in this order",
    )

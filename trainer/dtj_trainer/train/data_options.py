"""Options of the data set of a program."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.artifacts.cache_folder import DEFAULT_BYTES, limit_from_environment
from dtj_trainer.data.cache import BlockCache
from dtj_trainer.data.errors import DataError
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
    orient: bool
    classes: tuple[str, ...] | None
    data_cache: str | None
    data_cache_gigabytes: float | None
    skip_corrupt: bool

    def load(self) -> PictureSet:
        """Read the data set, or the job's where no other is given. Raises DataError."""
        channels = None if self.grey is None else 1 if self.grey else 3
        form = Form(self.image_size, channels, self.orient)
        return load_pictures(
            data_uri(self.data),
            form,
            self.classes or (),
            cache=self._cache(),
            skip_corrupt=self.skip_corrupt,
        )

    def _cache(self) -> BlockCache | None:
        """Return the cache of the options, or the job's where they name none."""
        folder = os.environ.get(contract.ENV_DATA_CACHE) if self.data_cache is None else self.data_cache
        if not folder:
            return None
        if self.data_cache_gigabytes is not None:
            return BlockCache(Path(folder), int(self.data_cache_gigabytes * 1e9))
        return BlockCache(Path(folder), _job_bytes() if self.data_cache is None else DEFAULT_BYTES)


def _job_bytes() -> int:
    """Return the size of the job's cache. Raises DataError for a variable that is no size."""
    try:
        return limit_from_environment(os.environ)
    except ValueError as error:
        raise DataError(str(error)) from error


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
        "--orient",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="turn pictures as their EXIF orientation says; a served model then does so too",
    )
    group.add_argument(
        "--classes",
        type=names,
        metavar="NAME,...",
        help="train these classes alone, with labels in this order; a class without a name has its number",
    )
    group.add_argument(
        "--data-cache",
        metavar="FOLDER",
        help="keep blocks of shards here, for other processes, pods and jobs that have this folder; not given: the "
        "job's spec.data.cache",
    )
    group.add_argument(
        "--data-cache-gigabytes",
        type=positive(float),
        help="size of the cache at most; not given: 100, or the size in spec.data.cache",
    )
    group.add_argument(
        "--skip-corrupt",
        action="store_true",
        help="leave out and count examples of shards with an index that can't be read",
    )

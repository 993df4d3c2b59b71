"""Reads labelled pictures in published layouts into memory."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import operator
import os
import shutil
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from dtj_trainer import contract
from dtj_trainer.data.dataset import Dataset, known, read_dataset
from dtj_trainer.data.errors import DataNotFound, about
from dtj_trainer.data.files import FolderFiles, StoreFiles
from dtj_trainer.data.formats.images import PictureForm
from dtj_trainer.data.layouts import fixed_files
from dtj_trainer.data.sources import local_folder, s3_source
from dtj_trainer.data.staging import stage, this_attempt, workspace_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from dtj_trainer.data.cache import BlockCache
    from dtj_trainer.data.examples import Examples
    from dtj_trainer.data.files import Files
    from dtj_trainer.data.stored_set import StoredSet


# read_once keeps a decoded set from S3 in the workspace: one process of a pod decodes the set, and all share the
# memory.
#
# The arrays are memory-mapped: the kernel keeps one copy of them for all ranks, and may drop it.

log = logging.getLogger(__name__)
_RECORD = "set.json"


def read_once(uri: str, form: PictureForm, classes: Sequence[str]) -> Dataset:
    """Read the set at an `s3://` URI as `read_dataset` does, or take what another process of the pod has read.

    Within an attempt, the first process asks the store; the others read what the first wrote.
    Raises DataUnavailable as well.
    """
    with _locked(_kept_in(workspace_of(uri), _name(form, classes))) as kept:
        record = _read_record(kept)
        if this_attempt() and record.get("attempt") == this_attempt():
            return _load(kept, record)
        files = _files(uri)
        version = files.fingerprint()
        if record.get("version") != version:
            dataset = read_dataset(files, form, classes)
            try:
                record = _keep(kept, dataset, version)
            except OSError as error:
                log.warning("each process of this pod keeps its own copy of %s: %s", uri, error)
                return dataset
        _write_record(kept, {**record, "attempt": this_attempt()})
        return _load(kept, record)


def read_again(uri: str, form: PictureForm, classes: Sequence[str]) -> Dataset | None:
    """Return what `read_once` has read on this pod in this attempt, without a request; else None."""
    kept = _kept_in(workspace_of(uri), _name(form, classes))
    record = _read_record(kept)
    fresh = this_attempt() and record.get("attempt") == this_attempt()
    return _load(kept, record) if fresh else None


def _name(form: PictureForm, classes: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps([asdict(form), list(classes)]).encode()).hexdigest()[:8]


def _kept_in(folder: Path, name: str) -> Path:
    return folder / f".unpacked-{name}"


def _files(uri: str) -> Files:
    """Return the files at the URI: a set of a fixed layout is in the workspace, another one is read from the
    store.
    """
    try:
        paths = stage(uri, fixed_files)
    except DataNotFound:
        files = StoreFiles(uri, s3_source(uri))
        if not known(files):
            raise
        return files
    return FolderFiles(next(iter(paths.values())).parent)


@contextmanager
def _locked(kept: Path) -> Iterator[Path]:
    """Hold the lock of a decoded set. The kernel releases the lock when the process is killed."""
    kept.mkdir(parents=True, exist_ok=True)
    with (kept / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield kept


def _keep(kept: Path, dataset: Dataset, version: str) -> dict[str, object]:
    """Write the arrays, and last the record, which makes the arrays valid."""
    (kept / _RECORD).unlink(missing_ok=True)
    try:
        for split, arrays in dataset.splits.items():
            for kind, values in zip(("pixels", "labels"), arrays, strict=True):
                np.save(kept / f"{split}-{kind}.npy", values)
    except OSError:
        shutil.rmtree(kept, ignore_errors=True)
        raise
    return {"version": version, "classes": dataset.classes, "splits": list(dataset.splits)}


def _load(kept: Path, record: dict[str, object]) -> Dataset:
    splits, classes = record["splits"], record["classes"]
    assert isinstance(splits, list)
    assert isinstance(classes, list | tuple)

    def array(split: str, kind: str) -> np.ndarray:
        return np.asarray(np.load(kept / f"{split}-{kind}.npy", mmap_mode="r", allow_pickle=False))

    return Dataset(
        {split: (array(split, "pixels"), array(split, "labels")) for split in splits}, tuple(classes)
    )


def _read_record(kept: Path) -> dict[str, object]:
    try:
        content = json.loads((kept / _RECORD).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_record(kept: Path, record: dict[str, object]) -> None:
    written = kept / f"{_RECORD}.new"
    written.write_text(json.dumps(record))
    written.replace(kept / _RECORD)


ALL_AS_THEY_ARE = PictureForm()
_GREY = (0.299, 0.587, 0.114)
"""The weights of red, green and blue in grey, by ITU-R 601-2, as PIL has them."""


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
                f"the pictures have {channels} channels, and the set's mean has {len(self.mean)} and its deviation "
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
    form: PictureForm = ALL_AS_THEY_ARE,
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
    # Import late: stored_set itself imports Pictures from this module.
    from dtj_trainer.data.stored_set import open_stored_set

    folder = local_folder(uri)
    try:
        with about(uri):
            dataset = read_again(uri, form, classes) if folder is None else None
            if dataset is None and (stored := open_stored_set(uri, cache=cache, skip_corrupt=skip_corrupt)):
                return _stored(stored, form, classes)
            if skip_corrupt:
                raise DataNotFound(
                    f"{uri} has no index: --skip-corrupt leaves out examples of shards with an index alone; "
                    f"`dtj data stage {uri} DST --skip-corrupt` writes such shards"
                )
            if dataset is None:
                dataset = (
                    read_dataset(FolderFiles(folder), form, classes)
                    if folder
                    else read_once(uri, form, classes)
                )
                if passed := dataset.passed.sentence():
                    log.warning("%s: %s", uri, passed)
    except OSError as error:
        raise DataNotFound(f"{uri}: {error}") from error
    return _set(dataset)


def _stored(stored: StoredSet, form: PictureForm, classes: Sequence[str]) -> PictureSet:
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


def _set(dataset: Dataset) -> PictureSet:
    splits = {name: Pictures(*arrays) for name, arrays in dataset.splits.items()}
    return PictureSet(
        splits["train"], splits["test"], len(dataset.classes), dataset.classes, splits.get("validation")
    )

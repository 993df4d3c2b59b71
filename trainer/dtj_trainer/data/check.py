"""`python -m dtj_trainer.data.check URI`: read a set to its end, and name each shard and picture that is damaged."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dtj_trainer import contract
from dtj_trainer.data.block_reader import BlockReader
from dtj_trainer.data.dataset import LABELS_FILE
from dtj_trainer.data.errors import DataCorrupt, DataNotFound, exit_on_data_error
from dtj_trainer.data.folders import beside
from dtj_trainer.data.formats import FORMATS
from dtj_trainer.data.formats.images import PictureForm, pixels_of
from dtj_trainer.data.mixing import sentence_of
from dtj_trainer.data.origins import FolderOrigin, files_at, open_dataset, open_folder
from dtj_trainer.data.processes import in_processes
from dtj_trainer.data.ranged import RangedReader, open_ranges
from dtj_trainer.data.shard_work import OldShard, local_copy
from dtj_trainer.data.shards import shards_without_index
from dtj_trainer.data.stored_set import open_index

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dtj_trainer.data.formats.format import Format
    from dtj_trainer.data.index import DataIndex

_FILES_OF_A_PIECE = 256


class CheckedPart(NamedTuple):
    """Examples of a folder of pictures, or one shard of an index: `first` and `last`, which is not included."""

    split: str
    first: int
    last: int


class Checked(NamedTuple):
    """`faults` name what can't be read. `examples` counts the readable examples. `said`: a sentence about the set."""

    examples: int
    faults: list[str]
    said: str = ""


@dataclass(frozen=True)
class IndexedShards:
    """Checks shards against their index. A piece is one shard."""

    uri: str
    index: DataIndex

    @property
    def pieces(self) -> list[CheckedPart]:
        """A part for each shard."""
        return [
            CheckedPart(name, number, number + 1)
            for name, split in self.index.splits.items()
            for number in range(len(split.shards))
        ]

    @cached_property
    def _ranges(self) -> RangedReader:
        return open_ranges(self.uri)

    def do(self, part: CheckedPart) -> Checked:
        """Check one shard."""
        split = self.index.splits[part.split]
        reader, form = BlockReader(self._ranges, split), PictureForm(None, len(self.index.mean))
        good, faults = 0, list[str]()
        for number, block in enumerate(split.blocks):
            if block.shard != part.first:
                continue
            try:
                content = reader.read(number)
            except (DataCorrupt, DataNotFound) as error:
                faults.append(str(error))
                continue
            found = _check(content, FORMATS[self.index.format], form, reader.where(number))
            good, faults = good + found.examples, faults + found.faults
        return Checked(good, faults)


@dataclass(frozen=True)
class BareShards:
    """Checks shards without an index."""

    uri: str
    form: PictureForm

    def do(self, shard: OldShard) -> Checked:
        """Check one shard."""
        where = f"{self.uri}/{shard.key}"
        format_, good, faults = FORMATS[shard.format], 0, list[str]()
        with TemporaryDirectory(prefix="dtj-check-") as folder:
            path, _ = local_copy(self.uri, shard.key, Path(folder))
            try:
                with path.open("rb") as file:
                    for cut in format_.blocks(file, path.stat().st_size, where=where):
                        file.seek(cut.offset)
                        place = f"{where}, block at byte {cut.offset}"
                        found = _check(file.read(cut.length), format_, self.form, place)
                        good, faults = good + found.examples, faults + found.faults
            except DataCorrupt as error:
                faults.append(str(error))
        return Checked(good, faults)


@dataclass(frozen=True)
class Folder:
    """Checks pictures in folders."""

    origin: FolderOrigin
    form: PictureForm

    @property
    def pieces(self) -> list[CheckedPart]:
        """Parts of at most _FILES_OF_A_PIECE pictures."""
        return [
            CheckedPart(split, first, min(first + _FILES_OF_A_PIECE, count))
            for split, count in self.origin.counts.items()
            for first in range(0, count, _FILES_OF_A_PIECE)
        ]

    def do(self, part: CheckedPart) -> Checked:
        """Check some pictures."""
        faults = []
        for where, example in self.origin.read(part.split, np.arange(part.first, part.last)):
            try:
                if isinstance(example, DataCorrupt):
                    raise example
                pixels_of(example.picture, self.form, where=where)
            except DataCorrupt as error:
                faults.append(str(error))
        return Checked(part.last - part.first - len(faults), faults)


def _check(content: bytes | memoryview, format_: Format, form: PictureForm, where: str) -> Checked:
    """Decode the examples of a block, up to the first record that the format can't read."""
    good, faults = 0, list[str]()
    try:
        for number, example in enumerate(format_.examples(content, where=where)):
            try:
                pixels_of(example.picture, form, where=f"{where}, example {number} of the block")
                good += 1
            except DataCorrupt as error:
                faults.append(str(error))
    except DataCorrupt as error:
        faults.append(str(error))
    return Checked(good, faults)


def check(uri: str, form: PictureForm, processes: int) -> Iterator[Checked]:
    """Yield what is found in each part of the set. Raises DataError if there is no set, or no answer of the store."""
    index = open_index(uri)
    if index:
        indexed = IndexedShards(uri, index)
        yield Checked(0, [], sentence_of(index))
        yield from (found for _, found in in_processes(indexed, indexed.pieces, processes))
    elif shards := shards_without_index(files_at(uri)):
        read = [LABELS_FILE, *(shard.key for shard in shards)]
        yield Checked(0, [], beside(files_at(uri).names, read).sentence())
        yield from (found for _, found in in_processes(BareShards(uri, form), shards, processes))
    elif origin := open_folder(uri, ()):
        folder = Folder(origin, form)
        yield Checked(0, [], origin.passed.sentence())
        yield from (found for _, found in in_processes(folder, folder.pieces, processes))
    else:
        try:
            dataset = open_dataset(uri, ())
            yield Checked(sum(dataset.counts.values()), [], dataset.passed.sentence())
        except DataCorrupt as error:
            yield Checked(0, [str(error)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Check as the command line says; return the exit code."""
    parser = argparse.ArgumentParser(prog="dtj data check", description=__doc__)
    parser.add_argument("uri", metavar="URI", help="s3://bucket/prefix, file:///folder or a path")
    parser.add_argument(
        "--processes",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="number of processes (default: one per processor)",
    )
    given = parser.parse_args(arguments)
    examples = faults = 0
    with exit_on_data_error():
        for found in check(given.uri.rstrip("/"), PictureForm(None, None), max(given.processes, 1)):
            examples, faults = examples + found.examples, faults + len(found.faults)
            for fault in found.faults:
                print(fault, flush=True)
            if found.said:
                print(found.said, file=sys.stderr, flush=True)
    print(f"{given.uri}: {examples} examples can be read, {faults} faults")
    return contract.EXIT_DATA if faults else 0


if __name__ == "__main__":
    sys.exit(main())

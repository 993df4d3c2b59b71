"""Opens a set of shards with an index, in S3 or in a folder."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.s3 import DATA_TIMEOUT_SECONDS, NoSuchKey, S3Error, retry_transient
from dtj_trainer.artifacts.store import Store
from dtj_trainer.data.errors import DataNotFound, DataUnavailable
from dtj_trainer.data.formats import FORMATS
from dtj_trainer.data.formats.images import PictureForm
from dtj_trainer.data.index import INDEX_NAME, DataIndex
from dtj_trainer.data.order import WINDOW
from dtj_trainer.data.ranged import RangedReader, log_wait, open_ranges
from dtj_trainer.data.sources import local_folder, s3_location
from dtj_trainer.data.stored_examples import MEMORY_BYTES, StoredExamples

if TYPE_CHECKING:
    from dtj_trainer.data.cache import BlockCache


_OWN = PictureForm()


@dataclass(frozen=True)
class StoredSet:
    """A set with its index. The splits share the connections. Make a set in the process that uses it."""

    index: DataIndex
    ranges: RangedReader
    cache: BlockCache | None = None
    memory: int = MEMORY_BYTES
    window: int = WINDOW
    skip_corrupt: bool = False
    _opened: list[StoredExamples] = field(default_factory=list)

    def examples(self, split: str, form: PictureForm = _OWN) -> StoredExamples:
        """Open a split. `form`: of the decoded pictures; channels are by default those of the index.

        Raises DataNotFound.
        """
        if split not in self.index.splits:
            there = ", ".join(self.index.splits)
            raise DataNotFound(f"{self.ranges.objects.uri} has no split {split!r}; there is {there}")
        self._opened.append(
            StoredExamples(
                self.ranges,
                self.index.splits[split],
                FORMATS[self.index.format],
                replace(form, channels=form.channels or len(self.index.mean)),
                cache=self.cache,
                memory=self.memory,
                window=self.window,
                skip_corrupt=self.skip_corrupt,
            )
        )
        return self._opened[-1]

    def close(self) -> None:
        """End the threads of all splits."""
        for examples in self._opened:
            examples.close()
        self.ranges.close()


def open_stored_set(
    uri: str,
    *,
    cache: BlockCache | None = None,
    memory: int = MEMORY_BYTES,
    window: int = WINDOW,
    skip_corrupt: bool = False,
) -> StoredSet | None:
    """Open the set at `uri`; None when there is no index. The other parameters: as for StoredExamples.

    Raises DataNotFound, DataCorrupt (the index is damaged) or DataUnavailable.
    """
    index = open_index(uri)
    return None if index is None else StoredSet(index, open_ranges(uri), cache, memory, window, skip_corrupt)


def open_index(uri: str) -> DataIndex | None:
    """Return the index of the set at `uri`; None when there is none.

    Raises DataNotFound, DataCorrupt or DataUnavailable.
    """
    content = _read_index(uri)
    if content is None:
        return None
    return DataIndex.from_json(content, where=f"{uri.rstrip('/')}/{INDEX_NAME}")


def _read_index(uri: str) -> bytes | None:
    folder = local_folder(uri)
    if folder:
        path = folder / INDEX_NAME
        return path.read_bytes() if path.exists() else None
    store = Store(s3_location(uri))
    try:
        return retry_transient(
            lambda: store.get_bytes(INDEX_NAME), timeout=DATA_TIMEOUT_SECONDS, on_wait=log_wait
        )
    except NoSuchKey:
        return None
    except S3Error as error:
        raise (DataUnavailable if error.transient else DataNotFound)(f"{uri}: {error}") from error

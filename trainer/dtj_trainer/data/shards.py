"""Which files of a set are shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dtj_trainer.data.errors import DataNotFound
from dtj_trainer.data.formats import FORMATS
from dtj_trainer.data.layouts import layout_of, shards_of
from dtj_trainer.data.shard_work import OldShard

if TYPE_CHECKING:
    from dtj_trainer.data.files import Files


def shards_without_index(files: Files) -> list[OldShard]:
    """Return the shards among the files; none where the files are something else.

    Raises DataNotFound for a shard whose path names no split.
    """
    layout = layout_of(files.names)
    if layout and layout.name in FORMATS:
        splits = {"train": layout.train, "test": layout.test}
        return [OldShard(choice[0], split, layout.name) for split, part in splits.items() for choice in part]
    kind, shards = shards_of(files.names)
    if "" in shards:
        raise DataNotFound(
            f"the path {shards[''][0]} names no split: a shard's path has the word train, test or validation"
        )
    return [OldShard(key, split, kind) for split, keys in shards.items() for key in keys]

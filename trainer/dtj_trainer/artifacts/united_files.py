"""Unites the files of all pods in one snapshot. Pure functions.

Also files that this pod's restore left in the bucket, because its volume had no room, belong to the next snapshots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dtj_trainer.artifacts.local_checkpoints import MARK_FILE
from dtj_trainer.artifacts.look import folders_of
from dtj_trainer.artifacts.pod_manifest import is_lent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from dtj_trainer.artifacts.look import Node
    from dtj_trainer.artifacts.manifest import Manifest, StoredFile

LeftFiles = dict["StoredFile", frozenset[str]]
"""Files that a restore left in the bucket, each with those of its folders that the restore made."""


def united(
    own: Iterable[StoredFile], given: Iterable[StoredFile], nodes: Mapping[str, Node]
) -> tuple[StoredFile, ...]:
    """Return own files with those that are given. Where several have a path, the first counts.

    own: of the picture `nodes`; files that other pods gave to the restored snapshot may be among them, and any given
    file replaces those.
    """
    found = {file.path: file for file in own}
    lent = {path for path, file in found.items() if is_lent(file)}
    folders = {path for path, node in nodes.items() if node.kind == "directory"}
    leaves = {path for path, node in nodes.items() if node.kind == "link"} | (found.keys() - lent)
    for file in given:
        above = set(folders_of(file.path))
        if file.path in folders or not leaves.isdisjoint({file.path, *above}):
            continue
        for path in lent & above:  # A file in the restored snapshot, and a folder now.
            found.pop(path, None)
        found[file.path] = file
        leaves.add(file.path)
        folders |= above
    return tuple(found.values())


def left_in_bucket(manifest: Manifest, nodes: Mapping[str, Node]) -> LeftFiles:
    """Return the files of other pods that a restore of a snapshot left in the bucket.

    nodes: what it restored. What is below a folder of `checkpoints.save` is not among them: it stays with its mark.
    """
    return {
        file: frozenset(folder for folder in folders_of(file.path) if folder in nodes)
        for file in manifest.files
        if is_lent(file)
        and file.path not in nodes
        and f"{file.path.partition('/')[0]}/{MARK_FILE}" not in nodes
    }


def left_in_place(left: LeftFiles, nodes: Mapping[str, Node]) -> Iterator[StoredFile]:
    """Yield the files whose folders the program has not removed since."""
    for file, folders in left.items():
        if all((node := nodes.get(folder)) and node.kind == "directory" for folder in folders):
            yield file

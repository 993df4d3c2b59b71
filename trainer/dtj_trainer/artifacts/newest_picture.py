"""The newest complete picture of a pod's checkpoints folder, whether the bucket has it or not.

No copy of a picture is kept. The pod can put back a picture that the bucket does not have while the folder still has
each of its files, under whatever name. So it can after a program that writes new files, or renames files over older
ones. Of a program that writes into an existing file, or that has removed a file since, it can put back an earlier
picture whose files are all there, or else the newest one in the bucket.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from dtj_trainer.artifacts.file_fetch import Near
from dtj_trainer.artifacts.look import SECOND
from dtj_trainer.artifacts.manifest import Manifest, StoredFile, sha256_of
from dtj_trainer.artifacts.put_back import leave_only, put_back
from dtj_trainer.artifacts.snapshot import folders_and_links
from dtj_trainer.clock import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from dtj_trainer import contract
    from dtj_trainer.artifacts.look import Node
    from dtj_trainer.artifacts.picture import Picture
    from dtj_trainer.artifacts.store import Store

_MOST_UNSENT = 3
"""So many pictures that the bucket does not have are known."""


class Name(NamedTuple):
    """What a picture is called. `claim`, `number`: as in `Manifest`; None: the pod of rank 0 has not told them."""

    claim: int | None
    number: int | None
    step: int | None


@dataclass(frozen=True)
class Complete:
    """A complete picture. `uploaded`: whether the bucket has it. `manifest`: if this pod wrote or restored it."""

    picture: Picture
    name: Name
    uploaded: bool = False
    manifest: Manifest | None = None

    def reported(self) -> contract.PodCheckpoint:
        """Return what a pod's report says of it."""
        said: contract.PodCheckpoint = {
            "uploaded": self.uploaded,
            "time": text_of(self.picture.at_ns / SECOND),
        }
        for key, value in self.name._asdict().items():
            if value is not None:
                said[key] = value  # type: ignore[literal-required]  # the fields of a Name are some of its keys
        return said


class _Written(NamedTuple):
    """What a rename or a hard link leaves as it is, and writes do not."""

    size: int
    mtime_ns: int
    inode: int


def _written(node: Node) -> _Written:
    return _Written(node.size, node.mtime_ns, node.inode)


def sources_of(picture: Picture, nodes: Mapping[str, Node]) -> dict[str, str | None]:
    """Return where the folder has each file of a picture: by the file's path the present path, or None.

    nodes: the content of the folder now.
    """
    by_content: dict[_Written, str] | None = None
    found: dict[str, str | None] = {}
    for path, node in picture.nodes.items():
        if node.kind != "file":
            continue
        now = nodes.get(path)
        if now is not None and (now is node or _written(now) == _written(node)):
            found[path] = path
        else:
            if by_content is None:
                by_content = {_written(each): at for at, each in nodes.items() if each.kind == "file"}
            found[path] = by_content.get(_written(node))
    return found


class NewestPicture:
    """Knows the complete pictures of one folder. Thread-safe."""

    def __init__(self, stored: Callable[[Node], StoredFile | None] = lambda _: None) -> None:
        """`stored`: returns the file in the bucket that has the content of a local one."""
        self._stored = stored
        self._lock = threading.Lock()
        self._uploaded: Complete | None = None
        self._unsent: tuple[Complete, ...] = ()
        """The newest last."""

    def note(self, picture: Picture, name_of: Callable[[], Name]) -> None:
        """Note a complete picture that the bucket does not have."""
        with self._lock:
            if not (self._unsent and self._unsent[-1].picture == picture):
                self._unsent = (*self._unsent, Complete(picture, name_of()))[-_MOST_UNSENT:]

    def name(self, picture: Picture, name: Name) -> None:
        """Name a picture anew."""
        with self._lock:
            self._unsent = tuple(
                replace(each, name=name) if each.picture == picture else each for each in self._unsent
            )

    def note_uploaded(self, picture: Picture, name: Name, manifest: Manifest | None = None) -> None:
        """Note that the bucket has a picture. Those before it are of no use any more."""
        with self._lock:
            self._uploaded = Complete(picture, name, uploaded=True, manifest=manifest)
            self._unsent = tuple(
                each
                for each in self._unsent
                if each.picture.at_ns > picture.at_ns and each.picture != picture
            )

    def now(self, nodes: Mapping[str, Node]) -> Complete | None:
        """Return the newest picture that can be put back. nodes: the content of the folder now."""
        with self._lock:
            unsent, uploaded = self._unsent, self._uploaded
        for each in reversed(unsent):
            lacking = (path for path, source in sources_of(each.picture, nodes).items() if source is None)
            if all(self._stored(each.picture.nodes[path]) for path in lacking):
                return each
        return uploaded

    def put_back(
        self,
        found: Complete,
        folder: Path,
        nodes: Mapping[str, Node],
        store: Store | None = None,
        near: Near | None = None,
    ) -> str | None:
        """Restore the folder to exactly the content of a picture; return a description of the first fault, or None.

        nodes: the content of the folder now; nothing may write there. store: the checkpoints' prefix; without it,
        all comes from the folder itself. Raises S3Error and OSError.
        """
        sources = {path: source for path, source in sources_of(found.picture, nodes).items() if source}
        manifest = found.manifest or self._manifest(found, folder, sources)
        present = {file.path: file for file in manifest.files if sources.get(file.path) == file.path}
        fault = put_back(store, manifest, folder, near or Near(), present=present, sources=sources)
        if fault is None:
            leave_only(folder, manifest)
        return fault

    def _manifest(self, found: Complete, folder: Path, sources: Mapping[str, str]) -> Manifest:
        """Describe a picture that the bucket does not have: files without a key are in the folder alone."""
        files = []
        for path, node in found.picture.nodes.items():
            if stored := self._stored(node):
                files.append(replace(stored, path=path, mtime_ns=node.mtime_ns))
            elif source := sources.get(path):
                sha256 = sha256_of(folder / source)
                files.append(StoredFile(path, "", node.size, sha256, node.mtime_ns))
        name, time = found.name, text_of(found.picture.at_ns / SECOND)
        folders, links = folders_and_links(found.picture.nodes)
        number, claim = name.number or 0, name.claim or 0
        return Manifest(number, name.step, time, claim, tuple(files), folders, links, claim=claim)

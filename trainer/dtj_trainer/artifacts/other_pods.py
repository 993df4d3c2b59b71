"""The files of other pods in the snapshots of the pod with the claim; see `pod_manifest`."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.checkpoint_parts import Lateness, with_parts
from dtj_trainer.artifacts.local_checkpoints import MARK_FILE
from dtj_trainer.artifacts.look import folders_of, kind_of
from dtj_trainer.artifacts.manifest import PARTS, PODS, ManifestError, StoredFile, folder_name
from dtj_trainer.artifacts.pod_manifest import (
    ANNOUNCED,
    LATE_SECONDS,
    PodManifest,
    folders_in,
    of_the_next,
    pod_manifest_key,
)
from dtj_trainer.artifacts.small_files import at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Set

    from dtj_trainer.artifacts.fence import Fence
    from dtj_trainer.artifacts.look import Node
    from dtj_trainer.artifacts.manifest import Manifest
    from dtj_trainer.artifacts.snapshot import Due
    from dtj_trainer.artifacts.store import Store, StoredObject

log = logging.getLogger(__name__)

SILENT_SECONDS = 180.0
"""A pod that gave files to the last snapshot and says nothing for so long is not waited for any more."""
LONGEST_PAUSE_SECONDS = 10.0
"""Between two listings while a pod is waited for."""


@dataclass(frozen=True)
class _Heard:
    etag: str
    said: PodManifest


def is_lent(file: StoredFile) -> bool:
    """Return whether another pod gave this file to its snapshot. After a restore, all pods have the file."""
    return file.key.partition("/")[2].startswith(f"{PODS}/")


class OtherPods:
    """The other pods of a job, for the pod with the claim. For one thread. Its methods raise S3Error."""

    def __init__(
        self, store: Store, fence: Fence, *, shards: bool, now: Callable[[], float] = time.monotonic
    ) -> None:
        """`store`: the checkpoints prefix. `shards`: other pods may have files that `save` did not write."""
        self._store = store
        self._fence = fence
        self._shards = shards
        self._now = now
        self._lateness = Lateness(now)
        self.lent: set[Node] = set()
        """Files of this pod's folder that another pod gave to the restored snapshot."""
        self.lacking = ""
        """What a snapshot waits for. Who begins another try empties it."""
        self._heard: dict[str, _Heard] = {}
        self._given: dict[str, tuple[str, frozenset[str]]] = {}
        """Of each pod that gave files to the last snapshot: the ETag of its manifest then, and the files' kinds."""
        self._silent_since: dict[str, float] = {}
        self._excused: dict[str, str] = {}
        """The ETag of the manifest of each pod that was waited for in vain."""
        self._announced = PodManifest()
        self._removed: set[str] = set()
        """Paths and folders that pictures had, that are gone, and that another pod still names."""
        self._had: set[str] = set()
        self._listed_at = self._waits_since = now()
        self._waits_for: tuple[str, ...] = ()

    def note_restored(self, manifest: Manifest, nodes: Mapping[str, Node]) -> None:
        """Take the folder as a restore of this snapshot left it."""
        files = (file for file in manifest.files if is_lent(file))
        self.lent = {node for file in files if (node := nodes.get(file.path))}

    def announce(self, due: Due) -> None:
        """Announce a picture: its number, and the paths of this pod's own files in it."""
        if not self._shards or due.alone:
            return
        if self.lent:
            self.lent.intersection_update(due.picture.nodes.values())
        own = (
            path for path, node in due.picture.nodes.items() if node.kind == "file" and node not in self.lent
        )
        announced = PodManifest(due.number, paths=tuple(sorted(own)))
        if announced != replace(self._announced, waits_for=()):
            self._say(announced)

    def files(
        self, due: Due, own: Collection[StoredFile], last: Manifest | None, last_nodes: Mapping[str, Node]
    ) -> tuple[StoredFile, ...] | None:
        """Return the files of a snapshot: own ones and those of other pods; None while `lacking` says what lacks.

        own: the files of the picture. last, last_nodes: the last snapshot, and its picture.
        """
        nodes = due.picture.nodes
        mark = f"{due.saved}/{MARK_FILE}"
        same = last if due.saved and nodes.get(mark) == last_nodes.get(mark) else None
        own, lacking = with_parts(self._store, due, tuple(own), same, self._fence.number)
        if lacking:
            self.lacking = lacking
            return None
        if due.alone or not self._shards:
            return own
        if self._is_time():
            self._listen()
            mine = _not_lent(own)
            self._note_removed(mine)
            kinds = {kind_of(path) for path, node in nodes.items() if not node.same(last_nodes.get(path))}
            self._wait_for(
                pod
                for pod, heard in self._heard.items()
                if self._is_pending(heard.said, mine) or self._is_silent(pod, heard.etag, kinds)
            )
        if not self._waits_for:
            return self._united(own, nodes)
        uri = self._store.uri(folder_name(due.number, self._fence.number))
        self.lacking = f"checkpoint {uri} waits for files of {', '.join(self._waits_for)}"
        return None

    def have_news(self, last: Manifest | None, nodes: Mapping[str, Node], *, ended: bool) -> bool:
        """Return whether other pods have given files that the last snapshot lacks. Lists once a minute.

        last, nodes: the last snapshot, and its picture. ended: the program has ended; `lacking` says which pods have
        not sent all of their files. Where `save` wrote all of the last snapshot, no other pod is asked.
        """
        if not self._shards or (last and last.of_save):
            return False
        files = last.files if last else ()
        calm = not ended and not self._waits_for
        if self._is_time() and (not calm or self._now() - self._listed_at >= LATE_SECONDS):
            self._listen()
            mine = _not_lent(files)
            self._wait_for(pod for pod, heard in self._heard.items() if set(heard.said.pending) - mine)
            keys = {file.key for file in files}
            if any(file.key not in keys for file in self._united(files, nodes)):
                return True
        if ended and self._waits_for:
            pods = ", ".join(self._waits_for)
            self.lacking = f"the last checkpoint in {self._store.location.uri} waits for files of {pods}"
        return False

    def given_up(self) -> bool:
        """Return whether nobody waits for what lacks any more, because the program ended some time ago."""
        return bool(self.lacking) and self._lateness.given_up(self.lacking)

    def stored(self, files: Iterable[StoredFile]) -> None:
        """Note the files of the snapshot that was just stored."""
        keys = {file.key for file in files}
        self._given = {
            pod: (heard.etag, frozenset(kinds))
            for pod, heard in self._heard.items()
            if (kinds := {kind_of(file.path) for file in heard.said.files if file.key in keys})
        }

    @property
    def named(self) -> set[str]:
        """The keys that other pods name. They may belong to the next snapshot."""
        return {file.key for heard in self._heard.values() for file in heard.said.files}

    def _is_time(self) -> bool:
        """Return whether to list again: the longer a pod is waited for, the longer are the pauses."""
        pause = (
            min(LONGEST_PAUSE_SECONDS, (self._listed_at - self._waits_since) / 4) if self._waits_for else 0.0
        )
        return self._now() - self._listed_at >= pause

    def _wait_for(self, pods: Iterable[str]) -> None:
        if not self._waits_for:
            self._waits_since = self._now()
        self._waits_for = tuple(sorted(pods))
        waits_for = tuple((pod, self._heard[pod].etag) for pod in self._waits_for)
        if not set(self._announced.waits_for).issuperset(waits_for):
            self._say(replace(self._announced, waits_for=waits_for))

    def _say(self, announced: PodManifest) -> None:
        self._store.put_bytes(pod_manifest_key(self._fence.number, ANNOUNCED), announced.to_json())
        self._announced = announced

    def _listen(self) -> None:
        """Read the manifests that have changed, and remove those of earlier claims."""
        listed: dict[str, StoredObject] = {}
        earlier = []
        claim = str(self._fence.number)
        for item in self._store.objects(PARTS):
            of_claim, _, name = item.key.removeprefix(f"{PARTS}/").partition("/")
            if of_claim == claim and name != f"{ANNOUNCED}.json":
                listed[name.removesuffix(".json")] = item
            elif of_claim.isdecimal() and int(of_claim) < self._fence.number:
                earlier.append(item.key)
        self._listed_at = self._now()
        changed = [
            (pod, item)
            for pod, item in listed.items()
            if (heard := self._heard.get(pod)) is None or heard.etag != item.etag
        ]
        contents = at_once(partial(self._store.get_with_etag, item.key) for _, item in changed)
        for (pod, item), (content, etag) in zip(changed, contents, strict=True):
            try:
                self._heard[pod] = _Heard(etag, PodManifest.from_json(content))
            except ManifestError as error:
                log.warning("%s: %s", self._store.uri(item.key), error)
        if earlier:
            self._fence.hold()
            self._store.delete(earlier)

    def _is_pending(self, said: PodManifest, mine: set[str]) -> bool:
        """Return whether a pod has not yet sent files of this picture."""
        pending = set(said.pending) - mine
        folders = folders_in(mine)
        return bool(
            pending - of_the_next(pending, folders | folders_in(file.path for file in said.files), folders)
        )

    def _is_silent(self, pod: str, etag: str, kinds: Set[str]) -> bool:
        """Return whether a pod that gave files of such kinds to the last snapshot has said nothing since."""
        before, given = self._given.get(pod, ("", frozenset[str]()))
        if before != etag or self._excused.get(pod) == etag or not given & kinds:
            self._silent_since.pop(pod, None)
            return False
        since = self._silent_since.setdefault(pod, self._now())
        if self._now() - since < SILENT_SECONDS:
            return True
        log.warning("%s gave files to the last checkpoint, and says nothing: it is not waited for", pod)
        self._excused[pod] = etag
        return False

    def _note_removed(self, mine: set[str]) -> None:
        """Note what this pod's program has removed since an earlier picture: it is not to come back."""
        present = mine | folders_in(mine)
        said = {file.path for heard in self._heard.values() for file in heard.said.files}
        self._removed = (self._removed | self._had - present) & (said | folders_in(said)) - present
        self._had = present

    def _united(self, own: Collection[StoredFile], nodes: Mapping[str, Node]) -> tuple[StoredFile, ...]:
        """Return own files with those of other pods. Where two pods have a path, the file of the first counts."""
        lent = {file.path for file in own if is_lent(file)}
        leaves = {path for path, node in nodes.items() if node.kind != "directory"} - lent
        folders = nodes.keys() - leaves - lent
        given: dict[str, StoredFile] = {}
        for _, heard in sorted(self._heard.items()):
            for file in heard.said.files:
                above = set(folders_of(file.path))
                removed = file.path in self._removed or not self._removed.isdisjoint(above)
                if (
                    not removed
                    and file.path not in leaves
                    and file.path not in folders
                    and leaves.isdisjoint(above)
                ):
                    given[file.path] = file
                    leaves.add(file.path)
                    folders |= above
        return tuple(({file.path: file for file in own} | given).values())


def _not_lent(files: Collection[StoredFile]) -> set[str]:
    return {file.path for file in files if not is_lent(file)}

"""The files of other pods in the snapshots of the pod with the claim; see `pod_manifest`."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.checkpoint_parts import Lateness, with_parts
from dtj_trainer.artifacts.local_checkpoints import MARK_FILE
from dtj_trainer.artifacts.look import is_below, kind_of
from dtj_trainer.artifacts.manifest import (
    PARTS,
    PODS,
    ManifestError,
    StoredFile,
    folder_name,
    number_and_claim,
)
from dtj_trainer.artifacts.pod_manifest import (
    ANNOUNCED,
    LATE_SECONDS,
    Copy,
    PodManifest,
    beginning,
    copy_of,
    folders_in,
    giver_of,
    is_in_answer,
    is_lent,
    is_of_pod,
    of_the_next,
    pod_manifest_key,
)
from dtj_trainer.artifacts.small_files import at_once
from dtj_trainer.artifacts.snapshot import keys_of
from dtj_trainer.artifacts.united_files import LeftFiles, left_in_bucket, left_in_place, united

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
PENDING_SECONDS = 3600.0
"""The same for a pod that has pending files, and says nothing else."""
LATE_AT_END_SECONDS = 300.0
"""How long pods with pending files are waited for after the end of the program."""
FIRST_WORDS_SECONDS = 5.0
"""After the end of the program, other pods may not have told of their first files sooner."""
PODS_A_SECOND = 500
"""While so many pods are waited for, the pause between two listings is a second or more."""
MOST_NAMED = 4
"""So many of the pods that are waited for are named."""
AGAIN = "again"
"""The place of a pod's files that the pod with the claim has sent."""
LONGEST_PAUSE_SECONDS = 10.0  # Between two listings while a pod is waited for.


@dataclass(frozen=True)
class _Heard:
    etag: str
    said: PodManifest


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
        self._ended_at: float | None = None
        self._lent: dict[Copy, str] = {}
        """Files of this pod's folder that another pod gave to the restored snapshot, with the names of the pods."""
        self._left: LeftFiles = {}
        self.lacking = ""
        """What the snapshots of the present try wait for."""
        self._heard: dict[str, _Heard] = {}
        self._given: dict[str, tuple[str, frozenset[str]]] = {}
        """Of each pod that gave files to the last snapshot: the ETag of its manifest then, and the files' kinds."""
        self._quiet_since: dict[str, tuple[str, float]] = {}
        """Since when pods are waited for, with the ETags of their manifests."""
        self._excused: dict[str, str] = {}
        """The ETag of the manifest of each pod that was waited for in vain."""
        self._announced = PodManifest()
        self._removed: set[str] = set()
        """The keys of other pods' files at paths, or in folders, that this pod's program has removed since."""
        self._had: set[str] = set()
        self._listed_at = self._waits_since = now()
        self._waits_for: tuple[str, ...] = ()

    def begin(self, *, ended: bool) -> None:
        """Begin another try of a snapshot. ended: the program has ended."""
        self.lacking = ""
        self._ended_at = (self._ended_at or self._now()) if ended else None

    def note_restored(self, manifest: Manifest, nodes: Mapping[str, Node]) -> None:
        """Take the folder as a restore of this snapshot left it."""
        files = (file for file in manifest.files if is_lent(file))
        self._lent = {copy_of(node): giver_of(file) for file in files if (node := nodes.get(file.path))}
        self._left = left_in_bucket(manifest, nodes)

    def has_lent(self, node: Node) -> bool:
        """Return whether another pod gave a file of this pod's folder to the restored snapshot."""
        return bool(self._lent) and copy_of(node) in self._lent

    def keys_of_lent(self, nodes: Iterable[Node], folder: str, taken: Set[str]) -> dict[Node, str]:
        """Return keys for those files of other pods that are to be sent again: no snapshot has named them since.

        folder: of the snapshot. The keys name the pod that gave the file. What that pod has removed gets no key.
        """
        lent: dict[str, list[Node]] = {}
        for node in nodes if self._lent else ():
            giver = self._lent.get(copy_of(node))
            if giver and not self._is_gone(giver, node.path):
                lent.setdefault(giver, []).append(node)
        keys: dict[Node, str] = {}
        for giver, files in lent.items():
            keys |= keys_of(files, f"{folder}/{PODS}/{giver}/{AGAIN}", None, taken)
        return keys

    def announce(self, due: Due) -> None:
        """Announce a picture: its number, and the paths of this pod's own files in it."""
        if not self._shards or due.alone:
            return
        nodes = due.picture.nodes.values()
        if self._lent:
            present = {copy_of(node) for node in nodes}
            self._lent = {copy: giver for copy, giver in self._lent.items() if copy in present}
        own = [node.path for node in nodes if node.kind == "file" and not self.has_lent(node)]
        own += [f"{node.path}/" for node in nodes if node.kind == "directory"]
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
            mine = {file.path for file in own if not is_lent(file)}
            if nodes is not last_nodes:  # The last picture is older than what was announced since.
                self._note_removed(mine | {path for path, node in nodes.items() if node.kind == "directory"})
            kinds = {kind_of(path) for path, node in nodes.items() if not node.same(last_nodes.get(path))}
            self._wait_for(
                pod
                for pod, heard in self._heard.items()
                if self._is_pending(pod, heard, mine) or self._is_silent(pod, heard.etag, kinds)
            )
        if not self._waits_for and not self._is_early():
            return self._united(own, nodes)
        uri = self._store.uri(folder_name(due.number, self._fence.number))
        pods = ", ".join(self._waits_for[:MOST_NAMED]) or "other pods"
        self.lacking = f"checkpoint {uri} waits for files of {pods}"
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
            mine = {file.path for file in files if not is_lent(file)}
            self._wait_for(pod for pod, heard in self._heard.items() if self._has_pending(pod, heard, mine))
            keys = {file.key for file in files}
            if any(file.key not in keys for file in self._united(files, nodes)):
                return True
        if ended and self._waits_for:
            pods = ", ".join(self._waits_for[:MOST_NAMED])
            self.lacking = f"the last checkpoint in {self._store.location.uri} waits for files of {pods}"
        return False

    @property
    def held_up(self) -> str:
        """Which pods have held up the next snapshot for a minute or more; empty: none."""
        late = self._waits_for and self._now() - self._waits_since >= LATE_SECONDS
        return self.lacking if late else ""

    def given_up(self) -> bool:
        """Return whether nobody waits for what lacks any more, because the program ended some time ago."""
        waited = {pod: self._heard[pod].etag for pod in self._waits_for}
        limit = LATE_AT_END_SECONDS if waited else None
        return bool(self.lacking) and self._lateness.given_up(self.lacking, limit, waited)

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

    def may_remove(self, key: str) -> bool:
        """Return whether an object that nobody names can be removed: no pod is about to name it."""
        place = number_and_claim(key.partition("/")[0])
        if not is_of_pod(key) or place is None or place[1] != self._fence.number:
            return True
        heard = self._heard.get(key.split("/")[2])
        return heard is not None and is_in_answer(heard.said.answer, key)

    def _is_early(self) -> bool:
        """Return whether other pods may still tell of their first files, because the program has just ended."""
        ended_at = None if self._given else self._ended_at
        return ended_at is not None and self._now() - ended_at < FIRST_WORDS_SECONDS

    def _is_time(self) -> bool:
        """Return whether to list again: the longer a pod is waited for, the longer are the pauses."""
        pause = 0.0
        if self._waits_for:
            pause = max((self._listed_at - self._waits_since) / 4, len(self._waits_for) / PODS_A_SECOND)
        return self._now() - self._listed_at >= min(pause, LONGEST_PAUSE_SECONDS)

    def _wait_for(self, pods: Iterable[str]) -> None:
        if not self._waits_for:
            self._waits_since = self._now()
        self._waits_for = tuple(sorted(pods))
        waits_for = tuple((pod, beginning(self._heard[pod].etag)) for pod in self._waits_for)
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

    def _is_pending(self, pod: str, heard: _Heard, mine: set[str]) -> bool:
        """Return whether to wait for a pod's pending files of this picture."""
        said, folders = heard.said, folders_in(mine)
        later = of_the_next(said.pending, folders | folders_in(file.path for file in said.files), folders)
        return self._has_pending(pod, heard, mine | later)

    def _has_pending(self, pod: str, heard: _Heard, but: set[str]) -> bool:
        """Return whether to wait for a pod's pending files, but for some."""
        return not set(heard.said.pending) <= but and not self._is_excused(pod, heard.etag, PENDING_SECONDS)

    def _is_silent(self, pod: str, etag: str, kinds: Set[str]) -> bool:
        """Return whether to wait for a pod that gave files of such kinds to the last snapshot, and said no more."""
        before, given = self._given.get(pod, ("", frozenset[str]()))
        return before == etag and bool(given & kinds) and not self._is_excused(pod, etag, SILENT_SECONDS)

    def _is_excused(self, pod: str, etag: str, limit: float) -> bool:
        """Return whether a pod has been waited for in vain, while its manifest had this ETag."""
        if self._excused.get(pod) == etag:
            return True
        if self._quiet_since.get(pod, ("", 0.0))[0] != etag:
            self._quiet_since[pod] = etag, self._now()
        if self._now() - self._quiet_since[pod][1] < limit:
            return False
        log.warning("%s gives no files for %.0f s: checkpoints do not wait for it", pod, limit)
        self._excused[pod] = etag
        return True

    def _note_removed(self, mine: set[str]) -> None:
        """Note other pods' files at paths that this pod's program has removed: snapshots leave them out."""
        present = mine | folders_in(mine)
        gone, self._had = self._had - present, present
        if gone:
            files = (file for heard in self._heard.values() for file in heard.said.files)
            self._removed |= {file.key for file in files if is_below(file.path, gone)}
        self._removed &= self.named

    def _united(self, own: Collection[StoredFile], nodes: Mapping[str, Node]) -> tuple[StoredFile, ...]:
        here = (file for file in own if not self._is_gone(giver_of(file), file.path))
        heard = (file for _, heard in sorted(self._heard.items()) for file in heard.said.files)
        given = [file for file in heard if file.key not in self._removed]
        left = (
            file for file in left_in_place(self._left, nodes) if not self._is_gone(giver_of(file), file.path)
        )
        return united(here, [*given, *left], nodes)

    def _is_gone(self, giver: str, path: str) -> bool:
        """Return whether the pod that gave a file has removed it."""
        heard = self._heard.get(giver)
        return heard is not None and path in heard.said.gone

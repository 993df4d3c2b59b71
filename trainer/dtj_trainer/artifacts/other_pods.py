"""The files of other pods in the snapshots of the pod of rank 0, parts that `save` announces among them.

`checkpoint_upload` puts them into its snapshots; `sync` starts the upload of parts in the other pods. Not here: the
upload of files that no `save` announces (`pod_files_upload`), and what pods say of these files (`PodManifest`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.capture import folders_of, is_below, kind_of
from dtj_trainer.artifacts.fence import claim_of_attempt
from dtj_trainer.artifacts.folder_captures import walk
from dtj_trainer.artifacts.local_checkpoints import MARK_FILE, prune, saved_folders
from dtj_trainer.artifacts.manifest import (
    PARTS,
    PODS,
    Manifest,
    ManifestError,
    StoredFile,
    folder_name,
    number_and_claim,
)
from dtj_trainer.artifacts.multipart import at_once
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
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.artifacts.sent_files import FileChanged, SentFiles, why_unsent
from dtj_trainer.artifacts.snapshot import keys_of
from dtj_trainer.clock import now_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
    from pathlib import Path

    from dtj_trainer.artifacts.capture import Node
    from dtj_trainer.artifacts.fence import Fence
    from dtj_trainer.artifacts.snapshot import Due
    from dtj_trainer.artifacts.store import Store, StoredObject


# A checkpoint may consist of parts, as that of FSDP does: each pod holds one part.
#
# Each pod uploads its files into the checkpoint's folder in the bucket, and then a part manifest. The pod with the
# claim writes the checkpoint's manifest once all parts are there. Until then the folder is no checkpoint.

log = logging.getLogger(__name__)

LATE_PART_SECONDS = 30.0
"""How long the pod of rank 0 waits, after the end of its program, for the parts of other pods."""


def read_parts(store: Store, folder: str) -> list[Manifest]:
    """Return the part manifests in a checkpoint's folder. Raises S3Error."""
    found = []
    for item in store.objects(f"{folder}/{PARTS}"):
        try:
            part = Manifest.from_json(store.get_bytes(item.key), folder)
            if part.folder != folder:
                raise ManifestError(f"the part belongs to checkpoint {part.folder}")
            found.append(part)
        except ManifestError as error:
            log.warning("part %s can't be used: %s", store.uri(item.key), error)
    return found


def united_parts(files: tuple[StoredFile, ...], parts: list[Manifest]) -> tuple[StoredFile, ...]:
    """Return the files of all parts. Raises S3Error where two parts have files of the same name."""
    all_files = [*files, *(file for part in parts for file in part.files)]
    counts = Counter(file.path for file in all_files)
    if twice := {path for path, count in counts.items() if count > 1}:
        raise S3Error(
            f"several pods have saved a file {min(twice)}: each file of a checkpoint in parts needs its own name",
            transient=False,
        )
    return tuple(all_files)


def with_parts(
    store: Store, due: Due, files: tuple[StoredFile, ...], last: Manifest | None, claim: int
) -> tuple[tuple[StoredFile, ...], str]:
    """Return the files of a snapshot with the parts of other pods, and what is missing. Raises S3Error.

    last: the last snapshot of the folder, if it has the same folder of `save`.
    """
    if due.mark is None or due.mark.parts == 1 or due.saved is None:
        return files, ""
    if last:
        own = {file.path for file in files}
        before = (file for file in last.files if is_below(file.path, {due.saved}))
        return (*files, *(file for file in before if file.path not in own)), ""
    folder = folder_name(due.mark.step, claim)
    found = read_parts(store, folder)
    if len(found) < due.mark.parts - 1:
        return files, f"checkpoint {store.uri(folder)} has {len(found) + 1} of {due.mark.parts} parts"
    return united_parts(files, found), ""


class Lateness:
    """How long a pod whose program has ended waits for the parts of other pods."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since: float | None = None
        self._signs: object = None

    def given_up(self, lacking: str, limit: float | None = None, signs: object = None) -> bool:
        """Return whether the wait that began at the first call is over. `lacking`: what is missing, for the log.

        signs: a change of this value begins the wait again.
        """
        if signs != self._signs:
            self._signs, self._since = signs, None
        limit = LATE_PART_SECONDS if limit is None else limit
        self._since = self._now() if self._since is None else self._since
        if self._now() - self._since < limit:
            return False
        log.warning(
            "%s: other pods have not uploaded their files in time, and this pod waits no longer", lacking
        )
        return True


class PartUploader:
    """Uploads a pod's parts of checkpoints. For a pod without the claim.

    `job` is the job's prefix with the claim at `claim_key`, `store` its checkpoints prefix. One thread makes all
    passes; other threads may read `bytes_uploaded`.
    """

    def __init__(
        self,
        folder: Path,
        job: Store,
        store: Store,
        *,
        claim_key: str,
        attempt: int,
        keep: int,
        pod: str,
    ) -> None:
        self._folder, self._job, self._store = folder, job, store
        self._claim_key, self._attempt, self._keep, self._pod = claim_key, attempt, keep, pod
        self._done: set[Node] = set()
        self._keys: set[str] = set()
        """All keys that this process has used. No key is used twice, not even for a step that is saved again:
        manifests may name it."""
        self._sent = SentFiles(store, folder, self._count_bytes)
        self._lock = threading.Lock()
        self.bytes_uploaded = 0
        self._round: set[Node] = set()
        """The files that the last round began with, until a pass takes them into account."""

    def note_restored(self, manifest: Manifest) -> None:
        """Mark the files of a restored checkpoint as uploaded."""
        self._done |= self._of(manifest)

    def begin_round(self, manifest: Manifest | None) -> None:
        """Start from the folder's present content: a snapshot that was put back, or nothing. For any thread."""
        self._round = self._of(manifest) if manifest else set()

    def _of(self, manifest: Manifest) -> set[Node]:
        paths = manifest.paths
        return {node for node in walk(self._folder) if node.path in paths}

    def upload_pass(self, *, ended: bool, died_ns: int | None) -> bool:
        """Upload the parts of complete checkpoints, newest first; return True when nothing is left. Raises S3Error.

        Only parts that `save` has completed are uploaded, whether the program runs or has died.
        """
        del ended, died_ns
        begun, self._round = self._round, set()
        self._done |= begun
        marks = {name: mark for name, mark in saved_folders(self._folder).items() if mark.parts > 1}
        marks = prune(self._folder, marks, self._keep)
        files = {name: self._files(name) for name in marks}
        present = {node for nodes in files.values() for node in nodes}
        self._done &= present
        self._sent.keep_only(present)
        waiting = [name for name, nodes in files.items() if not self._done.issuperset(nodes)]
        waiting.sort(key=lambda name: marks[name].step, reverse=True)
        try:
            return all(self._upload(name, marks[name].step, files[name]) for name in waiting)
        except (FileChanged, OSError) as error:
            log.info("part of a checkpoint: %s", why_unsent(error))
            return False

    def _files(self, name: str) -> list[Node]:
        """Return the files of this pod's part, without the mark file: the pod of rank 0 uploads the mark
        file.
        """
        mark = f"{name}/{MARK_FILE}"
        nodes = walk(self._folder, below=name)
        return [node for node in nodes if node.kind == "file" and node.path != mark]

    def _upload(self, name: str, step: int, nodes: list[Node]) -> bool:
        """Upload one part and its manifest; return False if nobody of this attempt has the claim yet."""
        claim = self._claim()
        if claim is None:
            return False
        folder = folder_name(step, claim)
        keys = keys_of(nodes, f"{folder}/{PODS}/{self._pod}", name, self._keys)
        self._keys.update(keys.values())
        files = tuple(self._sent.send(keys, self._store.uri(folder)))
        if self._claim() != claim:
            return False
        part = Manifest(step, step, now_text(), self._attempt, files, claim=claim)
        self._store.put_bytes(f"{folder}/{PARTS}/{self._pod}.json", part.to_json())
        self._done.update(nodes)
        log.info("uploaded a part of checkpoint %s (%d bytes)", self._store.uri(folder), part.size)
        return True

    def _claim(self) -> int | None:
        claim = claim_of_attempt(self._job, self._claim_key, self._attempt)
        return claim.number if claim else None

    def _count_bytes(self, amount: int) -> None:
        with self._lock:
            self.bytes_uploaded += amount


# The following pure functions unite the files of all pods in one snapshot.
#
# The next snapshots also have the files that this pod's restore left in the bucket because the volume had no room.

LeftFiles = dict["StoredFile", frozenset[str]]
"""Files that a restore left in the bucket, each with those of its folders that the restore made."""


def united(
    own: Iterable[StoredFile], given: Iterable[StoredFile], nodes: Mapping[str, Node]
) -> tuple[StoredFile, ...]:
    """Return the files of this pod and the files that other pods give. Of several with one path, the first counts.

    own: of the capture `nodes`; files that other pods gave to the restored snapshot may be among them, and any given
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
        for path in lent & above:  # The path was a file in the restored snapshot, and is a folder now.
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


SILENT_SECONDS = 180.0
"""Snapshots wait no longer for a pod that gave files to the last snapshot and whose pod manifest has not changed for
this long."""
PENDING_SECONDS = 3600.0
"""Snapshots wait no longer for a pod with pending files whose pod manifest has not changed for this long."""
LATE_AT_END_SECONDS = 300.0
"""After the end of the program, a snapshot waits for pods with pending files for at most this long."""
FIRST_WORDS_SECONDS = 5.0
"""How long after the end of the program other pods may take to announce their first files."""
PODS_A_SECOND = 500
"""While a snapshot waits for n pods, the pause between two listings of the bucket is at least n / PODS_A_SECOND
seconds."""
MOST_NAMED = 4
"""A message names at most this many of the pods that a snapshot waits for."""
AGAIN = "again"
"""Part of the keys of another pod's restored files when the pod of rank 0 sends them again."""
LONGEST_PAUSE_SECONDS = 10.0  # between two listings of the bucket while a snapshot waits for a pod


@dataclass(frozen=True)
class _Heard:
    etag: str
    said: PodManifest


class OtherPods:
    """The other pods of a job, for the pod of rank 0. For one thread. Its methods raise S3Error."""

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
        """What the current snapshot waits for, as text for the log."""
        self._heard: dict[str, _Heard] = {}
        self._given: dict[str, tuple[str, frozenset[str]]] = {}
        """By pod that gave files to the last snapshot: the ETag that its pod manifest had then, and the kinds of the
        files."""
        self._quiet_since: dict[str, tuple[str, float]] = {}
        """By pod that snapshots wait for: the ETag of its pod manifest, and since when the pod manifest has had this
        ETag."""
        self._excused: dict[str, str] = {}
        """By pod that snapshots wait for no longer: the ETag of its pod manifest. Snapshots wait again once the ETag
        changes."""
        self._announced = PodManifest()
        self._removed: set[str] = set()
        """The keys of other pods' files at paths, or in folders, that this pod's program has removed since."""
        self._had: set[str] = set()
        self._listed_at = self._waits_since = now()
        self._waits_for: tuple[str, ...] = ()

    def begin(self, *, ended: bool) -> None:
        """Begin another attempt to complete a snapshot. ended: the program has ended."""
        self.lacking = ""
        self._ended_at = (self._ended_at or self._now()) if ended else None

    def note_restored(self, manifest: Manifest, nodes: Mapping[str, Node]) -> None:
        """Start from the folder's present content, which a restore of this snapshot left."""
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
        """Announce a capture: its number, and the paths of this pod's own files in it."""
        if not self._shards or due.alone:
            return
        nodes = due.capture.nodes.values()
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
        """Return the files of a snapshot, of this pod and of other pods; None while files of other pods are missing.

        own: the files of the capture. last, last_nodes: the last snapshot, and its capture.
        """
        nodes = due.capture.nodes
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
            # The last capture itself shows no removals: other pods may have announced files after that capture.
            if nodes is not last_nodes:
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

        last, nodes: the last snapshot, and its capture. ended: the program has ended; `lacking` says which pods have
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
        """Return whether the wait for missing files is over, because the program ended some time ago."""
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
        """The keys of the files that other pods name in their manifests, perhaps for the next snapshot."""
        return {file.key for heard in self._heard.values() for file in heard.said.files}

    def may_remove(self, key: str) -> bool:
        """Return whether an object that no manifest names can be removed: no pod is about to name the object."""
        place = number_and_claim(key.partition("/")[0])
        if not is_of_pod(key) or place is None or place[1] != self._fence.number:
            return True
        heard = self._heard.get(key.split("/")[2])
        return heard is not None and is_in_answer(heard.said.answer, key)

    def _is_early(self) -> bool:
        """Return whether other pods may still announce their first files, because the program has just ended."""
        ended_at = None if self._given else self._ended_at
        return ended_at is not None and self._now() - ended_at < FIRST_WORDS_SECONDS

    def _is_time(self) -> bool:
        """Return whether to list the pod manifests again. The pauses grow with the time that a snapshot has
        waited.
        """
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
        """Read the pod manifests that have changed, and remove those of earlier claims."""
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
        """Return whether to wait for a pod's pending files of this capture."""
        said, folders = heard.said, folders_in(mine)
        later = of_the_next(said.pending, folders | folders_in(file.path for file in said.files), folders)
        return self._has_pending(pod, heard, mine | later)

    def _has_pending(self, pod: str, heard: _Heard, but: set[str]) -> bool:
        """Return whether to wait for pending files of a pod, other than those in `but`."""
        return not set(heard.said.pending) <= but and not self._is_excused(pod, heard.etag, PENDING_SECONDS)

    def _is_silent(self, pod: str, etag: str, kinds: Set[str]) -> bool:
        """Return whether to wait for a pod that gave files of these kinds to the last snapshot, and whose manifest is
        unchanged.
        """
        before, given = self._given.get(pod, ("", frozenset[str]()))
        return before == etag and bool(given & kinds) and not self._is_excused(pod, etag, SILENT_SECONDS)

    def _is_excused(self, pod: str, etag: str, limit: float) -> bool:
        """Return whether the wait for a pod has lasted `limit` seconds while its manifest had this ETag."""
        if self._excused.get(pod) == etag:
            return True
        if self._quiet_since.get(pod, ("", 0.0))[0] != etag:
            self._quiet_since[pod] = etag, self._now()
        if self._now() - self._quiet_since[pod][1] < limit:
            return False
        log.warning("pod %s has announced no files for %.0f s: checkpoints wait for it no longer", pod, limit)
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

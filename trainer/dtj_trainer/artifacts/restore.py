"""Restores the newest good snapshot from the bucket into the checkpoints folder."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, NamedTuple

from dtj_trainer import contract
from dtj_trainer.artifacts.fence import claim_of_attempt
from dtj_trainer.artifacts.manifest import VERSION, Manifest, ManifestError, NewerManifest, number_and_claim
from dtj_trainer.artifacts.put_back import NOWHERE, STATE_FILE, leave_only, put_back, remove_others
from dtj_trainer.artifacts.retention import ANCHOR_SECONDS
from dtj_trainer.artifacts.s3 import LONGEST_MIRROR_DELAY_SECONDS, Backoff, DamagedObject, NoSuchKey, S3Error
from dtj_trainer.artifacts.snapshot import (
    CheckpointIndex,
    age,
    folders_newest_first,
    read_index,
    read_manifest,
)
from dtj_trainer.artifacts.store import Store, open_store
from dtj_trainer.clock import seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from dtj_trainer.artifacts.fence import Fence
    from dtj_trainer.artifacts.file_fetch import Near
    from dtj_trainer.artifacts.sync import SyncSettings


log = logging.getLogger(__name__)

RESUME_AUTO = "Auto"
RESUME_NEVER = "Never"
_TO_START_ANEW = "To start from 0 instead, set spec.artifacts.resume: Never"


class Restored(NamedTuple):
    """A restored snapshot, and its URI."""

    manifest: Manifest
    uri: str
    own: bool
    """Whether the snapshot is below the job's own prefix."""


class Lineage(NamedTuple):
    """The snapshots that a restore may choose after the user has gone back to one of them.

    folder: of that snapshot. since: the first attempt that resumed from that snapshot. The default allows all.
    """

    folder: str = ""
    since: int = 0

    def has(self, folder: str, attempt: int | None) -> bool:
        """Return whether a restore may choose a snapshot. attempt: the writer of the snapshot; None: unknown."""
        return attempt is None or attempt >= self.since or folder == self.folder


ALL = Lineage()


def restore(
    own: Store,
    folder: Path,
    resume: str,
    near: Near = NOWHERE,
    *,
    kept: Callable[[CheckpointIndex], set[str]] | None = None,
    skip: Collection[str] = (),
    lineage: Lineage = ALL,
    on_choice: Callable[[str], None] = lambda _: None,
) -> Restored | None:
    """Restore the newest good snapshot into `folder`; None when there is none and training starts from 0.

    `resume` is `Auto` (the job's own snapshots below `own`), `Never`, or the `s3://` prefix of another job's
    checkpoints, which is used when the job has none. Another job may remove its snapshots at any time: all files of
    those are brought at once. A damaged snapshot is skipped with a warning, and the next older one among `kept` is
    restored: a removal of an earlier attempt that is still under way takes nothing of those. Files that are in a
    place of `near` do not come from the bucket.

    skip: folders of snapshots that are restored only if there are no others; with two of them, the snapshot that is
    10 minutes older than the newest comes first. lineage: other snapshots of the job are not restored; with it,
    `resume` is the URI of its snapshot. on_choice: called with the URI of a snapshot before it is brought.

    Raises S3Error: the bucket can't be read; none of the existing snapshots can be restored; or the other prefix
    holds no good snapshot.
    Raises ValueError: `resume` has another value.
    """
    if resume == RESUME_NEVER:
        log.info("spec.artifacts.resume is Never: training starts from 0")
        return None
    # Allow the snapshot that the user has gone back to, even where retention no longer keeps it.
    to_choose = (lambda index: kept(index) | {lineage.folder}) if kept else None
    manifest = _restore_newest(
        own, folder, near, on_choice, whole=False, kept=to_choose, skip=skip, lineage=lineage
    )
    if manifest:
        return Restored(manifest, own.uri(manifest.folder), own=True)
    if lineage.since:
        raise S3Error(
            f"the checkpoint to go back to, {resume}, does not exist, and there is no later one: name another one by "
            "`dtj suspend` and `dtj resume --checkpoint`",
            transient=False,
        )
    other = None if resume in {RESUME_AUTO, ""} else open_store(resume, received=own.received)
    if other is None:
        log.info("no checkpoint below %s: training starts from 0", own.location.uri)
        return None
    return _restore_other(other, folder, near, on_choice)


def restore_exactly(own: Store, folder: Path, uri: str, near: Near = NOWHERE) -> Restored:
    """Restore the snapshot with this URI, which another pod of the job has chosen; see `restore`.

    Raises S3Error, for a damaged snapshot a lasting one.
    """
    name = uri.rpartition("/")[2]
    if own.uri(name) != uri:
        return _restore_other(open_store(uri, received=own.received), folder, near, lambda _: None)
    try:
        manifest = read_manifest(own, name)
        fault = _put(own, manifest, folder, near, whole=False)
    except (NoSuchKey, ManifestError, DamagedObject) as error:
        raise S3Error(f"checkpoint {uri} can't be read: {error}", transient=False) from error
    if fault:
        raise S3Error(f"checkpoint {uri} is damaged: {fault}", transient=False)
    return Restored(manifest, uri, own=True)


def _restore_other(other: Store, folder: Path, near: Near, on_choice: Callable[[str], None]) -> Restored:
    manifest = _restore_exactly(other, folder, near, on_choice)
    if manifest:
        return Restored(manifest, other.location.uri, own=False)
    for store in (other, other.below(contract.CHECKPOINTS)):
        manifest = _restore_newest(store, folder, near, on_choice)
        if manifest:
            return Restored(manifest, store.uri(manifest.folder), own=False)
    raise S3Error(f"no complete checkpoint to resume from below {other.location.uri}", transient=False)


def _restore_exactly(
    snapshot: Store, folder: Path, near: Near, on_choice: Callable[[str], None]
) -> Manifest | None:
    """Restore the snapshot directly below the prefix; None when the prefix has no manifest of its own."""
    around, _, name = snapshot.location.prefix.rpartition("/")
    try:
        content = snapshot.get_bytes(contract.MANIFEST_FILE)
        manifest = Manifest.from_json(content, name)
    except NoSuchKey:
        return None
    except ManifestError as error:
        raise S3Error(f"checkpoint {snapshot.location.uri}: {error}", transient=False) from error
    store = snapshot.at(snapshot.location._replace(prefix=around))
    on_choice(snapshot.location.uri)
    fault = _put(store, manifest, folder, near, whole=True)
    if fault:
        raise S3Error(f"checkpoint {snapshot.location.uri}: {fault}", transient=False)
    return manifest


def _put(store: Store, manifest: Manifest, folder: Path, near: Near, *, whole: bool) -> str | None:
    fault = put_back(store, manifest, folder, near, whole=whole)
    if fault is None:
        leave_only(folder, manifest)
        size = ", ".join(filter(None, (f"{manifest.size} bytes", str(near))))
        log.info("restored checkpoint %s (%s)", store.uri(manifest.folder), size)
    return fault


def _restore_newest(
    store: Store,
    folder: Path,
    near: Near,
    on_choice: Callable[[str], None],
    *,
    whole: bool = True,
    kept: Callable[[CheckpointIndex], set[str]] | None = None,
    skip: Collection[str] = (),
    lineage: Lineage = ALL,
) -> Manifest | None:
    """Restore the newest snapshot below a checkpoints prefix whose files match its manifest.

    `whole`: see `put_back`. Returns None when no upload below the prefix was ever completed. Raises S3Error when all
    snapshots are damaged, or when a later release wrote the newest one: training from 0 would replace them with new
    ones.
    """
    damaged: dict[str, str] = {}
    while True:
        found = _newest(store, damaged, kept, skip, lineage)
        if found is None:
            break
        on_choice(store.uri(found.folder))
        fault = _put(store, found, folder, near, whole=whole)
        if fault is None:
            return found
        try:
            read_manifest(store, found.folder)
        except NoSuchKey:  # Another process uploaded a newer snapshot and removed this one.
            continue
        damaged[found.folder] = fault
        log.warning("checkpoint %s is damaged: %s; skipped", store.uri(found.folder), fault)
    if damaged:
        described = "; ".join(f"{folder}: {fault}" for folder, fault in list(damaged.items())[:3])
        raise S3Error(
            f"no checkpoint below {store.location.uri} can be restored: {len(damaged)} damaged ({described}). "
            f"{_TO_START_ANEW}",
            transient=False,
        )
    return None


def _newest(
    store: Store,
    damaged: dict[str, str],
    kept: Callable[[CheckpointIndex], set[str]] | None,
    skip: Collection[str],
    lineage: Lineage,
) -> Manifest | None:
    """Return the newest snapshot that is not in `damaged`; add those with a damaged manifest to `damaged`."""
    index = read_index(store) if (damaged or skip) and kept else None
    among = kept(index) if index and kept else None
    folders = folders_newest_first(store)
    if index and among and skip:
        folders = _others_first(index, [each for each in folders if each in among | index.newer], skip)
    for folder in folders:
        if folder in damaged:
            continue
        try:
            manifest = read_manifest(store, folder)
        except NoSuchKey:  # An upload is under way, or the folder only has files that other snapshots name.
            continue
        except NewerManifest as error:
            if not lineage.has(folder, error.attempt):
                continue
            raise S3Error(
                f"a newer release of dtj_trainer wrote the checkpoint {store.uri(folder)}: this release reads "
                f"manifests up to version {VERSION}. Use an image with the newer release. {_TO_START_ANEW}",
                transient=False,
            ) from error
        except (ManifestError, DamagedObject) as error:
            damaged[folder] = str(error)
            log.warning("checkpoint %s is damaged: %s; skipped", store.uri(folder), error)
            among = kept(read_index(store)) if kept else None
            continue
        if lineage.has(folder, manifest.attempt) and (among is None or folder in among):
            return manifest
    return None


def _others_first(index: CheckpointIndex, folders: list[str], skip: Collection[str]) -> list[str]:
    """Return the folders in the order in which to try them, those to skip last."""
    times = {folder: seconds_of(manifest.time) for folder, manifest in index.manifests.items()}
    newest = max(times.values(), default=0.0)
    others = [folder for folder in folders if folder not in skip]
    if len(skip) > 1:
        old = [folder for folder in others if newest - times.get(folder, newest) >= ANCHOR_SECONDS]
        others = [*old[:1], *(folder for folder in others if folder not in old[:1])]
    if not others:
        log.warning(
            "earlier attempts made no progress from any of the checkpoints: the newest one is tried again"
        )
    return [*others, *(folder for folder in folders if folder in skip)]


# All pods of an attempt restore the same snapshot, which the pod of rank 0 chooses and names in its claim.
#
# Otherwise each pod would choose the newest snapshot that the pod finds. Between the choices of two pods, a snapshot
# can be damaged, or appear.

_LONGEST_POLL_SECONDS = 5.0


def restore_checkpoint(
    job: Store, settings: SyncSettings, near: Near, fence: Fence | None, timeout: float
) -> Restored | None:
    """Restore the snapshot of this attempt into the checkpoints folder; see `restore`. Raises S3Error and ValueError.

    job: the job's prefix. fence: of the pod of rank 0.
    """
    snapshots, folder = job.below(contract.CHECKPOINTS), settings.checkpoints
    together = settings.shards and settings.resume != RESUME_NEVER
    if together and fence is None:
        known, restored = restore_as_rank_0(
            job,
            settings.attempt,
            lambda uri: restore_exactly(snapshots, folder, uri, near),
            timeout=timeout,
        )
        if known:
            return restored

    chosen_by_order = not (settings.resume_since or settings.resume_skip)

    def tell(uri: str, *, restored: bool = False) -> None:
        # Record the restored snapshot where another one may be newer: without the record, readers of the bucket
        # assume the newest snapshot.
        if fence and (together or (restored and not chosen_by_order)):
            fence.announce_restore(uri, restored=restored)

    found = restore(
        snapshots,
        folder,
        settings.resume,
        near,
        kept=lambda index: index.kept(settings.keep, settings.keep_every),
        skip=settings.resume_skip,
        lineage=settings.lineage,
        on_choice=tell,
    )
    tell(found.uri if found else "", restored=True)
    return found


def restore_as_rank_0(
    job: Store,
    attempt: int,
    restore: Callable[[str], Restored],
    *,
    timeout: float,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> tuple[bool, Restored | None]:
    """Restore the snapshot that the pod of rank 0 restores; return whether it has chosen, and what was restored.

    job: the job's prefix. restore: restores the snapshot with a URI. Waits until the pod of rank 0 has its snapshot,
    because that pod chooses another one if the first is damaged; for `timeout` seconds at most. Raises S3Error,
    Superseded among them.
    """
    deadline = now() + timeout
    restored: Restored | None = None
    fault: S3Error | None = None
    done = ""
    backoff = Backoff(_LONGEST_POLL_SECONDS)
    while True:
        claim = claim_of_attempt(job, contract.CLAIM_FILE, attempt)
        chosen = claim.restores if claim else None
        if chosen and chosen != done:
            done, restored, fault = chosen, None, None
            try:
                restored = restore(chosen)
            except S3Error as error:
                if error.transient:
                    raise
                fault = error  # If the snapshot is damaged, the pod of rank 0 chooses another one.
            continue
        is_over = claim is not None and (claim.restored or chosen == "")
        if is_over or now() >= deadline:
            if fault:
                raise fault
            if not is_over:
                log.warning(
                    "the pod of rank 0 has not restored a checkpoint in %.0f s: this pod waits no longer",
                    timeout,
                )
            return chosen is not None, restored
        sleep(backoff.next_delay())


# CheckpointMirror copies the newest snapshot of the bucket into the evaluator's own checkpoints folder.

POLL_SECONDS = 3.0


class CheckpointMirror:
    """Brings the newest snapshot below `store` into `folder`, pass by pass, from one thread.

    What the newest `keep` snapshots have stays in `folder`, because the program may still read it. The program sees
    complete files only, and of new folders all or nothing.
    """

    def __init__(
        self,
        folder: Path,
        store: Store,
        *,
        keep: int,
        lineage: Lineage = ALL,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """lineage: other snapshots are not mirrored."""
        self._folder = folder
        self._store = store
        self._keep = keep
        self._lineage = lineage
        self._now = now
        self._skipped: set[str] = set()
        """Folders of snapshots that did not arrive completely."""
        self._abandoned: set[str] = set()
        """Folders of snapshots that are outside `lineage`: the user has gone back to an earlier snapshot."""
        self._retry_at = math.inf
        self._backoff = Backoff(LONGEST_MIRROR_DELAY_SECONDS)
        self._mirrored: list[Manifest] = []
        self.newest: contract.CheckpointRef | None = None
        """The snapshot mirrored last. Other threads may read it."""

    def mirror_pass(self, *, ended: bool, died_ns: int | None) -> bool:
        """Fetch the newest snapshot if it is newer than the last one; always return True. Raises S3Error.

        While there is no newer snapshot, a pass costs one request, and a second request during an upload.
        """
        del ended, died_ns
        if self._now() >= self._retry_at:
            self._skipped.clear()
        before = len(self._skipped)
        self._fetch_newest()
        if len(self._skipped) > before:
            self._retry_at = self._now() + self._backoff.next_delay()
        elif not self._skipped:
            self._retry_at = math.inf
            self._backoff.reset()
        return True

    def _fetch_newest(self) -> None:
        last = age(self._mirrored[-1]) if self._mirrored else (-1, -1)
        for folder in folders_newest_first(self._store):
            if (number_and_claim(folder) or (0, 0))[::-1] <= last:
                return
            if folder in self._skipped or folder in self._abandoned:
                continue
            try:
                manifest = read_manifest(self._store, folder)
                if not self._lineage.has(folder, manifest.attempt):
                    self._abandoned.add(folder)
                    continue
                present = {file.path: file for file in self._mirrored[-1].files} if self._mirrored else {}
                fault = put_back(self._store, manifest, self._folder, present=present)
            except NoSuchKey:  # The snapshot is being uploaded.
                continue
            except (ManifestError, DamagedObject) as error:
                fault = str(error)
            if fault is None:
                self._take(manifest)
                return
            # The chief may have removed the snapshot during the download. The next pass then reads a newer manifest.
            log.warning("checkpoint %s is not mirrored: %s", folder, fault)
            self._skipped.add(folder)

    def _take(self, manifest: Manifest) -> None:
        # A resume from an earlier step makes later steps of the previous attempt obsolete. Drop them.
        earlier = (
            m for m in self._mirrored if m.step is None or manifest.step is None or m.step < manifest.step
        )
        self._mirrored = [*earlier, manifest][-self._keep :]
        remove_others(self._folder, {STATE_FILE}.union(*(each.paths for each in self._mirrored)))
        self.newest = {"time": manifest.time, "uri": self._store.uri(manifest.folder)}
        if manifest.step is not None:
            self.newest["step"] = manifest.step
        log.info("mirrored checkpoint %s (%d bytes)", self.newest["uri"], manifest.size)

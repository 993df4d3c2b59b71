"""The artifacts of a job in its bucket."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from dtj.api.errors import NotFound, Unreachable, Unusable
from dtj.api.yaml_lines import MOST_BYTES, first_object
from dtj_trainer import contract

if TYPE_CHECKING:
    from dtj_trainer.artifacts.manifest import Manifest
    from dtj_trainer.artifacts.store import Store, StoredObject

_REMEDY = "set AWS_ENDPOINT_URL_S3 to the URL of the store for this machine, and AWS_* to credentials"

_PIECE_BYTES = 8 << 20
_FIRST_PIECE_BYTES = 256 << 10


@dataclass(frozen=True)
class StoredCheckpoint:
    """A complete checkpoint in the bucket: the content of a pod's folder /dtj/checkpoints at one moment."""

    number: int
    """The number of the checkpoint, which is the value of `dtj resume --checkpoint`, and begins the folder's name."""
    step: int | None
    """Optimizer step at which the checkpoint was saved; None if neither a file nor the manifest names the step."""
    time: datetime
    size: int
    """Total size of the files of the checkpoint in bytes."""
    uri: str
    new: tuple[str, ...] = ()
    """Names of up to three of the newest files in the checkpoint."""


class Artifacts:
    """Read the objects below a job's prefix. All methods block.

    Every method raises NotFound if an object does not exist, and Unreachable if the bucket does not answer or denies
    access.
    """

    def __init__(self, uri: str, environment: Mapping[str, str]) -> None:
        """Store the location.

        uri: `s3://bucket/prefix`. environment: AWS_* variables, with the same meaning as in other AWS programs.
        """
        self.uri = uri
        self.environment = environment

    def ls(self, prefix: str = "") -> list[StoredObject]:
        """List the objects (key, size in bytes, etag) below a folder. The default is all objects of the job."""
        with explained():
            return list(self.store.objects(prefix.strip("/")))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return the size in bytes of each file below a folder, by key. A segmented file has the sum of its parts."""
        stored = {item.key: item.size for item in self.ls(prefix)}
        return {key: sum(stored[part] for part in parts) for key, parts in joined(stored).items()}

    def get(self, key_or_prefix: str, folder: str | Path) -> list[Path]:
        """Copy an object, or all objects below a prefix, into a folder. Returns the paths of the files.

        The key of an object is the path of the file in the folder. The segments of a segmented file become one file,
        and a name that can't be part of a key is restored.
        key_or_prefix: e.g. `checkpoints/938` or `model`; `""` means all objects.
        """
        from dtj_trainer.artifacts.store import path_of

        wanted = key_or_prefix.strip("/")
        files_below = joined(stored.key for stored in self.ls(wanted)) or {wanted: self._parts(wanted)}
        root = Path(folder).resolve()
        files = []
        for key, parts in files_below.items():
            file = (root / path_of(key)).resolve()
            if not file.is_relative_to(root):
                raise Unusable(
                    f"{self.store.uri(key)} can't be copied: its key leads out of the folder {folder}"
                )
            files.append(self._copy(parts, file))
        return files

    def cp(self, key: str, path: str | Path) -> Path:
        """Copy one object, or a segmented file, to a file. In a folder, the copy keeps the name of the object."""
        from dtj_trainer.artifacts.store import path_of

        target = Path(path)
        file = target / PurePosixPath(path_of(key)).name if target.is_dir() else target
        return self._copy(self._parts(key.strip("/")), file)

    def get_growth(self, key: str, file: Path) -> None:
        """Append the new bytes of an append-only object, such as a log or an event file, to its local copy."""
        with explained():
            self.store.get_growth(key, file)

    def read(self, key: str, most: int | None = None) -> bytes:
        """Return the content of one object, or of all segments of a segmented file.

        Raises Unusable for a file of more than `most` bytes.
        """
        with explained():
            sizes = {stored.key: stored.size for stored in self.store.named(key)}
        parts = joined(sizes).get(key, [key])
        total = sum(sizes.get(part, 0) for part in parts)
        if most is not None and total > most:
            raise Unusable(
                f"{self.store.uri(key)} has {total} bytes, and the limit is {most}",
                "`dtj report` reads files of any size",
            )
        return b"".join(self.pieces(parts))

    def begin_of(self, key: str, most: int) -> bytes:
        """Return the first bytes of an object. most: the maximum number of bytes."""
        with explained():
            found = self.store.get_changed(key, None, most)
        return found[0] if found else b""

    def end_of(self, key: str, most: int) -> tuple[bytes, bool]:
        """Return the last `most` bytes of a file, and whether these bytes are the whole file.

        The file is an object or a segmented file. Raises NotFound.
        """
        from dtj_trainer.artifacts.growing import fetched

        sizes = self._sizes_of(key)
        left, ranges = most, dict[str, tuple[int, int]]()
        for part, size in reversed(sizes):
            taken = min(size, left)
            if taken:
                ranges[part] = (size - taken, taken)
                left -= taken
        with explained():
            found = fetched(lambda part: self.store.get_range(part, *ranges[part]), [*reversed(ranges)])
            return b"".join(found) if ranges else b"", sum(size for _, size in sizes) <= most

    def backwards(self, parts: Sequence[tuple[str, int]]) -> Iterator[bytes]:
        """Yield the content of segments (key, size in bytes) backwards from the end, in pieces of growing size."""
        piece = _FIRST_PIECE_BYTES
        for key, size in reversed(parts):
            end = size
            while end:
                begin = max(0, end - piece)
                with explained():
                    yield self.store.get_range(key, begin, end - begin)
                end, piece = begin, min(2 * piece, _PIECE_BYTES)

    def pieces(self, keys: Sequence[str]) -> Iterator[bytes]:
        """Yield the contents of objects in the order of the keys. Several requests run at a time."""
        from dtj_trainer.artifacts.growing import fetched

        with explained():
            yield from fetched(self.store.get_bytes, keys)

    def stream(self, key: str) -> Iterator[bytes]:
        """Return the content of an object, or of a segmented file, in pieces of at most 8 MiB.

        Raises NotFound at once, before the first piece.
        """
        return self._ranges(self._sizes_of(key))

    def checkpoints(self) -> list[StoredCheckpoint]:
        """List the complete checkpoints, the oldest first."""
        return [self._stored(manifest) for manifest in reversed(self._manifests())]

    def current_checkpoint(self) -> StoredCheckpoint | None:
        """Return the checkpoint from which the job continues: the newest one, or an older one to which it went back.

        The claim of the last attempt names the older checkpoint until the attempt has saved a checkpoint.
        """
        from dtj_trainer.artifacts.fence import read_claim

        with explained():
            claim, _ = read_claim(self.store, contract.CLAIM_FILE)
        manifests = self._manifests()
        if claim and not any(manifest.claim >= claim.number for manifest in manifests):
            restored = (each for each in manifests if self._checkpoints.uri(each.folder) == claim.restores)
            manifests = [*restored, *manifests]
        return self._stored(manifests[0]) if manifests else None

    def checkpoint(self, number: int) -> StoredCheckpoint:
        """Return the checkpoint with a number; of several attempts, the newest one. Raises NotFound."""
        return self._stored(self._manifest(number))

    def get_checkpoint(self, number: int, folder: str | Path) -> list[Path]:
        """Copy a whole checkpoint into a folder, as a restore does, and return the paths of its files.

        number: of the checkpoint; of several attempts, the newest one of the number. What else is in the folder
        stays. Raises NotFound if there is no such checkpoint, and Unusable if the checkpoint is damaged.
        """
        from dtj_trainer.artifacts.put_back import put_back

        manifest, root = self._manifest(number), Path(folder)
        with explained():
            fault = put_back(self._checkpoints, manifest, root)
        if fault:
            raise Unusable(f"{self._checkpoints.uri(manifest.folder)} is damaged: {fault}")
        return sorted(root / file.path for file in manifest.files)

    def metrics(self, kind: str = contract.METRICS_FILE) -> list[dict[str, Any]]:
        """Return the rows of a metrics file. `metrics-evaluator.jsonl` has the rows of the evaluator."""
        return [json.loads(line) for line in self.read(kind).splitlines() if line.strip()]

    def job(self) -> dict[str, Any]:
        """Return the manifest of the job in job.yaml. Raises Unusable if job.yaml contains no object."""
        name = f"{self.uri}/{contract.JOB_FILE}"
        # Read one byte more than MOST_BYTES, so that `first_object` reports a larger file as too large.
        content = self.begin_of(contract.JOB_FILE, MOST_BYTES + 1)
        manifest = first_object(content.decode(errors="replace"), name)
        if manifest is None:
            raise Unusable(f"{name} contains no YAML object, and should contain the job")
        return manifest

    @cached_property
    def store(self) -> Store:
        """The store of the prefix. Its methods raise S3Error, which `explained` converts into DtjError."""
        from dtj_trainer.artifacts.store import open_store

        return open_store(self.uri, self.environment)

    @property
    def _checkpoints(self) -> Store:
        return self.store.below(contract.CHECKPOINTS)

    def _manifests(self) -> list[Manifest]:
        """Return the manifests of the complete checkpoints, the newest first."""
        from dtj_trainer.artifacts.snapshot import read_index

        with explained():
            return read_index(self._checkpoints).newest_first()

    def _manifest(self, number: int) -> Manifest:
        manifests = self._manifests()
        for manifest in manifests:
            if manifest.number == number:
                return manifest
        numbers = sorted({manifest.number for manifest in manifests})
        raise NotFound(
            f"there is no checkpoint {number} in {self._checkpoints.location.uri}",
            f"the bucket has the checkpoints {', '.join(map(str, numbers))}" if numbers else None,
        )

    def _stored(self, manifest: Manifest) -> StoredCheckpoint:
        return StoredCheckpoint(
            manifest.number,
            manifest.step,
            datetime.fromisoformat(manifest.time),
            manifest.size,
            self._checkpoints.uri(manifest.folder),
            manifest.new,
        )

    def _parts(self, key: str) -> list[str]:
        """Return the keys of the segments of a file, or only the key of the file if the file has no segments."""
        with explained():
            return joined(stored.key for stored in self.store.named(key)).get(key, [key])

    def _sizes_of(self, key: str) -> list[tuple[str, int]]:
        """Return the segments of a file with their sizes in bytes. Raises NotFound if there is no such file."""
        with explained():
            sizes = {stored.key: stored.size for stored in self.store.named(key)}
        parts = joined(sizes).get(key)
        if parts is None:
            raise NotFound(f"there is no {self.store.uri(key)}", "`dtj artifacts ls` lists the objects")
        return [(part, sizes[part]) for part in parts]

    def _ranges(self, parts: Sequence[tuple[str, int]]) -> Iterator[bytes]:
        for key, size in parts:
            for start in range(0, size, _PIECE_BYTES):
                with explained():
                    yield self.store.get_range(key, start, min(_PIECE_BYTES, size - start))

    def _copy(self, parts: Sequence[str], file: Path) -> Path:
        with explained():
            file.parent.mkdir(parents=True, exist_ok=True)
            if len(parts) == 1:
                self.store.get_file(parts[0], file)
                return file
        with explained(), file.open("wb") as whole:
            for piece in self.pieces(parts):
                whole.write(piece)
        return file


def joined(keys: Iterable[str]) -> dict[str, list[str]]:
    """Group keys by the file of which they are segments, in the order of the segments.

    A key with the form of a segment's key counts as a separate file if the first segment does not exist.
    """
    from dtj_trainer.artifacts.segments import FIRST, segment

    all_keys = list(keys)
    firsts = set(all_keys)
    files: dict[str, list[tuple[int, str]]] = {}
    for key in all_keys:
        part = segment(key)
        name, number = (part.file, part.number) if part.file in firsts else (key, FIRST)
        files.setdefault(name, []).append((number, key))
    return {name: [key for _, key in sorted(parts)] for name, parts in files.items()}


@contextmanager
def explained() -> Iterator[None]:
    """Convert an S3Error or OSError of the block into a DtjError."""
    from dtj_trainer.artifacts.s3 import NoSuchKey, S3Error

    try:
        yield
    except NoSuchKey as error:
        raise NotFound(str(error), "`dtj artifacts ls` lists the objects") from error
    except S3Error as error:
        raise Unreachable(str(error), _REMEDY) from error
    except OSError as error:
        raise Unusable(
            f"{error.filename or 'a local file'} can't be used: {error.strerror or error}"
        ) from error

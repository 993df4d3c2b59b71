"""What a job left in its bucket."""

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
from dtj.api.yaml_lines import read_documents
from dtj_trainer import contract

if TYPE_CHECKING:
    from dtj_trainer.artifacts.store import Store, StoredObject

_REMEDY = (
    "the store's URL as seen from here is AWS_ENDPOINT_URL_S3, or --endpoint; credentials are AWS_* variables"
)


@dataclass(frozen=True)
class StoredCheckpoint:
    """A complete checkpoint in the bucket."""

    step: int
    time: datetime
    size: int
    """Bytes of its files."""
    uri: str


class Artifacts:
    """The objects below a job's prefix. Synchronous. Raises NotFound for what is not there, Unreachable for a bucket
    that does not answer or refuses.
    """

    def __init__(self, uri: str, environment: Mapping[str, str]) -> None:
        """uri: s3://bucket/prefix. environment: AWS variables, as for every AWS program."""
        self.uri = uri
        self.environment = environment

    def ls(self, prefix: str = "") -> list[StoredObject]:
        """Objects (key, size in bytes, etag) below a folder; of the whole job by default."""
        with _explained():
            return list(self._store.objects(prefix.strip("/")))

    def get(self, key_or_prefix: str, folder: str | Path) -> list[Path]:
        """Copy an object, or all below a prefix (`checkpoints/938`, `model`, `""`: all), into a folder, which keeps
        their keys as paths. The segments of a file that grew become one file. Returns the files.
        """
        wanted = key_or_prefix.strip("/")
        below = joined(found.key for found in self.ls(wanted)) or {wanted: self._parts(wanted)}
        root = Path(folder).resolve()
        files = []
        for key, parts in below.items():
            file = (root / key).resolve()
            if not file.is_relative_to(root):
                raise Unusable(f"{self._store.uri(key)} has a key that leads out of {folder}")
            files.append(self._copy(parts, file))
        return files

    def cp(self, key: str, path: str | Path) -> Path:
        """Copy one object, or a file that grew, to a file, or under its own name into a folder that is there."""
        target = Path(path)
        file = target / PurePosixPath(key).name if target.is_dir() else target
        return self._copy(self._parts(key.strip("/")), file)

    def get_growth(self, key: str, file: Path) -> None:
        """Bring a file up to an object to which others only append, as a log or an event file."""
        with _explained():
            self._store.get_growth(key, file)

    def read(self, key: str) -> bytes:
        """The content of one object, or of all segments of a file that grew."""
        return b"".join(self.pieces(self._parts(key)))

    def pieces(self, keys: Sequence[str]) -> Iterator[bytes]:
        """The contents of some objects in the order of the keys, several requests at a time."""
        from dtj_trainer.artifacts.stored_segments import fetched

        with _explained():
            yield from fetched(self._store.get_bytes, keys)

    def checkpoints(self) -> list[StoredCheckpoint]:
        """The complete checkpoints, oldest step first."""
        from dtj_trainer.artifacts.checkpoint_index import read_index

        store = self._store.below(contract.CHECKPOINTS)
        with _explained():
            manifests = read_index(store).manifests
        return [
            StoredCheckpoint(made.step, datetime.fromisoformat(made.time), made.size, store.uri(folder))
            for folder, made in sorted(manifests.items(), key=lambda item: (item[1].step, item[1].claim))
        ]

    def metrics(self, kind: str = contract.METRICS_FILE) -> list[dict[str, Any]]:
        """The rows of a metrics file; `metrics-evaluator.jsonl` has those of the evaluator."""
        return [json.loads(line) for line in self.read(kind).splitlines() if line.strip()]

    def job(self) -> dict[str, Any]:
        """The job as it was written (job.yaml). Raises Unusable where somebody replaced the file."""
        name = f"{self.uri}/{contract.JOB_FILE}"
        documents = read_documents(self.read(contract.JOB_FILE).decode(errors="replace"), name)
        found = [document.data for document in documents if isinstance(document.data, dict)]
        if not found:
            raise Unusable(f"{name}: has no object")
        return found[0]

    @cached_property
    def _store(self) -> Store:
        from dtj_trainer.artifacts.store import open_store

        return open_store(self.uri, self.environment)

    def _parts(self, key: str) -> list[str]:
        """The keys of a file's segments; its own key where there are none."""
        with _explained():
            return joined(found.key for found in self._store.named(key)).get(key, [key])

    def _copy(self, parts: Sequence[str], file: Path) -> Path:
        with _explained():
            file.parent.mkdir(parents=True, exist_ok=True)
            if len(parts) == 1:
                self._store.get_file(parts[0], file)
                return file
        with _explained(), file.open("wb") as whole:
            for piece in self.pieces(parts):
                whole.write(piece)
        return file


def joined(keys: Iterable[str]) -> dict[str, list[str]]:
    """The keys by the files that they are segments of, in the order in which they are joined.

    A key that looks like a segment's is a file of its own where there is no first segment.
    """
    from dtj_trainer.artifacts.segments import FIRST, segment

    there = list(keys)
    firsts = set(there)
    files: dict[str, list[tuple[int, str]]] = {}
    for key in there:
        part = segment(key)
        name, number = (part.file, part.number) if part.file in firsts else (key, FIRST)
        files.setdefault(name, []).append((number, key))
    return {name: [key for _, key in sorted(parts)] for name, parts in files.items()}


@contextmanager
def _explained() -> Iterator[None]:
    """Raise an S3Error of this block as a DtjError."""
    from dtj_trainer.artifacts.s3 import NoSuchKey, S3Error

    try:
        yield
    except NoSuchKey as error:
        raise NotFound(str(error), "`dtj artifacts ls` lists what is there") from error
    except S3Error as error:
        raise Unreachable(str(error), _REMEDY) from error
    except OSError as error:
        raise Unusable(f"can't be written: {error}") from error

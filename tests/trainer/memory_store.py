"""A bucket in memory with conditional puts. Tests can stop its users before each request."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dtj_trainer.artifacts import s3
from dtj_trainer.artifacts.arriving_file import ArrivingFile
from dtj_trainer.artifacts.multipart import Uploaded
from dtj_trainer.artifacts.store import ABSENT, Store, StoredObject


@dataclass
class Bucket:
    """Objects by their whole names. `conditions`: what a store makes of conditional puts.

    "only IfNoneMatch" is a store that ignores If-Match.
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    conditions: str = "heeded"  # or "refused", "ignored", "only IfNoneMatch"


@dataclass
class Gate:
    """What one user of a bucket passes through with each request: `before` gets its name, `after` too."""

    before: Callable[[str], None] = lambda _: None
    after: Callable[[str], None] = lambda _: None


class MemoryStore(Store):
    """`dtj_trainer`'s store over a Bucket."""

    def __init__(self, bucket: Bucket, gate: Gate, prefix: str = "job") -> None:
        super().__init__(s3.S3Location("memory", prefix))
        self._bucket = bucket
        self._gate = gate

    def at(self, location: s3.S3Location) -> Store:
        return MemoryStore(self._bucket, self._gate, location.prefix)

    def put_bytes(self, key: str, content: bytes, *, replaces: str | None = None) -> str:
        self._gate.before(f"put {key}")
        bucket, name = self._bucket, self._name(key)
        if replaces is not None and bucket.conditions == "refused":
            raise s3.NotSupported("501 NotImplemented")
        heeded = ("heeded", "only IfNoneMatch") if replaces == ABSENT else ("heeded",)
        if replaces is not None and bucket.conditions in heeded:
            there = bucket.objects.get(name)
            if (ABSENT if there is None else _etag(there)) != replaces:
                raise s3.Changed(f"{key} is another one")
        bucket.objects[name] = content
        self._gate.after(f"put {key}")
        return _etag(content)

    def put_file(
        self,
        key: str,
        path: Path,
        on_bytes: Callable[[int], None] | None = None,
        *,
        replaces: str | None = None,
    ) -> str:
        return self.put_bytes(key, path.read_bytes(), replaces=replaces)

    def put_whole(
        self,
        key: str,
        path: Path,
        on_bytes: Callable[[int], None] | None = None,
        *,
        replaces: str | None = None,
    ) -> Uploaded:
        etag = self.put_file(key, path, on_bytes, replaces=replaces)
        return Uploaded(etag, hashlib.sha256(path.read_bytes()).hexdigest())

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        self._gate.before(f"get {key}")
        try:
            content = self._bucket.objects[self._name(key)]
        except KeyError:
            raise s3.NoSuchKey(f"{key} does not exist") from None
        return content, _etag(content)

    def get_changed(self, key: str, etag: str | None, most: int) -> tuple[bytes, str] | None:
        content, now = self.get_with_etag(key)
        return None if now == etag else (content[:most], now)

    def etag(self, key: str) -> str:
        return self.get_with_etag(key)[1]

    def get_file(self, key: str, path: Path) -> None:
        with ArrivingFile(path) as arriving:
            arriving.append(self.get_with_etag(key)[0])
            arriving.put()

    def get_with_sha256(self, key: str, path: Path, *, small: bool = False) -> str:
        self.get_file(key, path)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def get_rest(self, key: str, arriving: ArrivingFile) -> None:
        arriving.append(self.get_with_etag(key)[0][arriving.at :])

    def objects(self, prefix: str = "") -> Iterator[StoredObject]:
        self._gate.before(f"list {prefix}")
        own = len(self.location.prefix) + 1
        for name, content in sorted(self._bucket.objects.items()):
            if name.startswith(f"{self._name(prefix)}/"):
                yield StoredObject(name[own:], len(content), _etag(content))

    def named(self, start: str) -> Iterator[StoredObject]:
        self._gate.before(f"list {start}")
        own = len(self.location.prefix) + 1
        for name, content in sorted(self._bucket.objects.items()):
            if name.startswith(self._name(start)):
                yield StoredObject(name[own:], len(content), _etag(content))

    def folders(self) -> list[str]:
        self._gate.before("list folders")
        own = f"{self.location.prefix}/"
        below = (name[len(own) :] for name in self._bucket.objects if name.startswith(own))
        return sorted({name.split("/")[0] for name in below if "/" in name})

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            self._gate.before(f"delete {key}")
            self._bucket.objects.pop(self._name(key), None)


def _etag(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()

"""Copies a folder to a URI of the embedded store, which afterwards has the files of this folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtj.api.errors import DtjError
from dtj.local.object_store import OWN_BUCKET
from dtj_trainer.artifacts import s3
from dtj_trainer.artifacts.store import Store, StoredObject, open_store


@dataclass(frozen=True)
class Copied:
    """What a copy did. others: the keys below the URI that neither this folder nor an earlier copied folder has."""

    sent: int
    """The bytes that were uploaded."""
    removed: int
    """The number of deleted objects, which an earlier copy had brought."""
    others: Sequence[str]


def copy_folder(
    environment: Mapping[str, str],
    folder: Path,
    uri: str,
    progress: Callable[[int, int], None] = lambda _sent, _total: None,
) -> Copied:
    """Upload the files of a folder, except those that the URI has with the same content.

    Objects that an earlier copy brought, and that this folder does not have, are removed: the programs would read
    them too.

    environment: the AWS variables of the embedded store. progress: called with the bytes sent so far and the total
    bytes to send. Raises DtjError.
    """
    try:
        target, record = open_store(uri, environment), _Record(environment, uri)
        stored = {item.key: item for item in target.objects()}
        local = {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}
        brought = record.read()
        gone = [key for key in stored if key in brought and key not in local]
        others = [key for key in stored if key not in brought and key not in local]
        changed = {k: p for k, p in local.items() if not _is_same(p, stored.get(k), brought.get(k))}
        # Write the record before the first upload: a later copy then also removes the objects of an interrupted copy.
        record.write(brought | dict.fromkeys(changed, None))
        target.delete(gone)
        total, sent = sum(path.stat().st_size for path in changed.values()), 0
        new = {key: brought.get(key) for key in local}
        for key, path in changed.items():
            facts = _facts(path)
            new[key] = {**facts, "etag": target.put_file(key, path)}
            sent += facts["size"]
            progress(sent, total)
        record.write(new)
    except s3.S3Error as error:
        raise DtjError(f"{folder} can't be uploaded to {uri}: {error}") from error
    return Copied(total, len(gone), others)


_Brought = dict[str, dict[str, Any] | None]
"""The facts of each copied file, and the ETag of its object, by key; None if the copy of the file was interrupted."""


class _Record:
    """A record of the files that copies brought to a URI. The record is an object in OWN_BUCKET."""

    def __init__(self, environment: Mapping[str, str], uri: str) -> None:
        self._store: Store = open_store(f"s3://{OWN_BUCKET}/copies", environment)
        self._key = f"{hashlib.sha256(uri.rstrip('/').encode()).hexdigest()}.json"

    def read(self) -> _Brought:
        try:
            return dict(json.loads(self._store.get_bytes(self._key)))
        except s3.NoSuchKey:
            return {}

    def write(self, brought: _Brought) -> None:
        self._store.put_bytes(self._key, json.dumps(brought).encode())


def _facts(path: Path) -> dict[str, Any]:
    status = path.stat()
    return {"path": str(path.resolve()), "size": status.st_size, "modified": status.st_mtime_ns}


def _is_same(path: Path, stored: StoredObject | None, brought: Mapping[str, Any] | None) -> bool:
    """Return whether an object has the content of a file.

    The record of the last copy decides if the file's size and time are unchanged. Otherwise the ETag is compared,
    which is the MD5 sum of an object that was uploaded in one part.
    """
    if stored is None or stored.size != path.stat().st_size:
        return False
    if brought == {**_facts(path), "etag": stored.etag}:
        return True
    etag = stored.etag.strip('"')
    if "-" in etag:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() == etag

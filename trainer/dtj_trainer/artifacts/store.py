"""The objects below one S3 prefix: put, get, list and delete, with errors as `S3Error`."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from dtj_trainer.artifacts import s3

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from mypy_boto3_s3 import S3Client

DELETE_BATCH = 1000
"""As many keys as one DeleteObjects request may name."""


class StoredObject(NamedTuple):
    """A key relative to the store's prefix, its size in bytes, and the ETag, which changes with its content."""

    key: str
    size: int
    etag: str


class Store:
    """Reads and writes objects below `location`. May be shared by threads, not by processes.

    The client is made from `environment`, as `s3.make_client` does, unless one is given.
    """

    def __init__(
        self,
        location: s3.S3Location,
        client: S3Client | None = None,
        environment: s3.Environment | None = None,
    ) -> None:
        self.location = location
        self._given = client
        self._environment = environment

    @cached_property
    def _client(self) -> S3Client:
        return self._given or s3.make_client(self._environment)

    def below(self, name: str) -> Store:
        """The store of the prefix `name` below this one, with the same client."""
        return Store(self.location / name, self._client, self._environment)

    def _sentences(self, uri: str) -> AbstractContextManager[None]:
        return s3.sentences(uri, self._environment)

    def uri(self, key: str) -> str:
        """The whole URI of a key."""
        return (self.location / key).uri

    def _name(self, key: str) -> str:
        return (self.location / key).prefix

    def put_bytes(self, key: str, content: bytes) -> None:
        """Write one small object."""
        with self._sentences(self.uri(key)):
            self._client.put_object(Bucket=self.location.bucket, Key=self._name(key), Body=content)

    def put_file(self, key: str, path: Path, on_bytes: Callable[[int], None] | None = None) -> None:
        """Upload a file that does not change meanwhile, in parts if it is large."""
        with self._sentences(self.uri(key)):
            self._client.upload_file(
                str(path),
                self.location.bucket,
                self._name(key),
                Callback=on_bytes,
                Config=s3.transfer_config(),
            )

    def put_start_of_file(
        self, key: str, path: Path, size: int, on_bytes: Callable[[int], None] | None = None
    ) -> None:
        """Upload the first `size` bytes of a file that others append to."""
        with path.open("rb") as file:
            if size <= s3.MULTIPART_BYTES:
                self.put_bytes(key, file.read(size))
                if on_bytes:
                    on_bytes(size)
                return
            with self._sentences(self.uri(key)):
                self._client.upload_fileobj(
                    _FirstBytes(file, size),  # type: ignore[arg-type]  # needs only read()
                    self.location.bucket,
                    self._name(key),
                    Callback=on_bytes,
                    Config=s3.transfer_config(),
                )

    def get_bytes(self, key: str) -> bytes:
        """Read one small object; `NoSuchKey` when it is not there."""
        with self._sentences(self.uri(key)):
            answer = self._client.get_object(Bucket=self.location.bucket, Key=self._name(key))
            return answer["Body"].read()

    def get_file(self, key: str, path: Path) -> None:
        """Download an object to `path`, in parts if it is large; `NoSuchKey` when it is not there."""
        with self._sentences(self.uri(key)):
            self._client.download_file(
                self.location.bucket, self._name(key), str(path), Config=s3.transfer_config()
            )

    def objects(self, prefix: str = "") -> Iterator[StoredObject]:
        """All objects below `prefix` (a folder), in the order of their keys."""
        own = f"{self.location.prefix}/" if self.location.prefix else ""
        folder = own + (f"{prefix.strip('/')}/" if prefix else "")
        with self._sentences(self.uri(prefix)):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.location.bucket, Prefix=folder
            )
            for page in pages:
                for item in page.get("Contents", []):
                    yield StoredObject(item["Key"][len(own) :], item["Size"], item["ETag"])

    def folders(self) -> list[str]:
        """Names of the folders directly below the prefix."""
        own = f"{self.location.prefix}/" if self.location.prefix else ""
        with self._sentences(self.location.uri):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.location.bucket, Prefix=own, Delimiter="/"
            )
            return [
                item["Prefix"][len(own) :].rstrip("/")
                for page in pages
                for item in page.get("CommonPrefixes", [])
            ]

    def delete(self, keys: list[str]) -> None:
        """Delete objects; keys that are not there are no error."""
        for start in range(0, len(keys), DELETE_BATCH):
            batch = keys[start : start + DELETE_BATCH]
            with self._sentences(self.uri(batch[0])):
                answer = self._client.delete_objects(
                    Bucket=self.location.bucket,
                    Delete={"Objects": [{"Key": self._name(key)} for key in batch], "Quiet": True},
                )
            for failure in answer.get("Errors", []):
                raise s3.S3Error(
                    f"{self.uri(batch[0])} could not be deleted: {failure.get('Code', 'no reason given')}",
                    transient=failure.get("Code") != "AccessDenied",
                )


class _FirstBytes:
    """A reader that ends after `size` bytes, whatever is appended to the file."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._left = size

    def read(self, amount: int = -1) -> bytes:
        wanted = self._left if amount < 0 else min(amount, self._left)
        content = self._file.read(wanted)
        self._left -= len(content)
        return content


def open_store(uri: str, environment: s3.Environment | None = None) -> Store:
    """The store at an `s3://` URI; no request is made yet. Raises ValueError for a malformed URI.

    `environment`: as for `s3.make_client`.
    """
    return Store(s3.parse_s3_uri(uri), environment=environment)


def usable_name(name: str) -> bool:
    """Whether a file of this name is an artifact: hidden and temporary ones are not."""
    return not name.startswith(".") and not name.endswith((".tmp", ".part")) and os.sep not in name

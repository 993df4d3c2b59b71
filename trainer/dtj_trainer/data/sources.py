"""Where data may be: a folder of this machine, or a prefix in S3."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dtj_trainer.artifacts.s3 import MEBIBYTE, S3Location, make_client, parse_s3_uri, sentences
from dtj_trainer.artifacts.store import existing_folder
from dtj_trainer.data.errors import DataNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectRequestTypeDef

CHUNK_BYTES = MEBIBYTE


class RemoteFile(NamedTuple):
    """A file in the store. `etag` changes with the content. Size in bytes."""

    name: str
    size: int
    etag: str


class DataSource(Protocol):
    """A place from which files are fetched."""

    def list(self, pages: int | None = None, *, below: bool = False) -> dict[str, RemoteFile]:
        """List the files directly at the URI, by name. `pages`: pages of the listing to read; None: all.

        `below`: list the files of folders as well, by path.
        """

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """Yield the file's bytes from `start` on. Fails when the content no longer has the `etag`."""

    def keeps_md5(self, file: RemoteFile) -> bool:
        """Return whether an `etag` that looks like an MD5 is the MD5 of the content."""


class S3Source:
    """A prefix in a bucket. Raises S3Error with a sentence."""

    def __init__(self, location: S3Location, client: S3Client | None = None) -> None:
        self._location = location
        self._client = client or make_client()

    def list(self, pages: int | None = None, *, below: bool = False) -> dict[str, RemoteFile]:
        """See DataSource."""
        prefix = f"{self._location.prefix}/" if self._location.prefix else ""
        found: dict[str, RemoteFile] = {}
        with sentences(self._location.uri):
            listing = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._location.bucket, Prefix=prefix, Delimiter="" if below else "/"
            )
            for page in islice(listing, pages):
                for entry in page.get("Contents", []):
                    name = entry["Key"].removeprefix(prefix)
                    if name:
                        found[name] = RemoteFile(name, entry["Size"], entry["ETag"])
        return found

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """See DataSource."""
        where = self._location / file.name
        request: GetObjectRequestTypeDef = {
            "Bucket": where.bucket,
            "Key": where.prefix,
            "IfMatch": file.etag,
        }
        if start:  # Ask for a range only to resume: botocore verifies the checksums of whole objects only.
            request["Range"] = f"bytes={start}-"
        with sentences(where.uri):
            answer = self._client.get_object(**request)
            yield from answer["Body"].iter_chunks(CHUNK_BYTES)

    def keeps_md5(self, file: RemoteFile) -> bool:
        """See DataSource. False for an object that is encrypted with a key of KMS or of the customer."""
        where = self._location / file.name
        with sentences(where.uri):
            answer = self._client.head_object(Bucket=where.bucket, Key=where.prefix, IfMatch=file.etag)
        encrypted = answer.get("ServerSideEncryption")
        return encrypted in (None, "AES256") and not answer.get("SSECustomerAlgorithm")


def local_folder(uri: str) -> Path | None:
    """Return the folder of a plain path or a `file://` URI; None for other URIs.

    Raises DataNotFound when the folder does not exist, or the scheme is unknown.
    """
    try:
        return existing_folder(uri, "data lies")
    except ValueError as error:
        raise DataNotFound(str(error)) from error


def s3_location(uri: str) -> S3Location:
    """Parse an `s3://` URI. Raises DataNotFound for an invalid bucket."""
    try:
        return parse_s3_uri(uri)
    except ValueError as error:
        raise DataNotFound(str(error)) from error


def s3_source(uri: str) -> S3Source:
    """Return the source at an `s3://` URI. Raises DataNotFound for an invalid bucket."""
    return S3Source(s3_location(uri))

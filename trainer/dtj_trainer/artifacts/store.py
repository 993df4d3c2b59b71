"""The objects below one S3 prefix: put, get, list and delete, with errors as `S3Error`, and the keys of paths.

All that reads or writes a bucket has a Store. Not here: clients, options and the retry policy (`s3`), and uploads
in parts (`multipart`).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
import time
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, unquote_to_bytes, urlsplit

from dtj_trainer import contract
from dtj_trainer.artifacts import s3
from dtj_trainer.artifacts.arriving_file import ArrivingFile
from dtj_trainer.artifacts.download import ByteCount, Version, download, fetch_whole, read_body
from dtj_trainer.artifacts.multipart import Uploaded, Uploads
from dtj_trainer.artifacts.s3 import CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS, read_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from datetime import datetime

    from mypy_boto3_s3 import S3Client

    from dtj_trainer.artifacts.multipart import Condition
    from dtj_trainer.artifacts.s3 import S3Location


DELETE_BATCH = 1000
"""The largest number of keys in one DeleteObjects request."""
GROWTH_OVERLAP = 64
"""Bytes at the end of the local file that must equal the object's, before the object's growth is appended."""
ABSENT = "*"
"""The condition of a put that may not replace any object."""


class StoredObject(NamedTuple):
    """A key relative to the store's prefix, its size in bytes, and the ETag, which changes with the content."""

    key: str
    size: int
    etag: str
    modified: datetime | None = None
    """When the store received the object."""


class Store:
    """Reads and writes objects below `location`. Threads may share a store, processes may not.

    The store makes its client from `environment`, as `s3.make_client` does, unless `client` is given. `received`
    counts the bytes of files that arrive. `uploads` holds incomplete uploads that a later put resumes; without it, a
    put that fails leaves nothing in the bucket.
    """

    def __init__(
        self,
        location: s3.S3Location,
        client: S3Client | None = None,
        environment: s3.Environment | None = None,
        received: ByteCount | None = None,
        uploads: Uploads | None = None,
    ) -> None:
        self.location = location
        self.received = received or ByteCount()
        self.uploads = uploads or Uploads(resumable=False)
        self._given = client
        self._environment = environment

    @cached_property
    def _client(self) -> S3Client:
        return self._given or s3.make_client(self._environment)

    def below(self, name: str) -> Store:
        """Return the store of the prefix `name` below this one. Both have one client, and count bytes together."""
        return self.at(self.location / name)

    def at(self, location: s3.S3Location) -> Store:
        """Return the store of another location. Both have one client, and count their bytes together."""
        return Store(location, self._client, self._environment, self.received, self.uploads)

    def _sentences(self, uri: str) -> AbstractContextManager[None]:
        return s3.sentences(uri, self._environment)

    def uri(self, key: str) -> str:
        """Return the complete URI of a key."""
        return (self.location / key).uri

    def _name(self, key: str) -> str:
        return (self.location / key).prefix

    def put_bytes(self, key: str, content: bytes, *, replaces: str | None = None) -> str:
        """Write one small object; return its ETag.

        `replaces`: the ETag of the object that the put may replace, or ABSENT; None allows any object. Raises
        `Changed` when the key holds another object, `NotSupported` when the store has no conditional writes.
        """
        with self._sentences(self.uri(key)), self._conditional(key, replaces) as condition:
            answer = self._client.put_object(
                Bucket=self.location.bucket, Key=self._name(key), Body=content, **condition
            )
        return answer["ETag"]

    @contextlib.contextmanager
    def _conditional(self, key: str, replaces: str | None) -> Iterator[Condition]:
        try:
            if replaces is None:
                yield {}
            else:
                yield {"IfNoneMatch": ABSENT} if replaces == ABSENT else {"IfMatch": replaces}
        except Exception as error:
            explained = s3.explain(error, self.uri(key), self._environment) if replaces is not None else None
            # AWS answers NoSuchKey when If-Match has no object to compare with.
            if isinstance(explained, s3.NoSuchKey):
                raise s3.Changed(f"{self.uri(key)} does not exist any more") from error
            if explained is not None and s3.is_condition_refused(error):
                raise s3.NotSupported(str(explained)) from error
            raise

    def put_file(
        self,
        key: str,
        path: Path,
        on_bytes: Callable[[int], None] | None = None,
        *,
        replaces: str | None = None,
    ) -> str:
        """Upload a file that does not change meanwhile; return its ETag. `replaces`: as for `put_bytes`.

        A large file is sent in parts; see `multipart.Uploads` for the parts that have arrived when S3Error is raised.
        """
        return self.put_whole(key, path, on_bytes, replaces=replaces).etag

    def put_with_sha256(self, key: str, path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
        """Upload a file as `put_file` does; return the SHA-256 of the bytes sent."""
        return self.put_whole(key, path, on_bytes).sha256

    def put_whole(
        self,
        key: str,
        path: Path,
        on_bytes: Callable[[int], None] | None = None,
        *,
        replaces: str | None = None,
    ) -> Uploaded:
        """Upload a file as `put_file` does; return the ETag and the SHA-256 of the bytes sent."""
        sent = on_bytes or (lambda _: None)
        if path.stat().st_size <= s3.MULTIPART_BYTES:
            content = path.read_bytes()
            self.uploads.pace.take(len(content))
            etag = self.put_bytes(key, content, replaces=replaces)
            sent(len(content))
            return Uploaded(etag, hashlib.sha256(content).hexdigest())
        with self._sentences(self.uri(key)), self._conditional(key, replaces) as condition:
            target = self.location / key
            return self.uploads.put(self._client, target, path, sent, condition, self._environment)

    def abort_uploads(self, key: str) -> None:
        """Abort the incomplete uploads that earlier `put_file` calls left for that key, or below it."""
        self.uploads.abort_below(self.location / key)

    def etag(self, key: str) -> str:
        """Return the current ETag of an object. Raises `NoSuchKey` when it does not exist."""
        with self._sentences(self.uri(key)):
            return self._client.head_object(Bucket=self.location.bucket, Key=self._name(key))["ETag"]

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        """Read one small object and its ETag. Raises `NoSuchKey` when it does not exist."""
        with self._sentences(self.uri(key)):
            return read_body(
                lambda: self._client.get_object(Bucket=self.location.bucket, Key=self._name(key))
            )

    def get_bytes(self, key: str) -> bytes:
        """Read one small object. Raises `NoSuchKey` when it does not exist."""
        return self.get_with_etag(key)[0]

    def get_changed(self, key: str, etag: str | None, most: int) -> tuple[bytes, str] | None:
        """Read an object and its ETag, or return None if its ETag is still `etag`. Raises `NoSuchKey`.

        most: bytes from the beginning of the object that are read at most.
        """
        condition: dict[str, Any] = {"IfNoneMatch": etag} if etag else {}
        with self._sentences(self.uri(key)):
            bucket, name = self.location.bucket, self._name(key)
            try:
                return read_body(lambda: self._client.get_object(Bucket=bucket, Key=name, **condition), most)
            except Exception as error:
                if etag and s3.status_of(error) == HTTPStatus.NOT_MODIFIED:
                    return None
                raise

    def get_range(self, key: str, start: int, size: int) -> bytes:
        """Read at most `size` bytes of an object from an offset before its end. Raises `NoSuchKey`."""
        with self._sentences(self.uri(key)):
            bucket, name, part = self.location.bucket, self._name(key), f"bytes={start}-{start + size - 1}"
            return read_body(lambda: self._client.get_object(Bucket=bucket, Key=name, Range=part))[0]

    def get_file(self, key: str, path: Path) -> None:
        """Download an object to `path`, in parts if it is large. Raises `NoSuchKey` when it does not exist."""
        with self._sentences(self.uri(key)):
            self._client.download_file(
                self.location.bucket,
                self._name(key),
                str(path),
                Callback=self.received.add,
                Config=s3.transfer_config(),
            )

    def get_with_sha256(self, key: str, path: Path, *, small: bool = False) -> str:
        """Download an object to `path`; return the SHA-256 of the file.

        small: the object is known to fit into memory, and is fetched by one request.

        Raises `Changed` when the object changes during the download, `NoSuchKey` when it does not exist.
        """
        with ArrivingFile(path) as arriving:
            if small:
                with self._sentences(self.uri(key)):
                    fetch_whole(self._client, self.location.bucket, self._name(key), arriving, self.received)
            else:
                self.get_rest(key, arriving)
            arriving.put()
            return arriving.sha256

    def get_rest(self, key: str, arriving: ArrivingFile) -> None:
        """Download the bytes of an object that have not arrived yet, in parts. Raises as `get_with_sha256`."""
        with self._sentences(self.uri(key)):
            bucket, name = self.location.bucket, self._name(key)
            head = self._client.head_object(Bucket=bucket, Key=name)
            version = Version(bucket, name, head["ETag"], head["ContentLength"])
            download(self._client, version, arriving, self.received)

    def get_growth(self, key: str, path: Path) -> None:
        """Update a local file from an object that grows by appending; only the new bytes are fetched.

        If the end of the local file does not match the object, the whole object is fetched again in its place. Raises
        `NoSuchKey` when the object does not exist.
        """
        if not self._append_growth(key, path):
            path.write_bytes(b"")
            self._append_growth(key, path)

    def _append_growth(self, key: str, path: Path) -> bool:
        """Append the object's new bytes; return False when the object does not continue the local file."""
        with self._sentences(self.uri(key)), path.open("ab+") as file:
            size = file.tell()
            start = file.seek(max(0, size - GROWTH_OVERLAP))
            known = file.read()
            try:
                answer = self._client.get_object(
                    Bucket=self.location.bucket, Key=self._name(key), Range=f"bytes={start}-"
                )
            except Exception as error:
                if s3.is_out_of_range(error):  # The object is empty, or shorter than the file.
                    return not size
                raise
            with contextlib.closing(answer["Body"]) as body:
                if body.read(len(known)) != known:
                    return False
                for block in body.iter_chunks(s3.MEBIBYTE):
                    file.write(block)
            return True

    def objects(self, prefix: str = "") -> Iterator[StoredObject]:
        """List all objects below `prefix` (a folder), ordered by key."""
        own = f"{self.location.prefix}/" if self.location.prefix else ""
        folder = own + (f"{prefix.strip('/')}/" if prefix else "")
        return self._listed(folder, self.uri(prefix))

    def named(self, start: str) -> Iterator[StoredObject]:
        """List all objects whose keys begin with `start`, ordered by key."""
        return self._listed(self._name(start), self.uri(start))

    def _listed(self, start: str, uri: str) -> Iterator[StoredObject]:
        with self._sentences(uri):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.location.bucket, Prefix=start
            )
            for page in pages:
                yield from self._objects_of(page)

    def page(self, prefix: str, after: str, most: int) -> list[StoredObject]:
        """List the objects below `prefix` (a folder) whose keys follow the key `after`, in one request.

        most: the largest number of objects, 1000 at most. A shorter list is the last page.
        """
        with self._sentences(self.uri(prefix)):
            page = self._client.list_objects_v2(
                Bucket=self.location.bucket,
                Prefix=f"{self._name(prefix)}/",
                StartAfter=self._name(after) if after else "",
                MaxKeys=most,
            )
        return list(self._objects_of(page))

    def _objects_of(self, page: Mapping[str, Any]) -> Iterator[StoredObject]:
        own = f"{self.location.prefix}/" if self.location.prefix else ""
        for item in page.get("Contents", []):
            yield StoredObject(item["Key"][len(own) :], item["Size"], item["ETag"], item["LastModified"])

    def folders(self) -> list[str]:
        """List the names of the folders directly below the prefix."""
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
        """Delete objects; a missing key is not an error. Raises S3Error when the store refuses to delete one of
        them.
        """
        for start in range(0, len(keys), DELETE_BATCH):
            batch = keys[start : start + DELETE_BATCH]
            with self._sentences(self.uri(batch[0])):
                answer = self._client.delete_objects(
                    Bucket=self.location.bucket,
                    Delete={"Objects": [{"Key": self._name(key)} for key in batch], "Quiet": True},
                )
            for failure in answer.get("Errors", []):
                code = failure.get("Code", "no reason given")
                raise s3.S3Error(
                    f"s3://{self.location.bucket}/{failure.get('Key', '')} could not be deleted: {code}",
                    transient=code in s3.TRANSIENT_CODES,
                )


def existing_folder(uri: str, subject: str) -> Path | None:
    """Return the folder of a plain path or a `file://` URI; None for `s3://`.

    `subject`: what is looked for, with its verb, for messages. Raises ValueError when the folder does not exist, or
    the scheme is unknown.
    """
    parts = urlsplit(uri)
    if parts.scheme == "s3":
        return None
    if parts.scheme not in ("", "file") or (parts.scheme == "file" and parts.netloc not in ("", "localhost")):
        raise ValueError(f"{uri} can't be read: {subject} at s3://bucket/prefix, file:///folder or a path")
    folder = Path(unquote(parts.path)) if parts.scheme else Path(uri)
    if not folder.is_dir():
        raise ValueError(f"{uri} is not a folder")
    return folder


def open_store(
    uri: str,
    environment: s3.Environment | None = None,
    received: ByteCount | None = None,
    uploads: Uploads | None = None,
) -> Store:
    """Open the store at an `s3://` URI, without a request. Raises ValueError for a malformed URI.

    `environment`: as for `s3.make_client`; the other parameters: as for `Store`.
    """
    return Store(s3.parse_s3_uri(uri), environment=environment, received=received, uploads=uploads)


def usable_name(name: str) -> bool:
    """Return whether a file of this name is an artifact. Hidden and temporary files are not."""
    return not name.startswith(".") and not name.endswith((".tmp", ".part")) and os.sep not in name


# own_store opens the job's own prefix in the bucket, which the environment of a pod names.


def own_store(environment: Mapping[str, str]) -> Store:
    """Open the store of `ENV_ARTIFACTS_URI`, without a request. Raises ValueError, which names the variable."""
    uri = environment.get(contract.ENV_ARTIFACTS_URI)
    if not uri:
        raise ValueError(
            f"{contract.ENV_ARTIFACTS_URI} is not set: it must be the job's own prefix, s3://bucket/prefix/…"
        )
    try:
        return open_store(uri)
    except ValueError as error:
        raise ValueError(f"{contract.ENV_ARTIFACTS_URI}: {error}") from None


# GETs of ranges by presigned URLs, for readers of many small ranges.
#
# A GET of 1 MiB by a boto3 client costs the caller about 2 ms of a processor: the client resolves the endpoint,
# signs, and parses the answer each time. A presigned URL is signed once for all ranges of an object, which leaves 0.7
# ms.

log = logging.getLogger(__name__)

VALID_SECONDS = 3600
USED_SECONDS = 900.0
"""A URL is signed anew after this time, long before it expires."""
PAUSE_SECONDS = 60.0
"""After a failed GET by a presigned URL, the client of boto3 makes all requests for this long."""
CONNECTIONS_OF_RANGES = 16
URLS = 4096
"""The most URLs in the cache: 4 MB."""


class PresignedGets:
    """Gets ranges of objects with the endpoint, the credentials and the proxies of `client`. Threads may share it.

    This way is faster than the client, and does not replace the client: where `get` returns None, the caller makes
    the request by the client, which retries, renews credentials, and explains errors.
    """

    def __init__(self, client: S3Client, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: returns monotonic seconds."""
        from botocore.httpsession import URLLib3Session
        from botocore.session import Session
        from botocore.utils import get_environ_proxies

        self._client = client
        self._clock = clock
        self._urls: dict[S3Location, tuple[str, float]] = {}
        self._lock = threading.Lock()
        # Requests with a customer key or a payer need headers that a plain GET of the URL does not have.
        self._paused_until = float("inf") if read_options(os.environ).every else 0.0
        proxies = client.meta.config.proxies  # type: ignore[attr-defined]  # not in the stubs
        ca_bundle = Session().get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
        self._http = URLLib3Session(
            verify=ca_bundle or True,  # type: ignore[arg-type]  # the stubs know no bundle, and no pair of timeouts
            proxies=get_environ_proxies(client.meta.endpoint_url) if proxies is None else proxies,
            timeout=(CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS),  # type: ignore[arg-type]
            max_pool_connections=CONNECTIONS_OF_RANGES,
        )

    def get(self, where: S3Location, offset: int, length: int) -> bytes | None:
        """Return `length` bytes from `offset` on, in one try; None if not exactly these bytes arrive."""
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError
        from urllib3.exceptions import HTTPError

        if self._clock() < self._paused_until:
            return None
        try:
            headers = {"Range": f"bytes={offset}-{offset + length - 1}"}
            request = AWSRequest("GET", self._url(where), headers=headers, stream_output=True)
            answer = self._http.send(request.prepare())
            if answer.status_code != HTTPStatus.PARTIAL_CONTENT:
                answer.raw.close()  # Do not read the body: it may be the whole object.
                self._pause(f"status {answer.status_code}")
                return None
            # Read the body in one piece: `answer.content` would join pieces of 64 KiB.
            content: bytes = answer.raw.read()
        except (BotoCoreError, HTTPError, OSError) as error:
            self._pause(type(error).__name__)
            return None
        if len(content) != length:
            self._pause(f"{len(content)} bytes")
            return None
        return content

    def _url(self, where: S3Location) -> str:
        now = self._clock()
        with self._lock:
            url, until = self._urls.get(where, ("", 0.0))
            if now >= until:
                url = self._client.generate_presigned_url(
                    "get_object", {"Bucket": where.bucket, "Key": where.prefix}, ExpiresIn=VALID_SECONDS
                )
                if len(self._urls) >= URLS:
                    self._urls.clear()
                self._urls[where] = url, now + USED_SECONDS
        return url

    def _pause(self, why: str) -> None:
        """Leave the next requests to the client. The message does not contain the URL, which is a secret."""
        log.debug("a GET by a presigned URL brought nothing: %s", why)
        with self._lock:
            self._urls.clear()
            self._paused_until = self._clock() + PAUSE_SECONDS


# Names of files in keys. Keys are UTF-8, and stores list and delete them by XML: some names need another form.

MARK = "dtj-name-"
"""Begins each name that has another form in a key: its bytes follow, percent-encoded."""
_NO_XML = frozenset("\x7f\ufffe\uffff")


def key_of(path: str) -> str:
    """Return the key of a path. Most paths are their own keys; `path_of` returns the path of any other key."""
    # Return early for most paths: each upload pass calls this function for each file.
    if path.isprintable() and MARK not in path:
        return path
    return "/".join(map(_encoded, path.split("/")))


def path_of(key: str) -> str:
    """Return the path of a key that `key_of` made. Any other key is its own path."""
    return "/".join(map(_decoded, key.split("/"))) if MARK in key else key


def _encoded(name: str) -> str:
    if name.startswith(MARK) or any(
        character < " " or character in _NO_XML or "\ud800" <= character <= "\udfff" for character in name
    ):
        return MARK + quote(os.fsencode(name), safe="")
    return name


def _decoded(name: str) -> str:
    if not name.startswith(MARK):
        return name
    decoded = os.fsdecode(unquote_to_bytes(name.removeprefix(MARK)))
    # Verify the name: anybody may write a key such as dtj-name-..%2F, which leads out of the folder.
    return decoded if "/" not in decoded and _encoded(decoded) == name else name

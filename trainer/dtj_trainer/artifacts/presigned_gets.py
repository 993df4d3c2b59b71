"""GETs of ranges by presigned URLs, for readers of many small ranges.

A GET of 1 MiB by a boto3 client costs the caller about 2 ms of a processor: the client resolves the endpoint, signs,
and parses the answer each time. A presigned URL is signed once for all ranges of an object, which leaves 0.7 ms.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

from dtj_trainer.artifacts.s3 import CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS
from dtj_trainer.artifacts.s3_options import read_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_boto3_s3 import S3Client

    from dtj_trainer.artifacts.s3 import S3Location

log = logging.getLogger(__name__)

VALID_SECONDS = 3600
USED_SECONDS = 900.0
"""A URL is signed anew after this time, long before it expires."""
PAUSE_SECONDS = 60.0
"""After a request that brought nothing, all requests for this long are left to the client."""
CONNECTIONS = 16
URLS = 4096
"""URLs kept at most: 4 MB."""


class PresignedGets:
    """Gets ranges of objects with the endpoint, the credentials and the proxies of `client`. Threads may share it.

    A faster way beside the client, never in place of it: where this way brings nothing, for whatever reason, the
    caller asks the client, which retries, renews credentials, and explains errors.
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
            max_pool_connections=CONNECTIONS,
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
                answer.raw.close()  # The body may be the whole object.
                self._pause(f"status {answer.status_code}")
                return None
            # In one piece: `answer.content` would join pieces of 64 KiB.
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

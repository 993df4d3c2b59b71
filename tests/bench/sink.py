"""`python -m tests.bench.sink PORT`: an S3 server of minimal cost that keeps small objects and drops large ones.

A training that shares its processors with a real store pays for the store's work. Against this server, what the
training loses is the uploader's part alone.
"""

from __future__ import annotations

import hashlib
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

KEPT_BYTES = 64 * 1024
"""Larger objects and parts are read and dropped."""
_BLOCK_BYTES = 1024 * 1024


class _Handler(BaseHTTPRequestHandler):
    """Path-style requests of one bucket; no signature is looked at."""

    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]

    def do_PUT(self) -> None:
        """PutObject, with its conditions, or UploadPart."""
        content = self._read()
        path = urlsplit(self.path).path
        there = path in self.objects
        if (self.headers.get("If-None-Match") == "*" and there) or (
            (wanted := self.headers.get("If-Match")) is not None
            and (not there or wanted != _etag(self.objects[path]))
        ):
            self._answer(HTTPStatus.PRECONDITION_FAILED, "<Error><Code>PreconditionFailed</Code></Error>")
            return
        if "partNumber" not in parse_qs(urlsplit(self.path).query):
            self.objects[path] = content
        self._answer(HTTPStatus.OK, ETag=_etag(content))

    def do_POST(self) -> None:
        """CreateMultipartUpload, CompleteMultipartUpload or DeleteObjects."""
        self._read()
        query = urlsplit(self.path).query
        if "uploads" in query:
            self._answer(
                HTTPStatus.OK,
                "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>",
            )
        elif "uploadId" in query:
            answer = (
                f"<CompleteMultipartUploadResult><ETag>{_etag(b'')}</ETag></CompleteMultipartUploadResult>"
            )
            self._answer(HTTPStatus.OK, answer)
        else:
            self._answer(HTTPStatus.OK, "<DeleteResult/>")

    def do_DELETE(self) -> None:
        """AbortMultipartUpload, or DeleteObject."""
        self.objects.pop(urlsplit(self.path).path, None)
        self._answer(HTTPStatus.NO_CONTENT)

    def do_GET(self) -> None:
        """GetObject, or an empty listing."""
        path = urlsplit(self.path)
        if parse_qs(path.query, keep_blank_values=True):
            self._answer(
                HTTPStatus.OK, "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
            )
        elif path.path in self.objects:
            content = self.objects[path.path]
            self._answer(HTTPStatus.OK, content.decode(), ETag=_etag(content))
        else:
            self._answer(HTTPStatus.NOT_FOUND, "<Error><Code>NoSuchKey</Code></Error>")

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _read(self) -> bytes:
        """The body; of a large one the first block."""
        left = int(self.headers.get("Content-Length", 0))
        if left <= KEPT_BYTES:
            return self.rfile.read(left)
        block = memoryview(bytearray(_BLOCK_BYTES))
        while left > 0:
            left -= self.rfile.readinto(block[: min(left, _BLOCK_BYTES)])
        return b""

    def _answer(self, status: HTTPStatus, body: str = "", **headers: str) -> None:
        content = body.encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def main() -> None:
    """Serve on loopback until the process is ended."""
    _Handler.objects = {}
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Handler).serve_forever()


if __name__ == "__main__":
    main()

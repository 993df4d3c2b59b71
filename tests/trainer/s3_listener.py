"""An S3 endpoint that has no objects, and keeps the path and the headers of each request."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Listener:
    """The running endpoint. `seen` has the path and the headers of each request."""

    def __init__(self, elsewhere: str | None) -> None:
        """elsewhere: to which each request is redirected; None: it is answered 404."""
        seen = self.seen = list[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                seen.append(f"{self.path}\n{self.headers}")
                self.send_response(307 if elsewhere else 404)
                if elsewhere:
                    self.send_header("Location", f"{elsewhere}{self.path}")
                    self.send_header("x-amz-bucket-region", "us-west-2")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_HEAD = do_PUT = do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}"


@contextmanager
def listening(elsewhere: str | None = None) -> Iterator[Listener]:
    """Serve until the end of the block. elsewhere: see Listener."""
    made = Listener(elsewhere)
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join()

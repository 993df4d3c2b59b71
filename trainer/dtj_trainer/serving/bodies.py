"""Bodies of requests, read within limits of size and time; and the file in a form (multipart/form-data)."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from dtj_trainer.serving.encodings import STEP_BYTES, Unpacker, unpacker_of
from dtj_trainer.serving.refusal import Refused, bad

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks
    from starlette.requests import Request

    from dtj_trainer.serving.refusal import Held

FIELD = "data"
"""The field of a form that holds the picture, as for TorchServe."""
_FORM = b"multipart/form-data"
_MAX_PARTS = 16
_MAX_HEADERS_BYTES = 4096


async def read_body(request: Request, held: Held, most: int, seconds: float) -> bytes:
    """Read a body of at most `most` bytes within `seconds`, and count it in `held`. Raises Refused.

    A compressed body is unpacked as it arrives: the limits are those of what is unpacked.
    """
    unpacker = unpacker_of(request.headers.get("content-encoding", ""))
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 15 or int(declared) > most):
        raise _too_large(most)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise Refused(HTTPStatus.BAD_REQUEST, "cut", "the body was cut off")
                chunk: bytes = message.get("body", b"")
                if unpacker is not None:
                    await _unpack(unpacker, chunk, body, held, most)
                    if not message.get("more_body", False):
                        unpacker.end()
                        return bytes(body)
                    continue
                if len(body) + len(chunk) > most:
                    raise _too_large(most)
                held.add(len(chunk))
                if not message.get("more_body", False):
                    return bytes(body) + chunk if body else chunk
                body += chunk
    except TimeoutError as error:
        why = f"the body did not arrive within {seconds:g} seconds"
        raise Refused(HTTPStatus.REQUEST_TIMEOUT, "slow", why, {"Connection": "close"}) from error


async def _unpack(unpacker: Unpacker, packed: bytes, body: bytearray, held: Held, most: int) -> None:
    """Add what is unpacked to the body. Other requests go on between two steps."""
    while True:
        content, packed = unpacker.next(packed)
        if len(body) + len(content) > most:
            raise _too_large(most)
        held.add(len(content))
        body += content
        if not packed and len(content) < STEP_BYTES:
            return
        await asyncio.sleep(0)


def _too_large(most: int) -> Refused:
    return Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "size", f"the body has more than {most} bytes")


def picture_in(body: bytes, content_type: str | None) -> bytes:
    """Return the file in a body: the body itself, or the field `data` of a form. Raises Refused (400)."""
    kind, options = parse_options_header(content_type)
    if kind != _FORM:
        return body
    boundary = options.get(b"boundary")
    if not boundary:
        raise bad("the Content-Type multipart/form-data has no boundary")
    form = _Form()
    try:
        parser = MultipartParser(boundary, form.callbacks())
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise bad(f"the form can't be read: {error}") from error
    if form.found is None or not form.complete:
        raise bad(f"the form has no field `{FIELD}` with a file, or was cut off")
    return bytes(form.found)


class _Form:
    """Takes one field out of a form."""

    def __init__(self) -> None:
        self.found: bytearray | None = None
        self.complete = False
        self._parts = 0
        self._name, self._value = bytearray(), bytearray()
        self._wanted = False

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_part_data": self._data,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        self._parts += 1
        self._wanted = False
        if self._parts > _MAX_PARTS:
            raise bad(f"the form has more than {_MAX_PARTS} fields")

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._add(self._name, data[start:end])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._add(self._value, data[start:end])

    def _add(self, text: bytearray, more: bytes) -> None:
        text += more
        if len(text) > _MAX_HEADERS_BYTES:
            raise bad("a header of the form is too long")

    def _header_end(self) -> None:
        if self._name.lower() == b"content-disposition":
            _, options = parse_options_header(bytes(self._value))
            self._wanted = options.get(b"name") == FIELD.encode()
            if self._wanted and self.found is not None:
                raise bad(f"the form has the field `{FIELD}` twice")
            if self._wanted:
                self.found = bytearray()
        self._name, self._value = bytearray(), bytearray()

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._wanted and self.found is not None:
            self.found += data[start:end]

    def _end(self) -> None:
        self.complete = True

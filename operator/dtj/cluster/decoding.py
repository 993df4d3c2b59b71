"""Decodes JSON from the API server: one large object at a time, and outside of the event loop."""

from __future__ import annotations

import asyncio
import codecs
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from dtj.api.nesting import end_of_value, read_json

_LARGE = 64 * 1024
"""Characters of a text that the event loop does not decode itself: some milliseconds."""
# With one thread, the process holds one large object at a time, whoever sent how many of them.
_THREAD = ThreadPoolExecutor(1, "dtj-json")
_SCANNER = json.JSONDecoder()
_SPACE = " \t\r\n"
T = TypeVar("T")


async def decoded(text: str | bytes) -> Any:
    """Return the result of `read_json`."""
    if len(text) > _LARGE:
        return await _outside(lambda: read_json(text))
    try:
        return json.loads(text)
    except RecursionError:
        return await _outside(lambda: read_json(text))


async def listed(blocks: AsyncIterator[bytes], body: ListBody) -> AsyncIterator[list[Any]]:
    """Yield the items of a list while its body arrives. Raises ValueError when the body is not the JSON of an object.

    Each list of items is emptied before the next item is read: there is one large item at a time.
    """
    async for block in blocks:
        async for items in _completed(body, block):
            yield items
    async for items in _completed(body, b"", last=True):
        yield items


async def _completed(body: ListBody, block: bytes, *, last: bool = False) -> AsyncIterator[list[Any]]:
    while True:
        if items := await _read(body, block, last=last):
            yield items
        items.clear()
        block = b""
        if not body.rests:
            return


async def _read(body: ListBody, block: bytes, *, last: bool = False) -> list[Any]:
    if body.pending + len(block) > _LARGE and body.is_due(block, last=last):
        return await _outside(lambda: body.read(block, last=last))
    return body.read(block, last=last)


async def _outside(do: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_THREAD, do)


class _Incomplete(Exception):
    """The text ends in the middle of a value."""


class ListBody:
    """The body of a list, read piece by piece: the memory has one item of the text, and not the whole text."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        """The fields of the list that have arrived, without its items; `items` is there where they are null."""
        self.begin = b""
        """The first bytes of the body, for messages."""
        self.has_items = False
        self._text = ""
        self._more: list[str] = []
        self.pending = 0
        """Characters that are not read yet."""
        self._enough = 0
        """Before so many characters are pending, an attempt to read on is in vain: attempts cost twice a reading."""
        self._at = 0
        self._bytes = codecs.getincrementaldecoder("utf-8")("surrogatepass")
        self._next: Callable[[], Any] | None = self._open
        self._items: list[Any] = []
        self.rests = False
        """Whether the last `read` has stopped after a large item: the next one reads on without a new piece."""

    def is_due(self, block: bytes, *, last: bool) -> bool:
        """Return whether `read` will read, and not only collect."""
        return last or self.rests or self.pending + len(block) >= self._enough

    def read(self, block: bytes, *, last: bool = False) -> list[Any]:
        """Take a piece of the body, and return the items that it completes. last: the body has no more pieces."""
        self.begin = self.begin if len(self.begin) >= 100 else (self.begin + block)[:100]
        text = self._bytes.decode(block, last)
        self._more.append(text)
        self.pending += len(text)
        if self.pending < self._enough and not last and not self.rests:
            return []
        self.rests = False
        self._text, self._at, self._more = "".join([self._text[self._at :], *self._more]), 0, []
        self._items = []
        try:
            while self._next is not None and not self.rests:
                self._next = self._next()
        except _Incomplete:
            if last:
                raise ValueError("the text ends in the middle") from None
        self.pending = len(self._text) - self._at
        self._enough = 2 * self.pending
        if last and not self.rests and self._text[self._at :].strip(_SPACE):
            raise ValueError("the text goes on after its object")
        found, self._items = self._items, []
        return found

    # Each of these reads a part of the text and returns what reads the next part. They move `_at` only past parts
    # that are there as a whole.

    def _open(self) -> Callable[[], Any]:
        self._skip("{")
        return self._first_key

    def _first_key(self) -> Callable[[], Any] | None:
        if self._peek() == "}":
            self._skip("}")
            return None
        return self._key

    def _key(self) -> Callable[[], Any]:
        begin = self._at
        try:
            name = self._value()
            self._skip(":")
            if name != "items" or self._peek() != "[":
                self.fields[str(name)] = self._value()
                return self._after_value
        except _Incomplete:
            self._at = begin
            raise
        self._skip("[")
        self.has_items = True
        return self._first_item

    def _after_value(self) -> Callable[[], Any] | None:
        return None if self._skip(",}") == "}" else self._key

    def _first_item(self) -> Callable[[], Any]:
        if self._peek() == "]":
            self._skip("]")
            return self._after_value
        return self._item

    def _item(self) -> Callable[[], Any]:
        begin = self._at
        self._items.append(self._value())
        self.rests = self._at - begin > _LARGE
        return self._after_item

    def _after_item(self) -> Callable[[], Any]:
        return self._after_value if self._skip(",]") == "]" else self._item

    def _peek(self) -> str:
        while self._at < len(self._text) and self._text[self._at] in _SPACE:
            self._at += 1
        if self._at == len(self._text):
            raise _Incomplete
        return self._text[self._at]

    def _skip(self, signs: str) -> str:
        sign = self._peek()
        if sign not in signs:
            raise ValueError(f"not one of {signs}: {sign}")
        self._at += 1
        return sign

    def _value(self) -> Any:
        self._peek()
        try:
            value, end = _SCANNER.raw_decode(self._text, self._at)
        except RecursionError:
            whole = end_of_value(self._text, self._at)
            if whole is None:
                raise _Incomplete from None
            value, end = read_json(self._text[self._at : whole]), whole
        except ValueError:
            raise _Incomplete from None
        if isinstance(value, (int, float)) and end == len(self._text):
            raise _Incomplete  # A number may go on in the next piece.
        self._at = end
        return value

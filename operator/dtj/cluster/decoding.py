"""Decodes JSON from the API server: one large object at a time, and outside of the event loop."""

from __future__ import annotations

import asyncio
import codecs
import json
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from dtj.api.json_text import ObjectText, ValueEnd, object_in
from dtj.api.nesting import end_of_value, read_json

_LARGE = 16 * 1024
"""A text with more characters is decoded in a thread, not in the event loop. Usual jobs and pods are shorter."""
_BLOCK = 64 * 1024
"""The bytes of a list that are read in one step."""
# A single thread, so that the process decodes only one large object at a time.
_THREAD = ThreadPoolExecutor(1, "dtj-json")
_SCANNER = json.JSONDecoder()
_SPACE = " \t\r\n"
S = TypeVar("S", str, bytes, bytes | str)
T = TypeVar("T")
See = Callable[[Mapping[str, Any]], Any]


async def decoded(text: str | bytes) -> Any:
    """Return the result of `read_json`."""
    if len(text) > _LARGE:
        return await _outside(read_json, text)
    try:
        return json.loads(text)
    except RecursionError:
        return await _outside(read_json, text)


async def decoded_event(line: bytes, see: See | None) -> Any:
    """Return an event of a watch, with what `see` returns in place of a large object. See `listed`."""
    if see is None or len(line) <= _LARGE:
        return await decoded(line)
    return await _outside(lambda text: _event(text, see), line)


def _event(line: bytes, see: See) -> dict[str, Any]:
    event = object_in(line)
    if isinstance(event, ObjectText):
        return {"type": event["type"], "object": see(ObjectText(event.text("object")))}
    about = event.get("object") if isinstance(event, dict) else None
    if not isinstance(about, dict):
        raise ValueError("an event without an object")
    return {**event, "object": see(about)}


async def listed(
    blocks: AsyncIterator[bytes], body: ListBody, see: See | None = None
) -> AsyncIterator[list[Any]]:
    """Yield the items of a list while its body arrives. Raises ValueError when the body is not the JSON of an object.

    Each list of items is emptied before the next item is read: there is one large item at a time.
    see: called with each large item, outside of the event loop. What it returns takes the place of the item.
    """
    async for block in blocks:
        for begin in range(0, len(block), _BLOCK):
            async for items in _completed(body, block[begin : begin + _BLOCK], see):
                yield items
    async for items in _completed(body, b"", see, last=True):
        yield items


async def _completed(
    body: ListBody, block: bytes, see: See | None, *, last: bool = False
) -> AsyncIterator[list[Any]]:
    while True:
        items = body.read(block, last=last)
        if items and isinstance(items[-1], LargeItem):
            items.append(await _outside(lambda text: _seen(text, see), items.pop().text))
        if items:
            yield items
        items.clear()
        block = b""
        if not body.rests:
            return


def _seen(text: bytes, see: See | None) -> Any:
    return read_json(text) if see is None else see(object_in(text))


async def _outside(do: Callable[[S], T], text: S) -> T:
    # The futures of a call in a thread reference each other, and would keep the result in memory until the garbage
    # collector runs. Therefore return the result in a list, and take the result out of the list.
    results = await asyncio.get_running_loop().run_in_executor(_THREAD, lambda: [do(text)])
    return results.pop()


class _Incomplete(Exception):
    """The text ends in the middle of a value."""


class LargeItem:
    """The text of an item of a list, which is not decoded while it arrives."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._end = ValueEnd()

    def take(self, text: str) -> int | None:
        """Take the next piece. Return the place after the item; None where the item goes on."""
        piece = text.encode(errors="surrogatepass")
        end = self._end.find(piece, begin=0 if self._pieces else 1)
        self._pieces.append(piece[:end])
        return None if end is None else len(piece[:end].decode(errors="surrogatepass"))

    @property
    def text(self) -> bytes:
        """The pieces together."""
        return b"".join(self._pieces)


class ListBody:
    """The body of a list, read piece by piece. Only one item of the text is in memory at a time."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        """The fields of the list that have arrived, except its items. They include `items` only if it is null."""
        self.begin = b""
        """The first bytes of the body, for messages."""
        self.has_items = False
        self._text = ""
        self._more: list[str] = []
        self._pending = 0
        """The number of characters that have arrived and are not read yet."""
        self._enough = 0
        """The number of pending characters from which on another attempt to read is worthwhile. The number doubles
        after a failed attempt, so that all attempts together take at most twice the time of one."""
        self._at = 0
        self._bytes = codecs.getincrementaldecoder("utf-8")("surrogatepass")
        self._next: Callable[[], Any] | None = self._open
        self._items: list[Any] = []
        self._large = LargeItem()
        self.rests = False
        """Whether the last `read` stopped after a large item. The next `read` then continues without a new piece."""

    def read(self, block: bytes, *, last: bool = False) -> list[Any]:
        """Take a piece of the body, and return the items that it completes, the last one possibly a `LargeItem`.

        last: the body has no more pieces.
        """
        self.begin = self.begin if len(self.begin) >= 100 else (self.begin + block)[:100]
        text = self._bytes.decode(block, last)
        self._more.append(text)
        self._pending += len(text)
        if self._pending < self._enough and not last and not self.rests:
            return []
        self.rests = False
        self._text, self._at, self._more = "".join([self._text[self._at :], *self._more]), 0, []
        self._items = []
        try:
            while self._next is not None and not self.rests:
                self._next = self._next()
        except _Incomplete:
            if last:
                raise ValueError("the text ends in the middle of the object") from None
        self._pending = len(self._text) - self._at
        self._enough = 2 * self._pending
        if last and not self.rests and self._text[self._at :].strip(_SPACE):
            raise ValueError("the text continues after the object")
        found, self._items = self._items, []
        return found

    # Each of the methods below reads a part of the text and returns the method for the next part. The methods move
    # `_at` only past complete parts.

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
        self._peek()
        begin = self._at
        try:
            item = self._value()
        except _Incomplete:
            if len(self._text) - begin <= _LARGE or self._text[begin] not in "{[":
                raise
        else:
            if self._at - begin <= _LARGE:
                self._items.append(item)
                return self._after_item
            self._at = begin
        self._large = LargeItem()
        return self._rest_of_large

    def _rest_of_large(self) -> Callable[[], Any]:
        end = self._large.take(self._text[self._at :])
        if end is None:
            self._at = len(self._text)
            raise _Incomplete
        self._at += end
        self._items.append(self._large)
        self._large = LargeItem()
        self.rests = True
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
            raise ValueError(f"the text has {sign!r} where one of {signs!r} must be")
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
            raise _Incomplete  # The next piece may contain further digits of the number.
        self._at = end
        return value

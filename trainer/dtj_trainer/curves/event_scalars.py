"""The scalars of TensorBoard's event files as they grow: of SummaryWriter, `tf.summary`, Keras, and the loggers of
Lightning and Hugging Face.

The formats are those of TensorFlow's tensorflow/core/lib/io/record_writer.h, util/event.proto and
framework/summary.proto. Checksums are not checked: a record whose length is beyond any bound ends the reading of its
file. Standard library only.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONGEST_RECORD = 1 << 20
"""The most bytes of a record that may have scalars. Records of pictures, graphs and histograms are longer, and passed
over."""
MOST_AT_ONCE = 4 << 20
"""The most bytes of a file that one look reads."""
_HEADER, _CHECKSUM = 12, 4
_LARGEST = 1 << 40
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5
_DT_FLOAT, _DT_DOUBLE = 1, 2


class Scalar(NamedTuple):
    """One value. `wall_time`: seconds since 1970."""

    tag: str
    step: int
    wall_time: float
    value: float


class EventFile:
    """Reads one file from where the last look ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._broken = False

    def more(self) -> list[Scalar]:
        """Return the scalars of the records that are complete since the last call. Raises OSError."""
        if self._broken:
            return []
        found: list[Scalar] = []
        # Do not block: the opening of a pipe of this name would wait for a writer.
        with os.fdopen(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            file.seek(self._offset)
            content = file.read(MOST_AT_ONCE)
            size = file.seek(0, 2)
        at = 0
        while at + _HEADER <= len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            if length > _LARGEST:
                self._broken = True
                break
            end = at + _HEADER + length + _CHECKSUM
            if self._offset + end > size:
                break
            if end > len(content):
                if length <= LONGEST_RECORD:
                    break
                at = end  # The record is too long to be read at all: the next look begins behind the record.
                break
            if length <= LONGEST_RECORD:
                found += scalars_of(content[at + _HEADER : at + _HEADER + length])
            at = end
        self._offset += at
        return found


def scalars_of(event: bytes) -> list[Scalar]:
    """Return the scalars of one event; none of a damaged one."""
    wall_time, step, summaries = 0.0, 0, []
    try:
        for number, value in _fields(event):
            if number == 1 and isinstance(value, float):
                wall_time = value
            elif number == 2 and isinstance(value, int):
                step = value - (1 << 64) if value >> 63 else value
            elif number == 5 and isinstance(value, bytes):
                summaries.append(value)
        return [
            Scalar(tag, step, wall_time, value)
            for summary in summaries
            for number, content in _fields(summary)
            if number == 1 and isinstance(content, bytes)
            for tag, value in _value(content)
        ]
    except (struct.error, IndexError, ValueError):
        return []


def _value(content: bytes) -> Iterator[tuple[str, float]]:
    """Yield tag and number of a Summary.Value: its simple_value, or its tensor of one number."""
    tag, found = "", None
    for number, value in _fields(content):
        if number == 1 and isinstance(value, bytes):
            tag = value.decode(errors="replace")
        elif number == 2 and isinstance(value, float):
            found = value
        elif number == 8 and isinstance(value, bytes):
            found = _tensor(value)
    if tag and found is not None:
        yield tag, found


def _tensor(content: bytes) -> float | None:
    """Return the number of a TensorProto that has just one, of type float or double."""
    kind, raw = 0, b""
    for number, value in _fields(content):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number in (4, 5, 6) and isinstance(value, bytes):
            raw = value  # tensor_content, or the packed float_val or double_val.
        elif number in (5, 6) and isinstance(value, float):
            return value
    form = {_DT_FLOAT: "<f", _DT_DOUBLE: "<d"}.get(kind)
    if form is None or len(raw) != struct.calcsize(form):
        return None
    (only,) = struct.unpack(form, raw)
    return float(only)


def _fields(content: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield number and value of each field of a protobuf message. Raises ValueError, IndexError or struct.error."""
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(content, at)
            yield number, value
        elif wire == _DOUBLE:
            yield number, float(struct.unpack_from("<d", content, at)[0])
            at += 8
        elif wire == _FLOAT:
            yield number, float(struct.unpack_from("<f", content, at)[0])
            at += 4
        elif wire == _BYTES:
            length, at = _varint(content, at)
            if at + length > len(content):
                raise ValueError("a field ends beyond its message")
            yield number, content[at : at + length]
            at += length
        else:
            raise ValueError(f"wire type {wire}")


def _varint(content: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = content[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return found, at
        shift += 7
        if shift > 63:
            raise ValueError("a varint has more than ten bytes")

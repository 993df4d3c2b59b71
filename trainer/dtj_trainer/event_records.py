"""The records of TensorBoard's event files that dtj writes: scalars, and the start of a session.

tensorboardX offers the same, but its import loads PyTorch where that is installed: 200 MB of memory and 3 s of a
processor, too much for `dtj-launch` beside a program.

The formats are those of TensorFlow's tensorflow/core/lib/io/record_writer.h and tensorflow/core/util/event.proto.
Standard library only.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_POLYNOMIAL = 0x82F63B78
"""Castagnoli's, reversed."""
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 1, 2, 3, 5, 7
"""Fields of Event."""
_START = 1
"""The value of SessionLog.SessionStatus that makes TensorBoard drop the steps of the event and later ones."""
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5
"""Wire types of protobuf."""


def file_version(wall_time: float) -> bytes:
    """Return the first record of an event file. wall_time: seconds since 1970."""
    return _record(_event(wall_time, 0) + _bytes(_FILE_VERSION, b"brain.Event:2"))


def session_start(wall_time: float, step: int) -> bytes:
    """Return the record that makes TensorBoard drop what it has read of this step and later ones."""
    return _record(_event(wall_time, step) + _bytes(_SESSION_LOG, _key(1, _VARINT) + _varint(_START)))


def scalars(wall_time: float, step: int, values: Mapping[str, float]) -> bytes:
    """Return the record with the values of one step. A value beyond the range of 32-bit floats becomes infinite."""
    summary = b"".join(
        _bytes(1, _bytes(1, tag.encode()) + _key(2, _FLOAT) + _float(value)) for tag, value in values.items()
    )
    return _record(_event(wall_time, step) + _bytes(_SUMMARY, summary))


def _event(wall_time: float, step: int) -> bytes:
    return _key(_WALL_TIME, _DOUBLE) + struct.pack("<d", wall_time) + _key(_STEP, _VARINT) + _varint(step)


def _float(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _key(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _bytes(field: int, content: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + _masked_crc(length) + content + _masked_crc(content)


def _masked_crc(content: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    # A checksum of content that has checksums in it is weak, hence the mask.
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _table() -> Iterator[int]:
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        yield crc


_TABLE = tuple(_table())

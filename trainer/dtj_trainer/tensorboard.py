"""Event files for TensorBoard that are never rewritten: a file is closed after a while, and a new one begun.

A closed part is uploaded once. TensorBoard reads the parts in a folder ordered by name.
"""

from __future__ import annotations

import socket
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dtj_trainer import contract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


# These functions make the records of TensorBoard's event files that dtj writes: scalars, and the start of a session.
#
# tensorboardX offers the same, but its import loads PyTorch where that is installed: 200 MB of memory and 3 s of a
# processor, too much for `dtj-launch` beside a program.
#
# The formats are those of TensorFlow's tensorflow/core/lib/io/record_writer.h and tensorflow/core/util/event.proto.
# Standard library only.

_POLYNOMIAL = 0x82F63B78
"""The polynomial of CRC-32C (Castagnoli's), with its bits reversed."""
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 1, 2, 3, 5, 7
"""Numbers of the fields of Event."""
_START = 1
"""The value of SessionLog.SessionStatus that makes TensorBoard drop the steps of the event and later ones."""
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5
"""Wire types of protobuf."""


def file_version(wall_time: float) -> bytes:
    """Return the first record of an event file. wall_time: seconds since 1970."""
    return _record(_event(wall_time, 0) + _bytes(_FILE_VERSION, b"brain.Event:2"))


def session_start(wall_time: float, step: int) -> bytes:
    """Return the record that makes TensorBoard drop the values that it has read for this step and later ones."""
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
    # The format masks the checksum, because a checksum of content that itself has checksums is weak.
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _table() -> Iterator[int]:
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        yield crc


_TABLE = tuple(_table())


ROTATE_SECONDS = 15 * 60.0
ROTATE_BYTES = 512 * 1024
"""Both are below the limits at which the upload begins another object, so that each part is one object in the
bucket."""


class ScalarWriter:
    """Writes scalars into parts of `rotate_seconds` or `rotate_bytes` each. Only rank 0 of a job writes.

    `first_step` is the step of the checkpoint from which this run resumes: TensorBoard then drops what an earlier
    attempt wrote for later steps. A part is created with its first value, so that an idle writer creates no files.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        rotate_seconds: float = ROTATE_SECONDS,
        rotate_bytes: int = ROTATE_BYTES,
        first_step: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder or Path(contract.root()) / contract.TENSORBOARD
        self._rotate_seconds = rotate_seconds
        self._rotate_bytes = rotate_bytes
        self._first_step: int | None = first_step
        self._clock = clock
        self._part: _Part | None = None
        self._parts = 0

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of one step: names, such as `train/loss`, and numbers."""
        now = self._clock()
        part = self._part
        if part and (now - part.begun >= self._rotate_seconds or part.size >= self._rotate_bytes):
            self.close()
        if self._part is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._part = _Part(self._folder, self._parts, now)
            self._parts += 1
            if self._first_step is not None:
                self._part.write_start(self._first_step)
                self._first_step = None
        self._part.write(step, values)

    def close(self) -> None:
        """Close the current part. The next `add` begins another part."""
        if self._part:
            self._part.close()
            self._part = None


class _Part:
    """One event file."""

    def __init__(self, folder: Path, number: int, begun: float) -> None:
        self.begun = begun
        self.size = 0
        """Bytes without the file's first record."""
        now = time.time()
        name = f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{number:05d}"
        self._file = (folder / name).open("wb")
        self._file.write(file_version(now))

    def write_start(self, step: int) -> None:
        # A START event makes TensorBoard drop what it has read of this step and later ones.
        self._write(session_start(time.time(), step + 1))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._write(scalars(time.time(), step, values))
        self._file.flush()

    def _write(self, record: bytes) -> None:
        self._file.write(record)
        self.size += len(record)

    def close(self) -> None:
        self._file.close()

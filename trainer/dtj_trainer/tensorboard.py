"""Event files for TensorBoard that are never rewritten: a file is closed after a while, and a new one begun.

A closed part is uploaded once. TensorBoard reads the parts in a folder ordered by name.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dtj_trainer import contract, event_records

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROTATE_SECONDS = 15 * 60.0
ROTATE_BYTES = 512 * 1024
"""Below the uploader's limits of size and age for a segment, so that each part is one object in the bucket."""


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
        self._file.write(event_records.file_version(now))

    def write_start(self, step: int) -> None:
        # A START event makes TensorBoard drop what it has read of this step and later ones.
        self._write(event_records.session_start(time.time(), step + 1))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._write(event_records.scalars(time.time(), step, values))
        self._file.flush()

    def _write(self, record: bytes) -> None:
        self._file.write(record)
        self.size += len(record)

    def close(self) -> None:
        self._file.close()

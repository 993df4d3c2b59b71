"""Records which entries of a folder were renamed into it, by inotify(7)."""

from __future__ import annotations

import ctypes
import logging
import os
import struct
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

log = logging.getLogger(__name__)

_MODIFY, _CLOSE_WRITE, _MOVED_TO = 0x2, 0x8, 0x80
_CREATE, _MOVED_FROM, _DELETE, _OVERFLOW, _IGNORED = 0x100, 0x40, 0x200, 0x4000, 0x8000
_IS_DIRECTORY = 0x40000000
_EVENT = struct.Struct("iIII")
_READ_BYTES = 64 * 1024


class FolderWatch:
    """Watches the direct entries of one folder. Entries of its subdirectories are not watched."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._renamed: set[str] = set()
        self._watched: tuple[int, int] | None = None
        self.ended = False
        """Whether the folder was removed."""
        self._closed = False

    def start(self) -> None:
        """Watch the existing folder in the background. Without inotify, `was_renamed` always returns False.

        Call it again for a folder that was removed and made anew: the watch has ended with the former folder.
        """
        if self._closed:
            return
        self._renamed, self.ended = set(), False
        self._watched = watched = _watch(self._folder)
        if watched is not None:
            descriptor, _ = watched
            threading.Thread(target=self._read, args=(descriptor,), name="watch", daemon=True).start()

    def close(self) -> None:
        """End the watch."""
        self._closed = True
        if self._watched is not None and not self.ended:
            ctypes.CDLL(None).inotify_rm_watch(*self._watched)  # `_read` gets IN_IGNORED.

    def was_renamed(self, name: str) -> bool:
        """Return whether the last event of an entry was a rename into the folder."""
        return name in self._renamed

    def _read(self, descriptor: int) -> None:
        while True:
            for mask, name in _parse(os.read(descriptor, _READ_BYTES)):
                if mask & _IGNORED:  # The folder was removed, or the watch is closed.
                    self.ended = not self._closed
                    os.close(descriptor)
                    return
                self._note(mask, name)

    def _note(self, mask: int, name: str) -> None:
        if mask & _OVERFLOW:
            self._renamed.clear()
        elif mask & _MOVED_TO:
            self._renamed.add(name)
        elif mask & (_DELETE | _MOVED_FROM) or not mask & _IS_DIRECTORY:
            self._renamed.discard(name)


def _watch(folder: Path) -> tuple[int, int] | None:
    """Return an inotify descriptor and its watch, or None where the kernel offers none (gVisor, no watch left)."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_CLOEXEC)
    mask = _MODIFY | _CLOSE_WRITE | _MOVED_TO | _CREATE | _MOVED_FROM | _DELETE
    if descriptor >= 0 and (watch := libc.inotify_add_watch(descriptor, os.fsencode(folder), mask)) >= 0:
        return int(descriptor), int(watch)
    log.info("%s can't be watched: %s", folder, os.strerror(ctypes.get_errno()))
    if descriptor >= 0:
        os.close(descriptor)
    return None


def _parse(events: bytes) -> Iterator[tuple[int, str]]:
    """Yield the mask and the name of each event."""
    at = 0
    while at < len(events):
        _, mask, _, length = _EVENT.unpack_from(events, at)
        at += _EVENT.size
        yield mask, os.fsdecode(events[at : at + length].rstrip(b"\0"))
        at += length

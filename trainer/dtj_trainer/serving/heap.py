"""The C library's heap: large blocks go back to the kernel when they are freed."""

from __future__ import annotations

import ctypes
import os

_MMAP_THRESHOLD = -3
"""M_MMAP_THRESHOLD of malloc.h."""
LARGE_BYTES = 1 << 20
ENV_THRESHOLD = "MALLOC_MMAP_THRESHOLD_"
"""The environment variable of glibc for this threshold; see mallopt(3)."""


def give_back_large_blocks() -> None:
    """Let malloc map blocks of LARGE_BYTES and more one by one, unless the environment says otherwise.

    By default, the threshold of glibc grows to the largest block that was freed. The pixels of pictures of all sizes
    then come from heaps, which small blocks between them keep large. Another C library is left as it is.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and ENV_THRESHOLD not in os.environ:
        mallopt(_MMAP_THRESHOLD, LARGE_BYTES)

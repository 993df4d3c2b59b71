"""The memory of freed pictures goes back to the kernel."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os
from pathlib import Path
from dtj_trainer.serving.heap import give_back_large_blocks

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

give_back_large_blocks()
bytearray(16 << 20)  # By default, glibc takes smaller blocks from its heap from now on.
before, large, small = resident(), [], []
for _ in range(16):
    large.append(bytearray(b"x") * (2 << 20))
    small.append(bytearray(1000))
most = resident()
del large
print((most - before) >> 20, (resident() - before) >> 20)
"""
"""Prints by how many MiB large blocks raise the process's memory, and what small blocks between them keep of it."""


@pytest.mark.parametrize(("threshold", "kept"), [(None, range(4)), (str(32 << 20), range(24, 40))])
def test_large_blocks_go_back_though_small_ones_lie_between(threshold: str | None, kept: range) -> None:
    chosen = {"MALLOC_MMAP_THRESHOLD_": threshold} if threshold else {}
    others = {name: value for name, value in os.environ.items() if name != "MALLOC_MMAP_THRESHOLD_"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**others, **chosen}, capture_output=True, text=True, check=True
    )
    most, left = map(int, done.stdout.split())
    assert most in range(28, 40)
    assert left in kept

"""The processes that write checkpoints for a rank."""

from __future__ import annotations

import os
import subprocess


def child(module: str, of: int | None = None) -> int:
    """The process that runs `module` for a rank, or for this test."""
    listed = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(of or os.getpid())],
        capture_output=True,
        text=True,
        check=True,
    )
    (found,) = [line for line in listed.stdout.splitlines() if module in line]
    return int(found.split()[0])

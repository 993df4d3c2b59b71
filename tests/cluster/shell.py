"""Commands that run to completion."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from tests.cluster.progress import ClusterError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def run(
    *command: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout: float | None = None,
) -> str:
    """Standard output; a failure is a ClusterError with the command's last lines."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, cwd=cwd, env=env, input=stdin, timeout=timeout, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise ClusterError(f"{words[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{' '.join(words)}: no end within {timeout:.0f} s") from error
    if done.returncode:
        raise ClusterError(failure(words, done.returncode, done.stderr or done.stdout))
    return done.stdout


def succeeds(*command: str | Path, timeout: float | None = None) -> bool:
    """Whether the command ends with 0."""
    try:
        run(*command, timeout=timeout)
    except ClusterError:
        return False
    return True


def failure(words: Sequence[str], code: int, output: str) -> str:
    """A failed command in words: what it was, its status, its last lines."""
    tail = "\n".join(f"    {line}" for line in output.strip().splitlines()[-15:])
    return f"`{' '.join(words)}` ended with {code}\n{tail}"

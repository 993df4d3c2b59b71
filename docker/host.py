"""The build machine: its packages, its cache, locks, and progress output."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

REPOSITORY = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("DTJ_CACHE", "~/.cache/dtj")).expanduser()

_START = time.monotonic()


class BuildError(Exception):
    """An error that the person who builds has to fix. The message names the remedy."""


def say(message: str) -> None:
    """Print one line of progress, with the seconds since the start."""
    print(f"[{time.monotonic() - _START:6.1f}s] {message}", file=sys.stderr, flush=True)


def run(command: Sequence[str | Path], *, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command and return its output. Raises BuildError with the last lines after a failure."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-40:])
        raise BuildError(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{tail}")
    return done.stdout


def follow(
    command: Sequence[str | Path],
    on_line: Callable[[str], None],
    *,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    what: str,
) -> None:
    """Run a long command and pass each line to `on_line`. Raises BuildError with the last lines after a failure."""
    tail: list[str] = []
    with subprocess.Popen(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            tail = [*tail[-60:], line.rstrip()]
            on_line(line)
    if process.returncode:
        raise BuildError("\n".join([*tail, f"{what} failed with {process.returncode}"]))


def watch(
    command: Sequence[str | Path], *, cwd: Path | None = None, env: dict[str, str] | None = None, what: str
) -> None:
    """Run a long command and print its progress, from percentages such as `[ 40%]` in its output."""
    last_tenth = -1

    def on_line(line: str) -> None:
        nonlocal last_tenth
        found = re.search(r"\[\s*(\d+)%\]", line)
        if found and int(found[1]) // 10 > last_tenth:
            last_tenth = int(found[1]) // 10
            say(f"{what}: {found[1]} %")

    follow(command, on_line, cwd=cwd, env=env, what=what)


def need_packages(commands: dict[str, str]) -> None:
    """Install the Debian packages of the commands (or files, with a leading `/`) that are missing.

    Raises BuildError, which names the packages, without apt-get or without root access.
    """
    missing = sorted({package for command, package in commands.items() if not _present(command)})
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise BuildError(f"please install {' '.join(missing)} (as root on Debian this is done for you)")
    say(f"installing {' '.join(missing)}")
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=600"]
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    install = [*apt, "install", "--yes", "--no-install-recommends", *missing]
    with one_at_a_time("packages"):
        try:
            run(install, env=env)
        except BuildError:
            run([*apt, "update"], env=env)
            run(install, env=env)


def _present(command: str) -> bool:
    return Path(command).exists() if command.startswith("/") else shutil.which(command) is not None


def digest(parts: Iterable[str | bytes | Path]) -> str:
    """Return 16 hex digits of a hash over strings and the contents of files."""
    total = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part
        data = data.encode() if isinstance(data, str) else data
        total.update(len(data).to_bytes(8, "big"))
        total.update(data)
    return total.hexdigest()[:16]


@contextlib.contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Hold a lock shared by all builds on this machine. A build that waited should first check for a result."""
    locks = CACHE / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / name).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another build of {name}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def pins() -> dict[str, str]:
    """Read versions by package name from constraints.txt; names are normalized as on PyPI."""
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


def version() -> str:
    """Read the project's version from pyproject.toml."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    return str(project["project"]["version"])

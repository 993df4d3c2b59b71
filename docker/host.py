"""The machine that builds: its packages, its cache, and telling a person how far things are."""

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
    """Something the person who builds has to put right; the message says what."""


def say(message: str) -> None:
    """Print one line of progress, with the seconds since the start."""
    print(f"[{time.monotonic() - _START:6.1f}s] {message}", file=sys.stderr, flush=True)


def run(command: Sequence[str | Path], *, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command to its end and return what it printed; a failure shows its last lines."""
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
    """Run a long command and hand on each line; BuildError with its last lines when it fails."""
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
    """Run a long command and say how far it is: the percentages that it prints, as `[ 40%]`."""
    said = -1

    def tell(line: str) -> None:
        nonlocal said
        found = re.search(r"\[\s*(\d+)%\]", line)
        if found and int(found[1]) // 10 > said:
            said = int(found[1]) // 10
            say(f"{what}: {found[1]} %")

    follow(command, tell, cwd=cwd, env=env, what=what)


def need_packages(commands: dict[str, str]) -> None:
    """Install Debian packages for those commands (or files, with a leading `/`) that are missing.

    Raises BuildError, saying what to install, where there is no apt-get or this isn't root.
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
    """16 hex digits of a hash over strings and files (their content, not their names)."""
    total = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part
        data = data.encode() if isinstance(data, str) else data
        total.update(len(data).to_bytes(8, "big"))
        total.update(data)
    return total.hexdigest()[:16]


@contextlib.contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Hold a lock among all builds on this machine; the others wait and then find the work done."""
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
    """Package name -> version, from constraints.txt; names as PyPI normalises them."""
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


def version() -> str:
    """The project's version, from pyproject.toml."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    return str(project["project"]["version"])

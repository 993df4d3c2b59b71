"""`python3 docker/environment.py EXTRA…`: make .venv with extras of this project, besides those that it has.

pip needs some minutes for the frameworks. The cache keeps each environment under a hash of all its inputs, and .venv
consists of hard links to its files. `--keep-bytecode` adds the bytecode that Python has compiled since to the cache.
Programs change no file of an environment in place: pip and Python write a new file and rename it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from host import CACHE, REPOSITORY, BuildError, digest, one_at_a_time, say

HERE = REPOSITORY / ".venv"
EXTRAS, KEY = ".extras", ".key"
"""Files in an environment: its extras, and the key under which the cache keeps it."""
ENVIRONMENTS = CACHE / "environments"
KEPT = 3
"""Environments in the cache; the one that was used longest ago goes first."""
OF_THIS_FOLDER = (
    "bin/*",
    "pyvenv.cfg",
    "lib/*/site-packages/__editable__*",
    "lib/*/site-packages/dtjob-*.dist-info/*",
)
"""Files that name the folder of the environment or of this repository."""


def make(extras: set[str]) -> None:
    """Make .venv. Raises BuildError when pip fails."""
    if (HERE / EXTRAS).exists():
        extras = extras | set((HERE / EXTRAS).read_text().split())
    extras -= {name for extra in extras for name in _brought_by(extra)}
    key = key_of(extras)
    if (HERE / KEY).exists() and (HERE / KEY).read_text() == key:
        return
    shutil.rmtree(HERE, ignore_errors=True)
    with one_at_a_time("environment"):
        cached = ENVIRONMENTS / key
        if not cached.exists():
            _install(extras, key)
            _store(cached)
            return
    say(f"linking .venv to {cached}")
    os.utime(cached)
    shutil.copytree(cached / "venv", HERE, symlinks=True, copy_function=_link)
    _relocate((cached / "root").read_text())


def _brought_by(extra: str) -> set[str]:
    """Return the other extras of this project that an extra brings."""
    lines = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"][
        extra
    ]
    direct = {
        name for line in lines if line.startswith("dtjob[") for name in line[6:].partition("]")[0].split(",")
    }
    return direct.union(*(_brought_by(name) for name in direct))


def key_of(extras: set[str]) -> str:
    """Return a hash of what decides the content of an environment."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    inputs = [project["build-system"], project["project"], project["tool"]["setuptools"]]
    places = sorted((name, value) for name, value in os.environ.items() if name.startswith("PIP_"))
    return digest(
        [
            *(
                str(part)
                for part in (*inputs, places, sorted(extras), sys.version, os.path.realpath(sys.executable))
            ),
            REPOSITORY / "constraints.txt",
            Path(__file__),
        ]
    )


def keep_bytecode() -> None:
    """Add compiled files of .venv to the cache, for the next environment that is linked to it."""
    key = HERE / KEY
    cached = ENVIRONMENTS / key.read_text() / "venv" if key.exists() else None
    if cached is None or not cached.exists():
        return
    for compiled in HERE.glob("lib/*/site-packages/**/__pycache__/*.pyc"):
        kept = cached / compiled.relative_to(HERE)
        source = kept.parent.parent / f"{compiled.name.partition('.')[0]}.py"
        # The cache has neither what was installed later, nor another version of it.
        if not kept.exists() and source.exists() and source.samefile(HERE / source.relative_to(cached)):
            kept.parent.mkdir(exist_ok=True)
            _link(compiled, kept)


def _install(extras: set[str], key: str) -> None:
    say(f"installing {', '.join(sorted(extras))} by pip")
    # Most installed modules are never imported: pip compiles none, and Python compiles one at its first import.
    flags = ("--quiet", "--disable-pip-version-check", "--no-compile", "--constraint", "constraints.txt")
    for command in (
        (sys.executable, "-m", "venv", HERE),
        (HERE / "bin/python", "-m", "pip", "install", *flags, "--editable", f".[{','.join(sorted(extras))}]"),
    ):
        if code := subprocess.run(command, cwd=REPOSITORY, check=False).returncode:
            raise BuildError(f"{' '.join(map(str, command))} ended with {code}")
    (HERE / EXTRAS).write_text(" ".join(sorted(extras)))
    (HERE / KEY).write_text(key)


def _store(cached: Path) -> None:
    new = cached.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    shutil.copytree(HERE, new / "venv", symlinks=True, copy_function=_link)
    (new / "root").write_text(str(REPOSITORY))
    new.rename(cached)
    for old in sorted(ENVIRONMENTS.iterdir(), key=lambda each: each.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def _relocate(root: str) -> None:
    """Let the environment be one of this repository in place of another."""
    for path in _files_of_this_folder():
        content = path.read_bytes()
        if root.encode() in content:
            mode = path.stat().st_mode
            path.unlink()  # The cache has the same file.
            path.write_bytes(content.replace(root.encode(), str(REPOSITORY).encode()))
            path.chmod(mode)


def _files_of_this_folder() -> Iterator[Path]:
    for pattern in OF_THIS_FOLDER:
        yield from (path for path in HERE.glob(pattern) if path.is_file() and not path.is_symlink())


def _link(source: str | Path, target: str | Path) -> None:
    """Link a file; copy it where the cache is on another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def main() -> int:
    """Make the environment, or say what keeps it from being made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*")
    parser.add_argument("--keep-bytecode", action="store_true")
    options = parser.parse_args()
    if options.keep_bytecode:
        keep_bytecode()
        return 0
    try:
        make(set(options.extras))
    except BuildError as error:
        say(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Programs of the trainer that commands start as processes: `dtj` itself never imports them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import NoReturn

from dtj.api.errors import DtjError
from dtj_trainer.contract.distribution import install_line


def need(what: str, modules: Iterable[str], extra: str) -> None:
    """Raise DtjError if `what` lacks one of the modules, which the extra of dtj installs."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise DtjError(f"{what} needs {', '.join(missing)}", install_line(extra))


def command(
    module: str, words: Iterable[str], options: Mapping[str, object], flags: Iterable[str] = ()
) -> list[str]:
    """Return the command line of a program. An option that is None is left out."""
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    rest = list(words)
    return [sys.executable, "-m", module, *given, *flags, *(["--", *rest] if rest else [])]


def run(words: list[str]) -> int:
    """Run a program to its end; return its exit code."""
    return subprocess.run(words, check=False).returncode


def become(words: list[str]) -> NoReturn:
    """Replace this process by a program, which then gets the signals of this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(words[0], words)

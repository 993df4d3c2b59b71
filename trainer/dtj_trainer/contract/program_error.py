"""The error that ends a program of the trainer, for its pod or for the `dtj` command that started the program."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

ENV_ERROR_FILE = "DTJ_ERROR_FILE"
"""A file for the error, in place of standard error. A `dtj` command sets it, and prints the error as its own."""


def end(error: Exception, code: int) -> NoReturn:
    """End the process with an exit code, after writing the error's class and message to stderr or ENV_ERROR_FILE."""
    line = f"{type(error).__name__}: {error}"
    if file := os.environ.get(ENV_ERROR_FILE):
        Path(file).write_text(line, encoding="utf-8", errors="backslashreplace")
    else:
        print(line, file=sys.stderr, flush=True)
    raise SystemExit(code) from None

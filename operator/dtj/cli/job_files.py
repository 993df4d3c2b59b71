"""Reads the job files of the command line, and standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from dtj.api import job_file
from dtj.api.errors import Unusable
from dtj.api.job import Job, Manifest
from dtj.api.yaml_lines import MOST_BYTES, too_large
from dtj.cli.words import Words

STANDARD_INPUT = "-"


def read_text(path: Path) -> str:
    """Return the text of a file, or of standard input for `-`.

    Raises Unusable if the file can't be read, is too large, or is not UTF-8.
    """
    try:
        if str(path) == STANDARD_INPUT:
            data = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with path.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise too_large(str(path))
        return data.decode("utf-8-sig")
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Unusable(f"{path}: not text in UTF-8") from None


def with_words(manifest: Manifest, words: Words) -> Manifest:
    """Return a job whose program is the words after `--`, if there are any, in place of command and args."""
    if not words.after:
        return manifest
    return {**manifest, "spec": {**manifest["spec"], "command": list(words.after), "args": []}}


def read_one_job(path: Path) -> tuple[Manifest, Job]:
    """Return the only job of a file, as manifest and as model.

    Raises Unusable if the file does not contain exactly one job, and FaultyFile with every fault of the file.
    """
    return job_file.read_one_job(read_text(path), str(path))

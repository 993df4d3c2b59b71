"""The tree of an earlier version of dtj, taken out of git."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def tree_of(commit: str, folder: Path) -> Path:
    """Write the files of a commit into a new folder, and return that folder."""
    folder.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "--extract", f"--directory={folder}"], input=archive.stdout, check=True)
    return folder

"""Asks Git for the commit of a folder of code. Pure functions parse the output of Git."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from dtj.api.git_annotations import without_credentials
from dtj_trainer.contract.history import GitState

_SECONDS = 5.0
"""The time limit of each call of git. A repository on a slow disk must not delay `dtj submit`."""
_COMMIT, _BRANCH = "# branch.oid ", "# branch.head "
_DETACHED = "(detached)"
# Variables that make git use another repository than that of the folder. A git hook or a shell may have set them.
_OTHER_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY")
_QUIET = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
_FIELDS_BEFORE_PATH = {"1": 8, "2": 9, "u": 10}


def git_state(folder: Path, names: Iterable[str] = ()) -> GitState | None:
    """Return the commit, the branch and the remote of a folder.

    Returns None without Git, outside of a repository, before the first commit, or if Git takes longer than _SECONDS.

    names: the files of the archive, relative to the folder. `modified` says whether one of them differs from the
    commit, or is missing in it, or whether a file of the commit was deleted. Files that stay out do not count.
    """
    # Disable core.fsmonitor: a repository's configuration may name a program there, which git would start.
    status = _git(
        folder,
        "-c",
        "core.fsmonitor=false",
        "status",
        "--porcelain=v2",
        "--branch",
        "--no-renames",
        "-z",
        ".",
    )
    prefix = _git(folder, "rev-parse", "--show-prefix")
    if status is None or prefix is None:
        return None
    remotes = _git(folder, "config", "--null", "--get-regexp", r"^remote\..*\.url$") or ""
    return parsed_state(status, prefix.rstrip("\n"), remotes, names)


def parsed_state(status: str, prefix: str, remotes: str, names: Iterable[str]) -> GitState | None:
    """Return the state from the output of Git; None before the first commit.

    status: output of `git status --porcelain=v2 --branch -z`. prefix: the folder in the repository, which ends with
    `/`. remotes: output of `git config --null --get-regexp`. names: see `git_state`.
    """
    lines = status.split("\0")
    commit = next((line.removeprefix(_COMMIT) for line in lines if line.startswith(_COMMIT)), "")
    if not re.fullmatch(r"[0-9a-f]+", commit):
        return None
    state: GitState = {"commit": commit, "modified": _differs(lines, prefix, frozenset(names))}
    branch = next((line.removeprefix(_BRANCH) for line in lines if line.startswith(_BRANCH)), _DETACHED)
    if branch != _DETACHED:
        state["branch"] = branch
    if remote := _remote(remotes):
        state["remote"] = remote
    return state


def _differs(lines: Iterable[str], prefix: str, names: frozenset[str]) -> bool:
    for path, gone in _changed(lines):
        name = path.removeprefix(prefix)
        if gone or name in names:
            return True
        # For a folder without tracked files, git prints the folder instead of its files.
        if name.endswith("/") and any(each.startswith(name) for each in names):
            return True
    return False


def _changed(lines: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Yield the path of each file that differs from the commit, and whether the file was deleted."""
    for line in lines:
        kind, _, rest = line.partition(" ")
        if kind == "?":
            yield rest, False
        elif kind in _FIELDS_BEFORE_PATH:
            fields = line.split(" ", _FIELDS_BEFORE_PATH[kind])
            yield fields[-1], "D" in fields[1]


def _remote(remotes: str) -> str | None:
    """Return the URL of `origin`, or of the only remote."""
    urls = dict[str, str]()
    for entry in filter(None, remotes.split("\0")):
        key, _, url = entry.partition("\n")
        urls.setdefault(key.removeprefix("remote.").removesuffix(".url"), url)
    url = urls.get("origin") or (next(iter(urls.values())) if len(urls) == 1 else "")
    return without_credentials(url) if url else None


def _git(folder: Path, *words: str) -> str | None:
    """Return what Git prints; None if Git is absent, refuses, or takes too long."""
    own = {name: value for name, value in os.environ.items() if name not in _OTHER_REPOSITORY}
    try:
        done = subprocess.run(  # noqa: S603 - fixed words and a folder
            ["git", *words],  # noqa: S607 - the user's own Git
            cwd=folder,
            env=own | _QUIET,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None

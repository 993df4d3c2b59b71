"""Chooses the files of a folder that become the archive of `spec.code`, and packs them.

`.dtjignore` at the top of the folder has the syntax of `.gitignore`. pathspec implements this syntax as Git does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from pathspec import GitIgnoreSpec

from dtj.api.errors import Unusable
from dtj_trainer.contract import code_archive
from dtj_trainer.contract.code_archive import CodeError, CodeTooLarge, Packed, shown

IGNORE_FILE = ".dtjignore"
DEFAULT_PATTERNS = (
    # Leave out hidden files: they may contain secrets, as .env, .netrc and .aws do. `.git` and caches are hidden,
    # too.
    ".*",
    "__pycache__/",
    "*.py[cod]",
    "*.egg-info/",
    "node_modules/",
)
"""Patterns of files that are left out, unless a pattern in the folder's .dtjignore with `!` includes them."""
LARGE_BYTES = 10 * 1024**2
"""A larger file is left out, unless a pattern in the folder's .dtjignore with `!` includes it."""
_ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")


@dataclass(frozen=True)
class LeftOut:
    """A file or folder that stays out of the archive although no pattern names it, such as a large file."""

    name: str
    why: str


@dataclass
class Selection:
    """The files and folders of an archive."""

    entries: list[tuple[str, Path]] = field(default_factory=list)
    """The files to pack: the name in the archive, and the path."""
    left_out: list[LeftOut] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    """Files and folders that a pattern leaves out."""


def select(folder: Path) -> Selection:
    """Return the files and folders of a folder that belong to the code.

    A link to a file in the folder counts as the file. Raises Unusable for a link that leaves the folder, a link to a
    folder, a device, a name that is not UTF-8, a folder or `.dtjignore` that can't be read, or too many files.
    """
    top = folder.resolve()
    if top in (Path("/"), Path.home().resolve(), *Path.home().resolve().parents):
        raise Unusable(
            f"{folder} is the root folder, or contains your home folder: dtj would send all files in it",
            "move the script to a folder of its own",
        )
    selection = Selection()
    patterns = _patterns(top)
    try:
        for name, entry in _walk(top, "", patterns, selection):
            selection.entries.append((name, Path(entry.path)))
            if len(selection.entries) > code_archive.MOST_ENTRIES:
                raise Unusable(
                    f"{folder} has more than {code_archive.MOST_ENTRIES:,} files and folders",
                    f"name what is not needed in {IGNORE_FILE}",
                )
    except OSError as error:
        raise Unusable(f"{error.filename}: {error.strerror}") from None
    if not selection.entries:
        raise Unusable(f"{folder} has no files to send")
    return selection


def pack(selection: Selection, archive: BinaryIO) -> Packed:
    """Write the archive of a selection. Raises Unusable if a file changes meanwhile, or a limit is exceeded."""
    try:
        return code_archive.pack(selection.entries, archive)
    except CodeTooLarge as error:
        raise Unusable(str(error), f"name what is not needed in {IGNORE_FILE}") from None
    except CodeError as error:
        raise Unusable(str(error)) from None
    except OSError as error:
        raise Unusable(f"{error.filename}: {error.strerror}") from None


def _patterns(top: Path) -> GitIgnoreSpec:
    own: list[str] = []
    try:
        own = (top / IGNORE_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"{top / IGNORE_FILE} can't be read: {error}") from None
    try:
        return GitIgnoreSpec.from_lines([*DEFAULT_PATTERNS, *own])
    except ValueError as error:
        raise Unusable(f"{top / IGNORE_FILE}: {error}") from None


def _walk(
    folder: Path, prefix: str, patterns: GitIgnoreSpec, selection: Selection
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(folder) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries:
        name = f"{prefix}{entry.name}"
        if not _is_text(name):
            raise Unusable(f"the name {shown(name)} is not UTF-8", "rename the file")
        if entry.is_dir(follow_symlinks=False):
            if patterns.match_file(f"{name}/"):
                selection.ignored.append(f"{name}/")
                continue
            if any(Path(entry.path, mark).exists() for mark in _ENVIRONMENT_MARKS):
                selection.left_out.append(LeftOut(f"{name}/", "a Python environment"))
                continue
            yield name, entry
            yield from _walk(Path(entry.path), f"{name}/", patterns, selection)
            continue
        kept = patterns.check_file(name).include
        # The patterns name files to leave out, so `include` of pathspec means that the file is left out.
        if kept:
            selection.ignored.append(name)
            continue
        _check(name, entry, folder, prefix)
        size = entry.stat().st_size
        if size > LARGE_BYTES and kept is None:
            selection.left_out.append(
                LeftOut(name, f"large ({size / 1024**2:.0f} MiB); `!{name}` in {IGNORE_FILE} includes it")
            )
            continue
        yield name, entry


def _check(name: str, entry: os.DirEntry[str], folder: Path, prefix: str) -> None:
    """Raise Unusable for an entry that can't be packed: a link out of the folder or to a folder, a special file."""
    if entry.is_symlink():
        target = Path(entry.path).resolve()
        top = folder.parents[prefix.count("/") - 1] if prefix else folder
        if not target.is_relative_to(top):
            raise Unusable(
                f"{shown(name)} is a link to {target}, which is not in the folder",
                f"copy the file, or name the link in {IGNORE_FILE}",
            )
        if not target.exists():
            raise Unusable(
                f"{shown(name)} is a link to {target}, which does not exist",
                f"remove the link, or name it in {IGNORE_FILE}",
            )
        if target.is_dir():
            raise Unusable(
                f"{shown(name)} is a link to a folder", f"copy the folder, or name the link in {IGNORE_FILE}"
            )
    if not entry.is_file():
        raise Unusable(f"{shown(name)} is neither a file nor a folder", f"name it in {IGNORE_FILE}")


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True

"""TensorFlow's state file, `checkpoint`, which names the newest checkpoint in its folder."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

STATE_FILE = "checkpoint"
_NEWEST = re.compile(rb'^model_checkpoint_path: "([^"\n]+)"')


def is_state(path: Path) -> bool:
    """Return whether the file is TensorFlow's state file, and not a checkpoint of that name."""
    return _named_by(path) is not None


def write_state(folder: Path, names: Sequence[str]) -> bool:
    """Ensure that the state file in `folder` names a checkpoint among the files `names`; return whether it was
    written.

    The program's state file may be missing, or may name a later checkpoint, when the program saves faster than
    checkpoints become complete. TensorFlow would then find no checkpoint and start from 0. Without TensorFlow's files
    the function does nothing.
    """
    prefixes = [
        prefix
        for prefix in (name.removesuffix(".index") for name in names if name.endswith(".index"))
        if any(name.startswith(f"{prefix}.data-") for name in names)
    ]
    state = folder / STATE_FILE
    if not prefixes or (state.exists() and _named_by(state) in {None, *prefixes}):
        return False
    state.write_text(f'model_checkpoint_path: "{prefixes[0]}"\nall_model_checkpoint_paths: "{prefixes[0]}"\n')
    return True


def _named_by(state: Path) -> str | None:
    """Return the checkpoint's name without its folder."""
    try:
        with state.open("rb") as file:
            found = _NEWEST.match(file.read(4096))
    except OSError:
        return None
    return PurePosixPath(found[1].decode(errors="replace")).name if found else None

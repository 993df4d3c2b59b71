"""The Python distribution of dtj: its name, its version, and the command that installs more of it.

The name `dtj` on PyPI belongs to another author: a command with that name would install another author's program.
"""

from __future__ import annotations

import json
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

NAME = "dtjob"
FORMER_NAME = "dtj"
"""The name before the first release, and that of another author's distribution on PyPI."""


def version() -> str:
    """Return the version of this dtj. Raises PackageNotFoundError where no distribution is installed."""
    return metadata.version(NAME)


def install_line(*extras: str) -> str:
    """Return the command that installs this dtj with more extras, from the place that this dtj comes from.

    PEP 610's `direct_url.json` names the place: a folder of sources, a wheel, or an address. Without this file, the
    place is the package index. The wheel of an image is gone: the command then takes it from the current folder.
    """
    wanted = f"[{','.join(extras)}]" if extras else ""
    try:
        distribution = metadata.distribution(NAME)
    except metadata.PackageNotFoundError:
        return _pip(f".{wanted}")  # dtj runs from its sources: the command installs from their folder.
    direct_url = distribution.read_text("direct_url.json")
    if direct_url is None:
        return _pip(f"{NAME}{wanted}=={distribution.version}")
    return _from(json.loads(direct_url), wanted)


def former() -> str | None:
    """Return the version of an installed distribution of the former name; None without one."""
    try:
        return metadata.version(FORMER_NAME)
    except metadata.PackageNotFoundError:
        return None


def _from(direct_url: dict[str, Any], wanted: str) -> str:
    address = direct_url["url"]
    if "vcs_info" in direct_url:
        control = direct_url["vcs_info"]
        return _pip(f"{NAME}{wanted} @ {control['vcs']}+{address}@{control['commit_id']}")
    parts = urlsplit(address)
    if parts.scheme != "file":
        return _pip(f"{NAME}{wanted} @ {address}")
    path = Path(url2pathname(parts.path))
    if "dir_info" in direct_url:
        editable = ["--editable"] if direct_url["dir_info"].get("editable") else []
        return _pip(*editable, f"{path}{wanted}")
    return _pip(f"{path if path.exists() else f'./{path.name}'}{wanted}")


def _pip(*words: str) -> str:
    return f"pip install {shlex.join(words)}"

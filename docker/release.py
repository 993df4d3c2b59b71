#!/usr/bin/env python3
"""Set the version of the project in every tracked file that states it: `make release VERSION=0.2.0`.

A version is the project's own after the name `dtj` or the name of an image (`dtj-operator:0.1.0`), as a `tag` of the
chart's values, in the label `app.kubernetes.io/version`, in pyproject.toml and in the chart. CHANGELOG.md keeps
earlier versions. constraints.txt and image_packages.json have the versions of other packages. The command prints
other places that read like the old version: a person decides.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
UNTOUCHED = {"CHANGELOG.md", "constraints.txt", "operator/dtj/client/image_packages.json"}
VERSION = re.compile(r"\d+\.\d+\.\d+")
# Between the name and the version: `:`, `-`, `@`, a space, `", "`, `, tag: v`.
OWN_NAME = r"\bdtj(?:ob|(?:-[a-z]+)*)[^\w\n]{1,4}(?:tag: )?v?"
TAG = r"\btag(?:=|: )v?"
LABEL = r"app\.kubernetes\.io/version: \"?"
PROJECT_KEY = r"^version = \""
CHART_KEY = r"^(?:v|appV)ersion: "


def own(version: str) -> re.Pattern[str]:
    """Match the places that state `version` as the project's own; group 1 is the text before the version."""
    places = "|".join((OWN_NAME, TAG, LABEL, PROJECT_KEY, CHART_KEY))
    return re.compile(rf"({places}){_number(version)}", re.MULTILINE)


def _number(version: str) -> str:
    return rf"(?<![\d.]){re.escape(version)}(?!\d|\.\d)"


def tracked(repository: Path) -> list[Path]:
    """List the tracked files of the repository that may state the version."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=repository, capture_output=True, text=True, check=True
    )
    paths = [repository / name for name in listed.stdout.split("\0") if name and name not in UNTOUCHED]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def set_version(repository: Path, new: str) -> tuple[list[Path], list[str]]:
    """Replace the current version by `new`. Return the changed files, and the places that were left alone."""
    project = tomllib.loads((repository / "pyproject.toml").read_text())
    old = project["project"]["version"]
    pattern, number = own(old), re.compile(_number(old))
    changed, left_alone = [], []
    for path in tracked(repository):
        content = path.read_bytes()
        if old.encode() not in content or b"\0" in content:
            continue
        before = content.decode()
        after = pattern.sub(lambda match: match[1] + new, before)
        if after != before:
            path.write_bytes(after.encode())
            changed.append(path)
        if old != new:
            name = path.relative_to(repository)
            left_alone += [
                f"{name}:{line}: {text.strip()[:120]}"
                for line, text in enumerate(after.splitlines(), 1)
                if number.search(text)
            ]
    return changed, left_alone


def main() -> int:
    """Set the version; exit with 2 for an invalid version."""
    parser = argparse.ArgumentParser(description="Set the project's version in every file.")
    parser.add_argument("version", help="as in 0.2.0")
    parser.add_argument("--repository", type=Path, default=REPOSITORY)
    options = parser.parse_args()
    if not VERSION.fullmatch(options.version):
        print(f"{options.version!r} is not a version of three numbers, such as 0.2.0", file=sys.stderr)
        return 2
    changed, left_alone = set_version(options.repository, options.version)
    print(f"{len(changed)} files state version {options.version}")
    for place in left_alone:
        print(f"left alone, please check: {place}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

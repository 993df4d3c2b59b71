"""`make release VERSION=` on a copy of the tracked files.

Cases: no old version is left; a changed line differs in the version alone; versions of others stay; a wrong version.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.project.test_layout import PROJECT, ROOT

NEW = "12.34.56"
OLD = PROJECT["version"]


def git(repository: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=repository, capture_output=True, text=True, check=True).stdout


def release(repository: Path, version: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "docker/release.py", version, "--repository", repository]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in filter(None, git(ROOT, "ls-files", "-z").split("\0")):
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all", "--force")
    return tmp_path


def test_no_old_version_is_left_and_nothing_else_changes(copy: Path) -> None:
    done = release(copy, NEW)

    assert done.returncode == 0, done.stderr
    assert "left alone" not in done.stdout
    diff = git(copy, "diff", "--unified=0", "--no-color").splitlines()
    removed = [line[1:] for line in diff if line.startswith("-") and not line.startswith("--- ")]
    added = [line[1:] for line in diff if line.startswith("+") and not line.startswith("+++ ")]
    assert len(removed) > 100
    assert [line.replace(OLD, NEW) for line in removed] == added
    names = set(git(copy, "diff", "--name-only").split())
    assert {"pyproject.toml", "charts/dtj-operator/Chart.yaml", "README.md"} <= names
    assert names.isdisjoint({"CHANGELOG.md", "constraints.txt"})


def test_the_way_back_restores_every_file(copy: Path) -> None:
    release(copy, NEW)
    release(copy, OLD)

    assert git(copy, "diff", "--name-only") == ""


def test_versions_of_others_stay_and_are_printed(copy: Path) -> None:
    foreign = f"image: redis:{OLD}\nimage: dtj-operator:{OLD}.1\nhost: 1{OLD}\ntext: dtj {OLD}\n"
    (copy / "docs/foreign.md").write_text(foreign)
    git(copy, "add", "docs/foreign.md")

    done = release(copy, NEW)

    assert (copy / "docs/foreign.md").read_text() == foreign.replace(f"dtj {OLD}", f"dtj {NEW}")
    assert done.stdout.splitlines()[1:] == [
        f"left alone, please check: docs/foreign.md:1: image: redis:{OLD}"
    ]


@pytest.mark.parametrize("version", ["v0.2.0", "0.2", "0.2.0-rc1", ""])
def test_a_version_of_another_form_changes_nothing(copy: Path, version: str) -> None:
    done = release(copy, version)

    assert done.returncode == 2
    assert "three numbers" in done.stderr
    assert git(copy, "diff", "--name-only") == ""

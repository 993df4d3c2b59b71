"""The cache of environments: .venv of hard links to one that pip has made, for the folder in which it is."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

DOCKER = Path(__file__).parents[3] / "docker"
PROJECT = """
[build-system]
requires = []
[project]
name = "dtjob"
[project.optional-dependencies]
local = ["a"]
dev = ["dtjob[local]", "b"]
all = ["dtjob[dev]", "c"]
other = ["d"]
[tool.setuptools]
[tool.ruff]
line-length = 110
"""


@pytest.fixture
def installed() -> list[list[str]]:
    """The extras of each environment that pip made."""
    return []


@pytest.fixture
def environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: list[list[str]]
) -> Callable[[str], ModuleType]:
    """Make docker/environment.py one of a repository in a folder, whose pip writes two files."""
    monkeypatch.syspath_prepend(DOCKER)
    module = importlib.import_module("environment")
    monkeypatch.setattr(module, "ENVIRONMENTS", tmp_path / "cache")
    monkeypatch.setattr(sys.modules["host"], "CACHE", tmp_path)

    def install(extras: set[str], key: str) -> None:
        installed.append(sorted(extras))
        packages = module.HERE / "lib/python3/site-packages"
        packages.mkdir(parents=True)
        (module.HERE / "bin").mkdir()
        (module.HERE / "bin/tool").write_text(f"#!{module.HERE}/bin/python\n")
        (module.HERE / "bin/tool").chmod(0o755)
        (packages / "a.py").write_text("A = 1\n")
        (module.HERE / module.EXTRAS).write_text(" ".join(extras))
        (module.HERE / module.KEY).write_text(key)

    monkeypatch.setattr(module, "_install", install)

    def of(folder: str) -> ModuleType:
        root = tmp_path / folder
        root.mkdir(exist_ok=True)
        if not (root / "pyproject.toml").exists():
            (root / "pyproject.toml").write_text(PROJECT)
            (root / "constraints.txt").write_text("a==1\n")
        monkeypatch.setattr(module, "REPOSITORY", root)
        monkeypatch.setattr(module, "HERE", root / ".venv")
        return module

    return of


def test_a_second_clone_links_the_environment_and_names_its_own_folder(
    environment: Callable[[str], ModuleType], tmp_path: Path, installed: list[list[str]]
) -> None:
    environment("one").make({"dev"})
    environment("two").make({"dev"})
    assert installed == [["dev"]]
    one, two = tmp_path / "one/.venv", tmp_path / "two/.venv"
    assert (one / "lib/python3/site-packages/a.py").samefile(two / "lib/python3/site-packages/a.py")
    assert (one / "bin/tool").read_text() == f"#!{one}/bin/python\n"
    assert (two / "bin/tool").read_text() == f"#!{two}/bin/python\n"
    assert (two / "bin/tool").stat().st_mode & 0o777 == 0o755


def test_what_decides_an_environment_is_in_its_key(
    environment: Callable[[str], ModuleType], tmp_path: Path, installed: list[list[str]]
) -> None:
    environment("one").make({"dev"})
    changed = environment("two")
    settings = tmp_path / "two/pyproject.toml"
    settings.write_text(PROJECT.replace("110", "100"))
    changed.make({"dev"})
    assert installed == [["dev"]], "a linter's settings decide nothing"
    for change in (
        lambda: settings.write_text(PROJECT.replace('"b"', '"b", "e"')),
        lambda: (tmp_path / "two/constraints.txt").write_text("a==2\n"),
    ):
        change()
        changed.make({"dev"})
    assert installed == [["dev"]] * 3
    changed.make({"dev"})
    assert installed == [["dev"]] * 3


def test_extras_add_up_without_those_that_others_bring(
    environment: Callable[[str], ModuleType], installed: list[list[str]]
) -> None:
    here = environment("one")
    for extras in ({"local"}, {"other"}, {"dev"}, {"all", "local"}, {"dev", "other"}):
        here.make(extras)
    assert installed == [["local"], ["local", "other"], ["dev", "other"], ["all", "other"]]


def test_bytecode_of_the_cached_files_is_kept_and_no_other(
    environment: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    here = environment("one")
    here.make({"dev"})
    compiled = tmp_path / "one/.venv/lib/python3/site-packages/__pycache__"
    compiled.mkdir()
    (compiled / "a.cpython-311.pyc").write_bytes(b"of a")
    (compiled / "later.cpython-311.pyc").write_bytes(b"of what was installed later")
    (compiled.parent / "later.py").write_text("")
    here.keep_bytecode()
    environment("two").make({"dev"})
    kept = tmp_path / "two/.venv/lib/python3/site-packages/__pycache__"
    assert [path.name for path in kept.iterdir()] == ["a.cpython-311.pyc"]
    # Another version of a module in place of the cached one: its bytecode is not the cached one's.
    (compiled.parent / "a.py").unlink()
    (compiled.parent / "a.py").write_text("A = 2\n")
    (compiled / "a.cpython-312.pyc").write_bytes(b"of the other a")
    environment("one").keep_bytecode()
    environment("three").make({"dev"})
    kept = tmp_path / "three/.venv/lib/python3/site-packages/__pycache__"
    assert [path.name for path in kept.iterdir()] == ["a.cpython-311.pyc"]


def test_the_environment_used_longest_ago_leaves_the_cache(
    environment: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    here = environment("one")
    for count in range(here.KEPT + 2):
        (tmp_path / "one/constraints.txt").write_text(f"a=={count}\n")
        here.make({"dev"})
    assert len(list((tmp_path / "cache").iterdir())) == here.KEPT

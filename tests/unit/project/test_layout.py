"""The layout of the repository: import rules, size of modules, versions, and Python's own `operator` unharmed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


def test_stdlib_operator_stays_itself_from_the_repository_root() -> None:
    code = "import operator, sys; print(operator.__file__); assert operator.add(1, 2) == 3"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert Path(done.stdout.strip()).parent == Path(sys.modules["os"].__file__ or "").parent


def test_operator_folder_holds_the_package_and_the_sources_of_its_page() -> None:
    entries = {path.name for path in (ROOT / "operator").iterdir()} - {"__pycache__", ".mypy_cache"}

    assert entries == {"dtj", "page"}, "a module in operator/ would hide Python's own `operator`"
    assert list((ROOT / "operator/page").rglob("*.py")) == []


def test_import_contracts_hold() -> None:
    lint_imports = Path(sys.executable).with_name("lint-imports")

    done = subprocess.run([lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


MODULES = sorted(
    path.relative_to(ROOT)
    for package in ("operator/dtj", "trainer/dtj_trainer")
    for path in (ROOT / package).rglob("*.py")
)
MOST_LINES = 700


def test_a_module_has_one_subject_and_so_few_lines() -> None:
    lines = {str(path): len((ROOT / path).read_text().splitlines()) for path in MODULES}

    assert len(lines) > 300
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


FEWEST_LINES = 80
REGISTRIES = ("operator/dtj/cli", "trainer/dtj_trainer/data/formats", "trainer/dtj_trainer/torch/models")
"""Folders whose modules a table names: commands, formats of data, networks."""
STRATEGIES = {"operator/dtj/api/strategies.py", "operator/dtj/plan/job.py"}
"""The registries of strategies: a small module that one of them names may stand alone."""
ALONE = {
    "operator/dtj/handlers.py",  # the only module beside kopf_settings that may import kopf
    "trainer/dtj_trainer/keras/optimizers.py",  # runs without Horovod, which keras/model.py needs
    "trainer/dtj_trainer/serving/heap.py",  # is set, and measured, in a process that imports nothing else
    "trainer/dtj_trainer/serving/torch_form.py",  # a table of forms names it
    "trainer/dtj_trainer/tensorboard_program.py",  # another program starts the file
}


def test_a_small_module_has_two_importers_or_a_reason_to_stand_alone() -> None:
    importers = _importers()
    small = {
        str(path)
        for path in MODULES
        if len((text := (ROOT / path).read_text()).splitlines()) < FEWEST_LINES
        and path.name not in ("__init__.py", "__main__.py")
        and 'if __name__ == "__main__":' not in text
        and len(importers[str(path)]) < 2
        and not importers[str(path)] & STRATEGIES
        and not str(path).startswith(REGISTRIES)
    }

    assert len(importers) > 300
    assert sorted(small - ALONE) == [], "a small module that one module imports belongs into that one"


def _importers() -> dict[str, set[str]]:
    """Return the modules that import each module, also in functions and for types alone."""
    names = {
        ".".join(path.with_suffix("").parts[1:]).removesuffix(".__init__"): str(path) for path in MODULES
    }
    found: dict[str, set[str]] = {str(path): set() for path in MODULES}
    for path in MODULES:
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    imported = names.get(name) or names.get(node.module)
                    if imported is not None:
                        found[imported].add(str(path))
    return found


def test_each_file_beside_the_modules_is_in_the_wheel() -> None:
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["*"]
    files = [
        path
        for package in ("operator/dtj", "trainer/dtj_trainer")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    ]
    assert {"page.html", "page.css", "page.js"} <= {path.name for path in files}
    left_out = [path for path in files if not any(map(path.match, patterns))]
    assert left_out == [], "package-data in pyproject.toml does not name them"


def test_no_module_turns_off_the_limits_of_a_function() -> None:
    assert [
        str(path) for path in MODULES if re.search(r"noqa.*(C901|PLR0915)", (ROOT / path).read_text())
    ] == []


def test_nothing_private_of_kopf_is_imported() -> None:
    private = re.compile(r"kopf\._|kopf import _|\(kopf\)")
    users = {
        path.name: path.read_text()
        for path in (ROOT / "operator").rglob("*.py")
        if "kopf" in path.read_text()
    }
    assert {"handlers.py", "kopf_settings.py"} <= users.keys()
    assert [name for name, text in users.items() if private.search(text)] == []


def images() -> list[tuple[str, str]]:
    found = []
    for folder in ("examples", "operator"):
        for file in sorted((ROOT / "manifests" / folder).rglob("*.yaml")):
            for manifest in yaml.safe_load_all(file.read_text()):
                found += [(str(file.relative_to(ROOT)), image) for image in _images(manifest)]
    return found


def _images(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["image"]] if isinstance(node.get("image"), str) else []
        return own + [image for value in node.values() for image in _images(value)]
    if isinstance(node, list):
        return [image for value in node for image in _images(value)]
    return []


def test_there_are_images_of_ours_in_the_manifests() -> None:
    assert {image.split(":")[0] for _, image in images()} >= {"dtj-operator", "dtj-trainer-horovod"}


@pytest.mark.parametrize(("file", "image"), [pair for pair in images() if pair[1].startswith("dtj-")])
def test_image_tag_is_the_projects_version(file: str, image: str) -> None:
    assert image.rpartition(":")[2] == PROJECT["version"], f"{file}: {image}"


def test_the_command_needs_nothing_that_only_the_operator_installs() -> None:
    code = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("kopf", "cryptography", "matplotlib", "tensorboard", "torch", "tensorflow"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import dtj.cli.main, dtj.client, dtj.doctor.examine, dtj.local.runner
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_the_operators_image_needs_nothing_of_the_trainer_but_the_contract() -> None:
    code = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("dtj_trainer.") and name.split(".")[1] != "contract":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import dtj.cli.main, dtj.process
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr

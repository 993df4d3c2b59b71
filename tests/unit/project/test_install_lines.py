"""What dtj prints and documents to install it installs dtj, and not another author's distribution.

Cases: each place that dtj may come from; each command with its extras that dtj prints or documents, and each way of
installing dtj, by pip in a fresh environment with our wheel as the only source; no text has the former name.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import venv
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from dtj_trainer.contract import distribution
from dtj_trainer.contract.distribution import FORMER_NAME, NAME, install_line
from tests.unit.project.test_layout import PROJECT, ROOT
from tests.unit.project.test_release import git

TRACKED = [
    ROOT / name
    for name in git(ROOT, "ls-files", "-z").split("\0")
    if name.endswith((".md", ".py", ".sh", ".toml", ".yaml", ".yml", "Dockerfile", "Makefile"))
]
CALLED = re.compile(r"install_line\(([^)\n]*)\)")
DOCUMENTED = re.compile(r"pip install '?\.(\[[^]']*\])?")


class Pip:
    """A fresh environment, a copy of the sources, and a folder with the wheel of these."""

    def __init__(self, folder: Path) -> None:
        self.wheels, self.sources = folder / "wheels", folder / "sources"
        self.python = folder / "environment/bin/python"
        venv.create(folder / "environment", with_pip=False)
        for name in ("pyproject.toml", "README.md", "LICENSE", "operator/dtj", "trainer/dtj_trainer"):
            (self.sources / name).parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, self.sources / name)
        build = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", self.wheels, self.sources)
        self._run(sys.executable, "-m", "pip", *build)
        (self.wheel,) = self.wheels.glob("*.whl")

    def install(self, *words: str | Path) -> str:
        return self._run(
            *(sys.executable, "-m", "pip", "--python", self.python, "install"),
            *("--no-deps", "--no-index", "--find-links", self.wheels, *words),
        )

    def line(self, *extras: str) -> list[str]:
        """What the dtj of the environment prints, as the words after `pip install`."""
        code = f"from {distribution.__name__} import install_line; print(install_line(*{extras}))"
        words = shlex.split(self._run(self.python, "-c", code))
        assert words[:2] == ["pip", "install"]
        return words[2:]

    def _run(self, *words: str | Path) -> str:
        done = subprocess.run(words, cwd=self.wheels.parent, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "does not provide the extra" not in done.stderr, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def pip(tmp_path_factory: pytest.TempPathFactory) -> Pip:
    return Pip(tmp_path_factory.mktemp("pip"))


def test_no_text_has_the_former_name() -> None:
    said = re.compile(rf"\b{FORMER_NAME}\[[a-z]|pip (install|download) ['\"]?{FORMER_NAME}\b")
    found = {
        path.relative_to(ROOT)
        for path in TRACKED
        if path.exists() and path != Path(__file__) and said.search(path.read_text(errors="replace"))
    }
    assert not found
    assert PROJECT["name"] == NAME


def test_every_command_with_extras_resolves_to_ours(pip: Pip) -> None:
    printed = {
        found
        for path in TRACKED
        if path.suffix == ".py" and path.parts[len(ROOT.parts)] in {"operator", "trainer"}
        for call in CALLED.findall(path.read_text())
        if (found := ",".join(re.findall(r'"([a-z]+)"', call)))
    }
    documented = {
        found.strip("[]")
        for path in TRACKED
        if path.suffix == ".md"
        for found in DOCUMENTED.findall(path.read_text())
    }
    assert {"export,torch,tensorflow", "local"} <= printed
    assert {"", "local,torch", "trainer"} <= documented
    extras = {name for names in printed | documented for name in names.split(",") if name}
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras <= {*known}
    told = pip.install("--dry-run", f"{pip.wheel}[{','.join(sorted(extras))}]")
    assert f"Would install {NAME}-{PROJECT['version']}" in told


def test_the_printed_command_installs_the_same_dtj(pip: Pip) -> None:
    for source in (pip.wheel, NAME):
        pip.install("--force-reinstall", source)
        line = pip.line("export", "torch")
        told = pip.install("--dry-run", "--force-reinstall", *line)
        assert f"Would install {NAME}-{PROJECT['version']}" in told


@pytest.mark.parametrize(
    ("direct_url", "expected"),
    [
        (None, "pip install 'dtjob[export,torch]==1.2'"),
        (
            {"url": "https://example.com/dtjob-1.2-py3-none-any.whl", "archive_info": {}},
            "pip install 'dtjob[export,torch] @ https://example.com/dtjob-1.2-py3-none-any.whl'",
        ),
        (
            {"url": "https://example.com/dtj.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
            "pip install 'dtjob[export,torch] @ git+https://example.com/dtj.git@c0ffee'",
        ),
        (
            {"url": "file:///dist/dtjob-1.2-py3-none-any.whl", "archive_info": {}},
            "pip install './dtjob-1.2-py3-none-any.whl[export,torch]'",
        ),
        ({"url": "file:///a%20b", "dir_info": {}}, "pip install '/a b[export,torch]'"),
        (
            {"url": "file:///src", "dir_info": {"editable": True}},
            "pip install --editable '/src[export,torch]'",
        ),
    ],
)
def test_the_command_is_for_the_place_that_dtj_comes_from(
    direct_url: dict[str, Any] | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "METADATA").write_text(f"Name: {NAME}\nVersion: 1.2\n")
    if direct_url:
        (tmp_path / "direct_url.json").write_text(json.dumps(direct_url))
    monkeypatch.setattr(metadata, "distribution", lambda name: metadata.PathDistribution(tmp_path))
    assert install_line("export", "torch") == expected


def test_sources_without_a_distribution_name_their_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def distribution(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", distribution)
    assert install_line("export") == "pip install '.[export]'"
    assert install_line() == "pip install ."

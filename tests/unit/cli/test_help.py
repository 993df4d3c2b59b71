"""Help, version and completion of `dtj`, and the modules that each of them imports.

* modules that help, version and completion import
* the help of every command, its width and groups
* `-h`, `--version`, and `dtj` without arguments
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import dtj
from dtj.cli.commands import COMMANDS, load
from dtj.cli.main import main
from dtj_trainer.contract.distribution import version

ROOT = Path(__file__).parents[3]
EXAMPLE = str(ROOT / "manifests/examples/fashion-mnist-horovod.yaml")
CLIENT = ("kubernetes", "aiohttp", "requests", "dtj.client.async_client", "dtj.cluster")
MODELS = ("yaml", "dtj.api.spec", "dtj.plan", "dtj.convert")
Ended = Callable[..., tuple[object, str, str]]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ended:
    """Call the console script; gives its exit code, standard output and standard error."""

    def call(*words: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["/usr/bin/dtj", *words])
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return exit_.value.code, out, err

    return call


def imported(home: Path, *words: str, **environment: str) -> set[str]:
    """The modules that a call of `dtj` imports, in a process of its own, on a machine that has no cluster."""
    program = """
import sys

from dtj.cli.main import main

file = sys.argv.pop()
try:
    main()
finally:
    open(file, "w").write(" ".join(sys.modules))
"""
    named = home / "modules"
    known = {key: value for key, value in os.environ.items() if not key.startswith("KUBE")}
    subprocess.run(
        [sys.executable, "-c", program, *words, str(named)],
        env={**known, "HOME": str(home), **environment},
        capture_output=True,
        check=False,
    )
    return set(named.read_text().split())


def heavy(modules: set[str], *names: str) -> set[str]:
    return {name for name in names if name in modules}


@pytest.mark.parametrize("words", [("--help",), ("--version",)])
def test_help_and_version_import_no_command(words: tuple[str, ...], tmp_path: Path) -> None:
    found = imported(tmp_path, *words)

    assert "dtj.cli.main" in found
    assert heavy(found, *CLIENT, *MODELS, "asyncio", "pydantic", "kubernetes_validate") == set()


def test_completion_of_a_commands_name_imports_no_command(tmp_path: Path) -> None:
    found = imported(tmp_path, _DTJ_COMPLETE="complete_bash", COMP_WORDS="dtj val", COMP_CWORD="1")

    assert "typer.completion" in found
    assert heavy(found, *CLIENT, *MODELS) == set()


@pytest.mark.parametrize(
    "words",
    [
        ("validate", EXAMPLE),
        ("convert", EXAMPLE),
        ("run", "--help"),
        ("list", "--local"),
        ("report", "none", "--local"),
    ],
    ids=lambda words: " ".join(words[:1] + words[1:][-1:]).replace(EXAMPLE, "FILE"),
)
def test_a_command_that_needs_no_cluster_imports_no_client(words: tuple[str, ...], tmp_path: Path) -> None:
    found = imported(tmp_path, *words)

    assert "pydantic" in found
    assert heavy(found, *CLIENT, "kubernetes_validate") == set()


def test_the_client_comes_without_the_validator_that_happens_to_be_installed(tmp_path: Path) -> None:
    found = imported(tmp_path, "list")

    assert heavy(found, "kubernetes.aio", "kubernetes_validate") == {"kubernetes.aio"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_dtj_says_of_a_command_what_the_command_says(name: str) -> None:
    command = load(name)

    assert command.name == name
    assert command.help.split("\n\n")[0].replace("\n", " ") == COMMANDS[name].line


def test_every_command_of_a_module_is_listed() -> None:
    listed = {listed.module for listed in COMMANDS.values()}
    having = {
        file.stem
        for file in (ROOT / "operator/dtj/cli").glob("*.py")
        if "\napp = typer.Typer(" in file.read_text()
    }
    assert having - {"main"} == listed


def test_the_help_fits_80_columns_and_is_in_groups(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = ended("--help")

    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    order = ["─ Without a cluster ─", "│ new ", "│ run ", "─ Jobs of a cluster ─", "│ submit ", "─ Results, "]
    places = [out.index(text) for text in order]
    assert places == sorted(places)


@pytest.mark.parametrize("words", [("--help",), ("submit", "--help"), ("artifacts", "ls", "--help")])
def test_no_flag_has_a_type(words: tuple[str, ...], ended: Ended) -> None:
    _, out, _ = ended(*words)

    assert "--help" in out
    assert "bool" not in out


def test_h_and_the_command_help_are_help(ended: Ended) -> None:
    of_dtj, of_submit = ended("--help"), ended("submit", "--help")

    assert ended("-h") == ended("help") == of_dtj
    assert ended("submit", "-h") == ended("help", "submit") == of_submit
    assert "Usage: dtj submit" in of_submit[1]
    assert ended("help", "artifacts", "ls")[1] == ended("artifacts", "ls", "-h")[1]
    assert ended("help", "sumbit")[::2] == (
        2,
        "dtj: No such command 'sumbit'. Did you mean 'submit'?\n     `dtj --help` shows how to use it\n",
    )


@pytest.mark.parametrize("words", [("--version",), ("version",)], ids=" ".join)
def test_version(words: tuple[str, ...], ended: Ended) -> None:
    assert ended(*words) == (0, f"dtj {version()}\n", "")
    assert dtj.__version__ == version()


def test_the_version_as_data(ended: Ended) -> None:
    assert ended("version", "-o", "json") == (0, f'{{\n  "version": "{version()}"\n}}\n', "")


@pytest.mark.parametrize("words", [(), ("artifacts",)], ids=["dtj", "artifacts"])
def test_without_arguments_the_help_is_all_that_is_said(words: tuple[str, ...], ended: Ended) -> None:
    code, out, err = ended(*words)

    assert (code, err) == (2, "")
    assert "Usage: dtj" in out

"""The exit codes and error messages of the `dtj` command."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dtj.api.errors import NotFound
from dtj.cli import jobs
from dtj.cli.commands import COMMANDS, load
from dtj.cli.main import main

Ended = Callable[..., tuple[object, str]]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ended:
    """Call the console script; gives its exit code and what it wrote to standard error."""

    def call(*words: str, program: str = "/usr/bin/dtj") -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", [program, *words])
        with pytest.raises(SystemExit) as exit_:
            main()
        return exit_.value.code, capsys.readouterr().err

    return call


def test_wrong_use_is_told_in_one_line_with_the_way_to_help(ended: Ended) -> None:
    assert ended("list", "--bogus") == (
        2,
        "dtj: No such option: --bogus\n     `dtj list --help` shows how to use it\n",
    )
    assert ended("nosuch")[0] == 2
    assert ended("wait", "x", "--timeout", "soon")[0] == 2


def test_every_command_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs/cli.md").read_text()
    names = [name for name in COMMANDS if name != "artifacts"]
    names += [f"artifacts {name}" for name in load("artifacts").commands]
    assert len(names) > 15
    assert [name for name in names if f"`{name} " not in page and f"`{name}`" not in page] == []


def test_kubectl_users_are_told_what_they_typed(ended: Ended) -> None:
    assert "`kubectl dtj list --help`" in ended("list", "--bogus", program="/usr/bin/kubectl-dtj")[1]


def test_a_failure_has_its_own_code_and_remedy(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object) -> None:
        raise NotFound("there is no [such] job", "dtj list")

    monkeypatch.setattr(jobs, "connect", nothing)
    assert ended("suspend", "mnist") == (3, "dtj: there is no [such] job\n     dtj list\n")


def test_a_fault_of_dtj_itself_is_told_as_such(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DTJ_DEBUG", raising=False)
    monkeypatch.setattr(jobs, "connect", lambda *_: 1 / 0)
    code, told = ended("suspend", "mnist")
    assert code == 70
    assert told.startswith("dtj: an error in dtj itself: ZeroDivisionError")
    assert "Traceback" not in told


def test_an_interrupted_command_ends_with_130(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs, "connect", interrupt)
    assert ended("suspend", "mnist") == (130, "")

"""`dtj data`: the programs that the commands start, and their exit codes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from types import SimpleNamespace

import pytest

from dtj.api.errors import DtjError
from tests.unit.support.fake_client import call

Started = list[list[str]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """The commands that were started. Each ends with 65."""
    commands: Started = []

    def run(command: list[str], *, check: bool) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(returncode=65)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_the_program_gets_what_was_given_and_its_exit_code_is_the_commands(started: Started) -> None:
    assert call("data", "check", "s3://datasets/set", "--processes", "3").exit_code == 65
    words = ("--size=32", "--classes=a, b", "--skip-corrupt")
    assert call("data", "stage", "-odd", "s3://b/set").exit_code == 2, "an unknown option"
    assert call("data", "stage", "folder", "s3://datasets/set", *words).exit_code == 65
    python = [sys.executable, "-m"]
    assert started == [
        [*python, "dtj_trainer.data.check", "--processes=3", "--", "s3://datasets/set"],
        [
            *(*python, "dtj_trainer.data.stage", "--shard-megabytes=128", "--seed=1", "--size=32"),
            *("--classes=a, b", "--skip-corrupt", "--", "folder", "s3://datasets/set"),
        ],
    ]


def test_it_says_what_is_not_installed(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "PIL" else find(name))
    result = call("data", "check", "folder")
    assert isinstance(result.exception, DtjError)
    assert "dtj data needs PIL" in str(result.exception)
    assert not started

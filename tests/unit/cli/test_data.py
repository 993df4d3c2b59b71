"""`dtj data`: the programs that the commands start, and the exit codes of the commands."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dtj.api.errors import DtjError, Unreachable, Unusable
from tests.unit.support.fake_client import call

Started = list[list[str]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """The commands that were started. Each ends with 65, as a check that has printed faults."""
    commands: Started = []

    def start(command: list[str], **_: object) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(wait=lambda: 65)

    monkeypatch.setattr(subprocess, "Popen", start)
    return commands


def test_the_program_gets_what_was_given_and_faults_that_it_prints_are_code_1(started: Started) -> None:
    assert call("data", "check", "datasets/set", "--processes", "3").exit_code == 1
    words = ("--size=32", "--classes=a, b", "--skip-corrupt")
    assert call("data", "stage", "-odd", "s3://b/set").exit_code == 2, "an unknown option"
    assert call("data", "stage", "folder", "datasets/set", *words).exit_code == 1
    python = [sys.executable, "-m"]
    assert started == [
        [*python, "dtj_trainer.data.check", "--processes=3", "--", "datasets/set"],
        [
            *(*python, "dtj_trainer.data.stage", "--shard-megabytes=128", "--seed=1", "--size=32"),
            *("--classes=a, b", "--skip-corrupt", "--", "folder", "datasets/set"),
        ],
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("stage", "folder", "--size=8"), "--size changes the examples"),
        (("stage", "folder", "--classes=a"), "--classes changes the examples"),
        (("stage", "folder", "set", "--channels=2"), "--channels 2 is not possible"),
        (("check", "s3://"), "names no valid bucket"),
    ],
)
def test_what_no_program_can_use_is_refused(started: Started, words: tuple[str, ...], said: str) -> None:
    result = call("data", *words)
    assert isinstance(result.exception, Unusable)
    assert said in str(result.exception)
    assert not started


def test_no_program_starts_for_a_store_that_does_not_answer(
    started: Started, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "DTJ_HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    result = call("data", "stage", "folder", "s3://datasets/set", "--endpoint=http://127.0.0.1:9")
    assert isinstance(result.exception, Unreachable)
    assert "http://127.0.0.1:9 can't be reached" in str(result.exception)
    assert "--local for the store of `dtj run`" in (result.exception.remedy or "")
    assert not started


def test_it_says_what_is_not_installed(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "PIL" else find(name))
    result = call("data", "check", "folder")
    assert isinstance(result.exception, DtjError)
    assert "dtj data needs PIL" in str(result.exception)
    assert not started

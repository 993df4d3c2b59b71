"""`dtj export` and `dtj serve`: the programs that the commands start."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from dtj.api.errors import DtjError
from dtj_trainer.serving.serve_options import read_options
from tests.unit.support.fake_client import call


class Became(Exception):
    """The process was replaced."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were started. A program that runs to its end has exit code 65."""
    commands: list[list[str]] = []

    def run(command: list[str], *, check: bool) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(returncode=65)

    def become(program: str, command: list[str]) -> None:
        assert program == command[0]
        commands.append(command)
        raise Became

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(os, "execv", become)
    return commands


def test_the_export_gets_what_was_given_and_its_exit_code_is_the_commands(started: list[list[str]]) -> None:
    words = ("--labels", "a,b", "--range", "0,1", "--mean", "-1", "--invert")
    assert call("export", "s3://training/job", *words).exit_code == 65
    python = [sys.executable, "-m", "dtj_trainer.serving.export"]
    given = ["--labels=a,b", "--range=0,1", "--mean=-1", "--invert"]
    assert started == [[*python, *given, "--", "s3://training/job"]]


def test_the_command_has_the_defaults_of_the_program_that_it_becomes(started: list[list[str]]) -> None:
    assert isinstance(call("serve", "a=folder", "b=s3://bucket/job").exception, Became)
    assert isinstance(call("serve", "a=folder", "--pin", "--port", "0", "--threads", "3").exception, Became)
    first, second = (words[3:] for words in started)
    assert started[0][:3] == [sys.executable, "-m", "dtj_trainer.serving.serve"]
    assert read_options(first) == read_options(["a=folder", "b=s3://bucket/job"])
    assert read_options(second) == read_options(["a=folder", "--pin", "--port=0", "--threads=3"])


@pytest.mark.parametrize(("command", "lacks"), [("export", "onnx"), ("serve", "uvicorn")])
def test_it_says_what_is_not_installed(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch, command: str, lacks: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == lacks else find(name))
    result = call(command, "a=folder")
    assert isinstance(result.exception, DtjError)
    assert f"dtj {command} needs {lacks}" in str(result.exception)
    assert not started

"""A fixture of all unit tests: the commands of `dtj` are built once."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import typer


@pytest.fixture(scope="session", autouse=True)
def commands_built_once() -> Iterator[None]:
    """Build the commands of `dtj` once. typer builds all commands at each call, which takes 0.2 s."""
    with pytest.MonkeyPatch.context() as patch:
        built = functools.cache(typer.main.get_command)
        patch.setattr("typer.main.get_command", built)
        patch.setattr("typer.testing._get_command", built)
        yield

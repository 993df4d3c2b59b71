"""The methods of Client: equal to those of AsyncClient in names, signatures and docstrings."""

from __future__ import annotations

import inspect

import pytest

from dtj.client import AsyncClient, Client

METHODS = [name for name in vars(AsyncClient) if not name.startswith("_")]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_that_of_the_async_client(name: str) -> None:
    here, there = getattr(Client, name), getattr(AsyncClient, name)
    assert inspect.getdoc(here) == inspect.getdoc(there)
    assert isinstance(here, property) or inspect.signature(here) == inspect.signature(there)
    assert not inspect.iscoroutinefunction(here)

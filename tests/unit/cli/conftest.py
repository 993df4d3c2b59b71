"""A client for the commands that needs no cluster."""

from __future__ import annotations

import pytest

import dtj.client
from tests.unit.support.fake_client import FakeClient, job


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    """What the commands connect to: one job that has succeeded."""
    monkeypatch.setattr(dtj.client, "Client", FakeClient)
    FakeClient.jobs, FakeClient.calls = {"mnist": job("Succeeded")}, []
    return FakeClient

"""Names that would lead a request to another path of the API server."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from dtj.client import AsyncClient, NotFound
from tests.unit.support.http_cluster import HttpCluster
from tests.unit.support.jobs import stored

NAMES = ["", ".", "..", " ", ".\n"]


@pytest.mark.parametrize("name", NAMES)
async def test_a_name_without_a_segment_of_its_own_is_never_sent(
    server: HttpCluster, client: AsyncClient, name: str
) -> None:
    """`DELETE …/distributedtrainingjobs/` deletes every job of the namespace."""
    server.cluster.put(stored())
    for call in (client.delete, client.get, client.suspend):
        with pytest.raises(NotFound):
            await call(name)
    assert server.requests == []
    if name:
        with pytest.raises(NotFound):
            await client.delete("mnist", namespace=name)
    assert not [request for request in server.requests if request.method == "DELETE"]


@pytest.mark.parametrize("name", ["mnist/status", "%2e", "%2E%2E", "mnist?x", "mnist#x", "..\\x"])
async def test_a_name_stays_one_segment(server: HttpCluster, client: AsyncClient, name: str) -> None:
    server.cluster.put(stored())
    with pytest.raises(NotFound, match="no job"):
        await client.delete(name)
    (path,) = server.paths
    assert path.removeprefix("/apis/dtj.dev/v1alpha1/namespaces/ml/distributedtrainingjobs/") == (
        quote(name, safe="")
    )
    assert "mnist" in server.jobs

"""How the operator reaches the API server: by a proxy where the environment names one, and without a detour else."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtj.cluster.api import connect
from tests.unit.support.api_server import write_kubeconfig


@pytest.mark.parametrize(
    ("proxy", "direct", "asked"),
    [
        (None, None, False),
        ("http://proxy:3128", None, True),
        ("http://proxy:3128", "api.example", False),
        ("http://proxy:3128", "other.example", True),
    ],
)
async def test_the_environment_is_asked_at_each_request_only_where_it_names_a_proxy(
    proxy: str | None, direct: str | None, asked: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in (("https_proxy", proxy), ("no_proxy", direct)):
        for spelt in (name, name.upper()):
            monkeypatch.delenv(spelt, raising=False)
        if value:
            monkeypatch.setenv(name, value)
    monkeypatch.delenv("all_proxy", raising=False)
    write_kubeconfig(tmp_path / "config", "https://api.example:6443")
    monkeypatch.setattr(
        "kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config")
    )

    api = await connect()

    session = api._api.rest_client._create_pool_manager()
    assert session.trust_env is asked
    await session.close()
    await api.close()

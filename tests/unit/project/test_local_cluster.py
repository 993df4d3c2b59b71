"""The local cluster takes the programs of other versions of Kubernetes, and other addresses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.local import cgroups, control_plane, kubernetes_build, node
from tests.cluster.local.layout import NODES
from tests.cluster.progress import ClusterError

ROOT = Path(__file__).parents[3]


def programs(folder: Path, version: str) -> Path:
    """The five programs, of which the API server says that version."""
    for name in kubernetes_build.PROGRAMS:
        (folder / name).write_text(f"#!/bin/sh\necho Kubernetes {version}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("version", "ports", "runtime_by_flags", "fields"),
    [
        ("v1.20.2", True, True, {"featureGates"}),
        ("v1.23.17", True, True, set()),
        ("v1.26.1-rc.0+k3s1", False, True, set()),
        ("v1.27.0", False, False, {"containerRuntimeEndpoint", "imageServiceEndpoint"}),
        ("v1.36.2", False, False, {"containerRuntimeEndpoint", "imageServiceEndpoint", "failCgroupV1"}),
    ],
)
def test_each_version_gets_the_flags_and_fields_that_it_knows(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    ports: bool,
    runtime_by_flags: bool,
    fields: set[str],
) -> None:
    monkeypatch.setattr(cgroups, "create", lambda _: None)
    monkeypatch.setattr("tests.cluster.local.layout.RUN", tmp_path / "run")
    one = NODES[0]
    one.directory.mkdir(parents=True)
    binaries = programs(tmp_path, version)
    kubelet = node.kubelet(one, binaries).command
    servers = [
        *control_plane.apiserver(binaries).command,
        *control_plane.controller_manager(binaries).command,
        *control_plane.scheduler(binaries).command,
    ]
    assert ("--insecure-port=0" in servers) == ports
    assert servers.count("--port=0") == (2 if ports else 0)
    assert ("--container-runtime=remote" in kubelet) == runtime_by_flags
    depends = {"containerRuntimeEndpoint", "imageServiceEndpoint", "failCgroupV1", "featureGates"}
    assert json.loads((one.directory / "kubelet.json").read_text()).keys() & depends == fields


def test_a_folder_without_the_programs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path, "v1.36.2")
    monkeypatch.setenv("DTJ_TEST_KUBERNETES", str(tmp_path))
    assert kubernetes_build.binaries() == tmp_path
    (tmp_path / "kubelet").chmod(0o644)
    (tmp_path / "kube-proxy").unlink()
    with pytest.raises(ClusterError, match="has no program kubelet, kube-proxy"):
        kubernetes_build.binaries()


def layout(prefix: str) -> subprocess.CompletedProcess[str]:
    """What a process with that prefix takes for the cluster."""
    code = (
        "from tests.cluster.local import cgroups, containerd, layout, network, paths;"
        "print(layout.NETWORK, layout.PODS, layout.API, paths.RUN, network.COMMENT, cgroups.PREFIX,"
        " *(text for one in layout.NODES for text in (one.address, one.bridge, one.link, containerd.root(one))))"
    )
    environment = {**os.environ, "DTJ_TEST_CLUSTER_PREFIX": prefix}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_a_prefix_is_a_cluster_with_addresses_and_names_of_its_own() -> None:
    usual, other = (layout(prefix).stdout.split() for prefix in ("10.200", "10.216"))
    assert usual[:6] == [
        "10.200.0.0/14", "10.201.0.0/16", "https://10.203.0.1:6443", "/var/lib/dtj-cluster", "dtj-cluster", "dtj-",
    ]  # fmt: skip
    assert other[:6] == [
        "10.216.0.0/14", "10.217.0.0/16", "https://10.219.0.1:6443", "/var/lib/dtj216-cluster", "dtj216-cluster",
        "dtj216-",
    ]  # fmt: skip
    assert not set(usual) & set(other)


@pytest.mark.parametrize("prefix", ["10.201", "192.168", "10.256", "10"])
def test_a_prefix_that_is_no_block_of_four_is_refused(prefix: str) -> None:
    assert "must be 10.N, where N is a multiple of 4 up to 252" in layout(prefix).stderr

"""Switches that stop and restart parts of the cluster under test: S3, the API server, etcd, DNS."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import kind
from tests.cluster.jobs import until
from tests.cluster.local import cluster, control_plane, dns, kubernetes_build, state
from tests.cluster.local.layout import DOMAIN
from tests.cluster.local.processes import Component, Supervisor
from tests.cluster.progress import ClusterError


@dataclass(frozen=True)
class Switch:
    """A process of the cluster's, with its data."""

    supervisor: Supervisor
    component: Component
    serves: Callable[[], bool] = lambda: True
    ends_by: signal.Signals = signal.SIGKILL

    def stop(self) -> None:
        """End its process; connections are refused from now on."""
        self.supervisor.stop(self.component.name, first=self.ends_by)

    def start(self) -> None:
        """Start it, unless it runs; returns when it serves."""
        self.supervisor.ensure(self.component)
        until(f"{self.component.name} to serve", self.serves, 60)


def store() -> Switch:
    """The object store; told to end, since what it holds is not what is tried here."""
    of_kind = is_kind()
    component = (kind.store() if of_kind else cluster.STORE).component()
    return Switch(kind.SUPERVISOR if of_kind else state.SUPERVISOR, component, ends_by=signal.SIGTERM)


def api_server() -> Switch:
    """The API server; the local cluster's only."""
    return _local(control_plane.apiserver(kubernetes_build.binaries()))


def etcd() -> Switch:
    """etcd; it serves when the API does."""
    return _local(control_plane.etcd(), control_plane.api_ready)


def name_server() -> Switch:
    """The cluster's DNS server."""
    return _local(dns.server(), lambda: dns.answers(f"kubernetes.default.svc.{DOMAIN}"))


@contextmanager
def restored(switch: Switch) -> Iterator[Switch]:
    """At the end it runs, whatever was done."""
    try:
        yield switch
    finally:
        switch.start()


def _local(component: Component, serves: Callable[[], bool] = lambda: True) -> Switch:
    if is_kind():
        raise ClusterError(f"{component.name} is stopped in the local cluster only, not in kind's")
    return Switch(state.SUPERVISOR, component, serves)


def is_kind() -> bool:
    return Path(os.environ["KUBECONFIG"]) == kind.KUBECONFIG

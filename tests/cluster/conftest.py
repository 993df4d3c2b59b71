"""Fixtures of the tests that need a cluster: KUBECONFIG and the exports of `make cluster`, nothing else."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import kind, nodes
from tests.cluster.jobs import Namespace, kubectl, until
from tests.cluster.local import cluster, state


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever needs a cluster says so when there is none, instead of failing one by one."""
    if os.environ.get("KUBECONFIG") and os.environ.get("DTJ_TEST_S3_ENDPOINT"):
        return
    for item in items:
        if item.get_closest_marker("cluster"):
            pytest.exit(
                'no cluster: eval "$(make --silent cluster)", or `make test` for all of it', returncode=4
            )


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    """A namespace for one test, deleted with all that is in it."""
    yield from _namespace()


@pytest.fixture(scope="module")
def shared_namespace() -> Iterator[Namespace]:
    """A namespace for the tests of one module."""
    yield from _namespace()


def _namespace() -> Iterator[Namespace]:
    made = Namespace(f"dtj-test-{uuid.uuid4().hex[:8]}")
    made.make()
    yield made
    # Its pods take the kubelet some seconds; the next test need not wait for them, the run does.
    made.delete(wait=False)


@pytest.fixture(scope="session", autouse=True)
def nothing_stays() -> Iterator[None]:
    """At the end no namespace of a test is left."""
    yield
    if os.environ.get("KUBECONFIG"):
        try:
            until(
                "the tests' namespaces to be gone",
                lambda: "dtj-test-" not in kubectl("get", "namespaces"),
                240,
            )
        except AssertionError as error:
            pods = kubectl("get", "pods", "--all-namespaces", "--output=wide")
            raise AssertionError(
                f"{error}; what is left:\n{pods}\n{kubectl('describe', 'namespaces')}"
            ) from None


class StoreSwitch:
    """The object store of the cluster under test, to be stopped and started again with its data."""

    def __init__(self) -> None:
        ours = Path(os.environ["KUBECONFIG"]) == kind.KUBECONFIG
        self._supervisor = kind.SUPERVISOR if ours else state.SUPERVISOR
        self._component = (kind.store() if ours else cluster.STORE).component()

    def stop(self) -> None:
        """End its process; connections are refused from now on."""
        self._supervisor.stop(self._component.name)

    def start(self) -> None:
        """Start it again; returns when it serves."""
        self._supervisor.ensure(self._component)


@pytest.fixture
def store() -> Iterator[StoreSwitch]:
    """The switch; at the end the store runs, whatever the test did."""
    switch = StoreSwitch()
    yield switch
    switch.start()


@pytest.fixture
def victim() -> Iterator[nodes.Machine]:
    """A node that the test may drain, cut off and kill; at the end it is as before."""
    with nodes.restored(nodes.machine()) as machine:
        yield machine

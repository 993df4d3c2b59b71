"""Fixtures of the cluster tests, which need only KUBECONFIG and the exports of `make cluster`."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster import nodes
from tests.cluster.jobs import Namespace
from tests.cluster.trained import Trained, train


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--real-trainings", action="store_true", help="faults that `make test` has hit built-in programs, too"
    )


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


@pytest.fixture(scope="session")
def trained() -> Iterator[Trained]:
    """The main example as it stands, trained to its end: for the tests of all modules that look at one."""
    with contextmanager(_namespace)() as namespace:
        yield train(namespace)


def _namespace() -> Iterator[Namespace]:
    made = Namespace(f"dtj-test-{uuid.uuid4().hex[:8]}")
    made.make()
    yield made
    # Its pods take the kubelet some seconds; the next test need not wait for them, the run does.
    made.delete(wait=False)


@pytest.fixture
def victim() -> Iterator[nodes.Machine]:
    """A node that the test may drain, cut off and kill; at the end it is as before."""
    with nodes.restored(nodes.machine()) as machine:
        yield machine

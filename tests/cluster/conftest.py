"""Fixtures of the tests that need a cluster: KUBECONFIG and the exports of `make cluster`, nothing else."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from tests.cluster.jobs import Namespace


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
    made = Namespace(f"dtj-test-{uuid.uuid4().hex[:8]}")
    made.make()
    yield made
    made.delete()


@pytest.fixture(scope="module")
def shared_namespace() -> Iterator[Namespace]:
    """A namespace for the tests of one module."""
    made = Namespace(f"dtj-test-{uuid.uuid4().hex[:8]}")
    made.make()
    yield made
    made.delete()

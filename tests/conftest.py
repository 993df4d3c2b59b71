"""Options of all tests: the order of tests, and the settings of hypothesis."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from tests.at_once import AtOnce, turn

# How long an example takes says more of the machine than of what is tested.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> AtOnce:
    """See `AtOnce`. Scopes are begun in the order of collection, not those with the most tests first."""
    config.option.loadscopereorder = False
    return AtOnce(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long."""
    items.sort(key=lambda item: turn(item.path))

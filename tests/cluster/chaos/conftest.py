"""The trials of a chaos run, and the table at the end of the run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.chaos.report import Row, table
from tests.cluster.chaos.trial import SEED, Trials

ROWS = pytest.StashKey[list[Row]]()


@pytest.fixture(scope="session")
def trials(request: pytest.FixtureRequest) -> Iterator[Trials]:
    """Of each fault only the strategies that are to be tried; at the end all that the jobs had is gone."""
    strategies: dict[str, list[str]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("matrix"):
            wanted = item.callspec.params
            strategies.setdefault(wanted["fault"].name, []).append(wanted["strategy"])
    made = Trials(strategies, real=bool(request.config.getoption("--real-trainings")))
    request.config.stash[ROWS] = made.rows
    yield made
    made.end()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    rows = terminalreporter.config.stash.get(ROWS, [])
    if rows:
        terminalreporter.section(f"faults and what they cost, DTJ_SEED={SEED}")
        terminalreporter.write_line(table(rows))

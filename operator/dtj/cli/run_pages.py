"""Runs as HTML files to send, with the state that `dtj status` would tell."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from dtj.cli.sentences import sentence_of
from dtj.report.run import Run
from dtj.report.run_page import run_page

_NO_NAME = re.compile(r"[^\w. ()-]+", re.ASCII)
_UNKNOWN = "The state of the run is not known: there is no record of its end"


def page_of(run: Run) -> str:
    """Return the HTML page of a run."""
    told = run.state or (sentence_of(run.status) if run.status else _UNKNOWN)
    return run_page(run, told, datetime.now(UTC))


def pages_of(runs: Iterable[Run]) -> dict[str, str]:
    """Return the HTML page of each run by the name of its file."""
    return {file_name(run.name): page_of(run) for run in runs}


def file_name(name: str) -> str:
    """Return the name of the file of a run's page."""
    return f"run-{_NO_NAME.sub('-', name)[:150]}.html"

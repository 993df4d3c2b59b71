"""The job's one run at the tracking server: the stored one, that with the job's uid, or a new one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dtj_trainer.tracking.settings import TrackerSettings

VERSION = 1


class Runs(Protocol):
    """What finding a run needs of a server."""

    def experiment(self, name: str) -> str:
        """Return the id of an experiment."""

    def run_of(self, experiment: str, uid: str) -> str | None:
        """Return the oldest run with that uid."""

    def new_run(self, experiment: str, name: str, tags: Mapping[str, str]) -> str:
        """Make a run."""

    def remove_run(self, run: str) -> None:
        """Delete a run."""

    def params_of(self, run: str) -> Mapping[str, str] | None:
        """Return the parameters of a run that exists."""


@dataclass(frozen=True)
class Run:
    """A run, and the parameters that it has already."""

    id: str
    params: Mapping[str, str]


def find_run(server: Runs, settings: TrackerSettings, stored: str | None) -> Run:
    """Find the job's run, or make it. stored: its id in tracking.json. Raises Unavailable and Refused."""
    for known in filter(None, (stored, settings.run_id)):
        params = server.params_of(known)
        if params is not None:
            return Run(known, params)
    experiment = settings.experiment_id or server.experiment(settings.experiment)
    found = server.run_of(experiment, settings.uid)
    if found is None:
        made = server.new_run(experiment, settings.job, settings.tags)
        # A server that hung may have taken an earlier request late: the oldest run stays.
        found = server.run_of(experiment, settings.uid) or made
        if found != made:
            server.remove_run(made)
    return Run(found, server.params_of(found) or {})


def stored_run(document: Mapping[str, Any], uri: str) -> tuple[str | None, dict[str, int]]:
    """Return the run's id and what was sent of each file, from tracking.json; neither for another server's."""
    if document.get("version") != VERSION or document.get("uri") != uri:
        return None, {}
    run, sent = document.get("runId"), document.get("sent")
    if not isinstance(run, str) or not isinstance(sent, dict):
        return None, {}
    return run, {name: at for name, at in sent.items() if isinstance(at, int) and at >= 0}


def document(uri: str, run: str, sent: Mapping[str, int]) -> dict[str, object]:
    """Return tracking.json. sent: bytes of each file that the server has."""
    return {"version": VERSION, "uri": uri, "runId": run, "sent": dict(sent)}

"""The sources of the page for the jobs of `dtj run` on this machine. `__main__` imports it only for `--local`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING

from dtj.api.errors import NotFound
from dtj.client import Artifacts, History
from dtj.local.object_store import OpenStore, open_store
from dtj.local.runs import Run, Runs
from dtj.ui.sources import SourceKind, place_in
from dtj.views.local_place import LocalPlace, local_jobs

if TYPE_CHECKING:
    from pathlib import Path

    from dtj.client import DistributedTrainingJob, PastJob
    from dtj.client.history_query import HistoryQuery
    from dtj.views.places import Place


class MachineSources:
    """Implements `dtj.ui.sources.JobSources`.

    The present jobs are the last runs of their names. The jobs of the past are the earlier runs, which left their
    artifacts in the embedded store. The store is started for the first job whose artifacts are asked for, and runs
    until `close`.
    """

    kind = SourceKind.MACHINE
    context = None
    history = None
    client = None

    def __init__(self, home: Path, namespace: str | None) -> None:
        """Store the places. home: the folder of dtj on this machine. namespace: None lists all namespaces."""
        self.namespace = namespace
        self._home = home
        self._kept: OpenStore | None = None
        self._turn = threading.Lock()

    def close(self) -> None:
        """Release the embedded store."""
        with self._turn:
            if self._kept:
                self._kept.close()
            self._kept = None

    def present(self, *, all_namespaces: bool) -> Sequence[DistributedTrainingJob]:
        """See `JobSources.present`."""
        return local_jobs(self._home, None if all_namespaces else self.namespace)

    def past(self, query: HistoryQuery, limit: int) -> Sequence[PastJob]:
        """See `JobSources.past`."""
        present = local_jobs(self._home, None)
        with self._histories() as histories:
            found = [
                job for history in histories for job in history.jobs(query, limit=limit, present=present)
            ]
        found.sort(key=lambda job: job.created, reverse=True)
        return [job for job in found[:limit] if job.present is None]

    def past_options(self, limit: int) -> dict[str, dict[str, str]]:
        """See `JobSources.past_options`."""
        options: dict[str, dict[str, str]] = {}
        with self._histories() as histories:
            for history in histories:
                options |= history.options(islice(history.entries(), limit))
        return options

    def find(self, namespace: str, name: str, uid: str = "") -> Place:
        """See `JobSources.find`. Raises Unusable for an invalid name, which is also the name of a folder."""
        run = Runs(self._home).run(name, namespace)
        try:
            if uid in ("", run.manifest["metadata"]["uid"]):
                return _KeptPlace(run, self._home, self._keep)
            why = NotFound(f"no run {name} of namespace {namespace} on this machine has uid {uid}")
        except NotFound as error:
            why = error
        with self._histories() as histories:
            for history in histories:
                with suppress(NotFound):
                    return place_in(history, namespace, name, uid)
        raise why

    def words(self, namespace: str | None) -> list[str]:
        """See `JobSources.words`."""
        return [*(["-n", namespace] if namespace else []), "--local"]

    @contextmanager
    def _histories(self) -> Iterator[list[History]]:
        """Yield the histories in the embedded store: one for each `artifacts.uri` of the runs."""
        uris = {uri for run in Runs(self._home).list() if (uri := _embedded_uri(run))}
        if not uris:
            yield []
            return
        with open_store(self._home, []) as store:
            self._keep()
            # Keep no cache of the history on the disk: the store has another port at each start, and the cache is by
            # URL.
            yield [History(uri, store.environment, keep=False) for uri in sorted(uris)]

    def _keep(self) -> None:
        with self._turn:
            if self._kept is None:
                self._kept = open_store(self._home, [])


class _KeptPlace(LocalPlace):
    """A run whose embedded store keeps running after a read of artifacts, so that the next request is fast."""

    def __init__(self, run: Run, home: Path, keep: Callable[[], None]) -> None:
        super().__init__(run, home)
        self._keep = keep

    @contextmanager
    def artifacts(self, endpoint: str | None = None) -> Iterator[Artifacts]:
        """See `Place.artifacts`."""
        with super().artifacts(endpoint) as found:
            if self._run.embedded_store:
                self._keep()
            yield found


def _embedded_uri(run: Run) -> str | None:
    """Return the `artifacts.uri` of a run that has its artifacts in the embedded store."""
    try:
        artifacts = run.job.spec.artifacts
        return artifacts.uri.rstrip("/") if artifacts and run.embedded_store else None
    except NotFound:
        return None  # The files are missing, because a new run with the same name is about to begin.

"""Routes that read jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query

from dtj.api.errors import NotFound
from dtj.api.strategies import RULES
from dtj.cli.bucket_place import BucketPlace
from dtj.cli.job_text import Answers, job_text
from dtj.client import LogQuery
from dtj.client.history_query import HistoryQuery
from dtj.ui.answers import About, JobRow, JobView, LogAnswer, Written
from dtj.ui.rows import again_of, past_row, row_of, view_of
from dtj_trainer.contract.distribution import version

if TYPE_CHECKING:
    from dtj.ui.sources import Sources

_MOST_LINES = 5000
_MOST_BYTES = 8 << 20
"""Of the end of each log in the bucket."""
_LONGEST_LINE = 4000
"""Characters of a line. A program may write a gigabyte without a new line."""
_MOST_PAST = 1000


def router(sources: Sources) -> APIRouter:
    """Return the routes. Each runs in a thread, for the client blocks."""
    routes = APIRouter(tags=["Jobs"])

    @routes.get("/about")
    def about() -> About:
        """Return where the jobs are."""
        return About(
            version=version(),
            place=sources.kind,
            namespace=sources.namespace,
            context=sources.context,
            history=sources.history,
            changes=sources.client is not None,
            strategies=[*RULES],
        )

    @routes.get("/templates/{strategy}")
    def template(strategy: str) -> Written:
        """Return the job file that `dtj new` writes for a strategy."""
        if strategy not in RULES:
            raise NotFound(f"there is no strategy {strategy}: {', '.join(RULES)} are")
        return Written(text=job_text(Answers(strategy=strategy)))

    @routes.get("/jobs")
    def jobs(*, all_namespaces: bool = False) -> list[JobRow]:
        """List the jobs of the namespace, or of all namespaces; the newest first."""
        rows = map(row_of, sources.present(all_namespaces=all_namespaces))
        return sorted(rows, key=lambda row: row.created or "", reverse=True)

    @routes.get("/past")
    def past(limit: Annotated[int, Query(ge=1, le=_MOST_PAST)] = 100) -> list[JobRow]:
        """List the newest jobs of the history that are not in `jobs`. 422: no history is known."""
        return [past_row(job) for job in sources.past(HistoryQuery(), limit)]

    @routes.get("/jobs/{namespace}/{name}")
    def job(namespace: str, name: str, uid: str = "") -> JobView:
        """Return all about a job but its curves, logs and artifacts.

        uid: the job of this uid, which the cluster may no longer have.
        """
        place = sources.find(namespace, name, uid)
        return view_of(place, sources.words, changes=sources.client is not None)

    @routes.get("/jobs/{namespace}/{name}/again")
    def again(namespace: str, name: str, uid: str = "", *, resume: bool = False) -> Written:
        """Return a job file for another run. resume: whether to begin with the newest checkpoint of the job."""
        place = sources.find(namespace, name, uid)
        return Written(text=again_of(place.job(), resume=resume, past=isinstance(place, BucketPlace)))

    @routes.get("/jobs/{namespace}/{name}/logs")
    def logs(
        namespace: str,
        name: str,
        uid: str = "",
        rank: int | None = None,
        attempt: int | None = None,
        search: str = "",
    ) -> LogAnswer:
        """Return the last lines of a job's output, of one rank or of all.

        search: only lines with this text, in upper or lower case.
        """
        query = LogQuery(rank=rank, attempt=attempt, tail=_MOST_LINES, tail_bytes=_MOST_BYTES)
        wanted = search.casefold()
        lines, names, cut = [], set(), False
        for line in sources.find(namespace, name, uid).logs(query):
            names.add(line.source)
            if wanted in line.text.casefold():
                lines.append(
                    (line.source, line.text[:_LONGEST_LINE], line.time.isoformat() if line.time else None)
                )
            if len(lines) > 2 * _MOST_LINES:
                del lines[:_MOST_LINES]
                cut = True
        return LogAnswer(
            sources=sorted(names), lines=lines[-_MOST_LINES:], cut=cut or len(lines) > _MOST_LINES
        )

    return routes

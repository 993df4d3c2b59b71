"""Routes that read, create and change jobs.

`rows` makes the answers. The routes of a page without a cluster are those of `read_routes` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Body, Query

from dtj.api.errors import NotFound, Unusable
from dtj.api.job_file import FaultyFile, JobFile, read_job_file, read_one_job
from dtj.api.masking import MASK
from dtj.api.strategies import RULES
from dtj.client import DistributedTrainingJob, LogQuery
from dtj.client.history_query import HistoryQuery
from dtj.plan.job import plan_job
from dtj.ui.answers import About, Done, FaultRow, JobFileAnswer, JobRow, JobView, LogAnswer, ValidationAnswer
from dtj.ui.rows import again_of, past_row, row_of, view_of
from dtj.views.bucket_place import BucketPlace
from dtj.views.new_job_file import Answers, job_text
from dtj.views.sentences import resuming, scaled, suspending
from dtj_trainer.contract.distribution import version

if TYPE_CHECKING:
    from dtj.client import Client
    from dtj.ui.sources import JobSources


_MOST_LINES = 5000
_MOST_BYTES = 8 << 20
"""The number of bytes that are read at the end of each log in the bucket."""
_LONGEST_LINE = 4000
"""The number of characters of a line. A program may write a gigabyte without a line end."""
_MOST_PAST = 1000


def read_routes(sources: JobSources) -> APIRouter:
    """Return the routes that read jobs. Each one runs in a thread, because the client blocks."""
    routes = APIRouter(tags=["Jobs"])

    @routes.get("/about")
    def about() -> About:
        """Return the source of the jobs, and the version of dtj."""
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
    def template(strategy: str) -> JobFileAnswer:
        """Return the job file that `dtj new` writes for a strategy."""
        if strategy not in RULES:
            raise NotFound(f"there is no strategy {strategy}; the strategies are {', '.join(RULES)}")
        return JobFileAnswer(text=job_text(Answers(strategy=strategy)))

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
        """Return a job, without its curves, logs and artifacts.

        uid: the uid of the job, which the cluster may no longer have.
        """
        place = sources.find(namespace, name, uid)
        return view_of(place, sources.words, changes=sources.client is not None)

    @routes.get("/jobs/{namespace}/{name}/again")
    def again(namespace: str, name: str, uid: str = "", *, resume: bool = False) -> JobFileAnswer:
        """Return a job file for another run. resume: whether to begin with the newest checkpoint of the job."""
        place = sources.find(namespace, name, uid)
        return JobFileAnswer(text=again_of(place.job(), resume=resume, past=isinstance(place, BucketPlace)))

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


_FILE = "job.yaml"
_SCALE_SECONDS = 600.0
Uid = Annotated[str | None, Query(description="Refuse a job of this name with another uid.")]
Text = Annotated[str, Body(embed=True, max_length=1 << 20, description="A job file.")]


def change_routes(client: Client) -> APIRouter:
    """Return the routes that create and change jobs. Each one runs in a thread, because the client blocks."""
    routes = APIRouter(tags=["Actions"])

    @routes.post("/validate")
    def validate(text: Text) -> ValidationAnswer:
        """Return each fault of a job file with its line, as `dtj validate` does."""
        try:
            file = read_job_file(text, _FILE)
        except Unusable as error:
            return ValidationAnswer(
                faults=[FaultRow(line=1, field="", message=error.message)], sentence=error.message
            )
        faults = [FaultRow(line=f.line, field=f.field, message=f.message) for f in file.faults]
        return ValidationAnswer(faults=faults + _masks(text), sentence="" if faults else _summary(file))

    @routes.post("/jobs", status_code=201)
    def create(text: Text) -> JobRow:
        """Create the job of a job file. The answer to a file with faults names the first faults."""
        try:
            manifest, _ = read_one_job(text, _FILE)
        except FaultyFile as error:
            raise Unusable(error.message) from None
        if masks := _masks(text):
            raise Unusable(f"line {masks[0].line}: {masks[0].message}")
        return row_of(client.submit(DistributedTrainingJob.from_manifest(manifest)))

    @routes.post("/jobs/{namespace}/{name}/suspend")
    def suspend(namespace: str, name: str, uid: Uid = None) -> Done:
        """Suspend a job. Its pods end as soon as their checkpoint is in the bucket."""
        client.suspend(name, namespace=namespace, uid=uid)
        return Done(message=suspending(name))

    @routes.post("/jobs/{namespace}/{name}/resume")
    def resume(namespace: str, name: str, uid: Uid = None) -> Done:
        """Continue a suspended job from its newest checkpoint."""
        client.resume(name, namespace=namespace, uid=uid)
        return Done(message=resuming(name))

    @routes.post("/jobs/{namespace}/{name}/scale")
    def scale(
        namespace: str, name: str, replicas: Annotated[dict[str, int], Body(embed=True)], uid: Uid = None
    ) -> Done:
        """Change the number of replicas. A running job is suspended, and continues with the new number."""
        client.scale(name, replicas, timeout=_SCALE_SECONDS, namespace=namespace, uid=uid)
        return Done(message=scaled(name, replicas))

    @routes.delete("/jobs/{namespace}/{name}")
    def delete(namespace: str, name: str, uid: Uid = None) -> Done:
        """Delete a job with its pods. Its artifacts in the bucket stay."""
        client.delete(name, namespace=namespace, uid=uid)
        return Done(message=f"{name} is being deleted; its artifacts stay in the bucket")

    return routes


def _summary(file: JobFile) -> str:
    jobs: list[Any] = [entry.job for entry in file.jobs if entry.job is not None]
    counts = [len(plan_job(job).shape.replicas) for job in jobs]
    return "; ".join(
        f"{job.name} is valid: {job.spec.strategy} with {count} pod{'s' if count != 1 else ''}"
        for job, count in zip(jobs, counts, strict=True)
    )


def _masks(text: str) -> list[FaultRow]:
    """Return a fault for each line with a masked value, which the page shows in place of a secret."""
    return [
        FaultRow(
            line=line, field="value", message="the page hides this value: write the value, or use valueFrom"
        )
        for line, content in enumerate(text.splitlines(), 1)
        if MASK in content
    ]

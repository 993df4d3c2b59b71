"""Routes that create and change jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Body, Query

from dtj.api.errors import Unusable
from dtj.api.job_file import FaultyFile, JobFile, read_job_file, read_one_job
from dtj.api.masking import MASK
from dtj.client import DistributedTrainingJob
from dtj.plan.job import plan_job
from dtj.ui.answers import Checked, Done, FaultRow, JobRow
from dtj.ui.rows import row_of

if TYPE_CHECKING:
    from dtj.client import Client

_FILE = "job.yaml"
_SCALE_SECONDS = 600.0
Uid = Annotated[str | None, Query(description="Refuse a job of this name with another uid.")]
Text = Annotated[str, Body(embed=True, max_length=1 << 20, description="A job file.")]


def router(client: Client) -> APIRouter:
    """Return the routes. Each runs in a thread, for the client blocks."""
    routes = APIRouter(tags=["Actions"])

    @routes.post("/validate")
    def validate(text: Text) -> Checked:
        """Return every fault of a job file with its line, as `dtj validate` does."""
        try:
            file = read_job_file(text, _FILE)
        except Unusable as error:
            return Checked(faults=[FaultRow(line=1, field="", message=error.message)], sentence=error.message)
        faults = [FaultRow(line=f.line, field=f.field, message=f.message) for f in file.faults]
        return Checked(faults=faults + _masks(text), sentence="" if faults else _summary(file))

    @routes.post("/jobs", status_code=201)
    def create(text: Text) -> JobRow:
        """Create the job of a job file. The answer to a file with faults has the first lines of them."""
        try:
            manifest, _ = read_one_job(text, _FILE)
        except FaultyFile as error:
            raise Unusable(error.message) from None
        if masks := _masks(text):
            raise Unusable(f"line {masks[0].line}: {masks[0].message}")
        return row_of(client.submit(DistributedTrainingJob.from_manifest(manifest)))

    @routes.post("/jobs/{namespace}/{name}/suspend")
    def suspend(namespace: str, name: str, uid: Uid = None) -> Done:
        """End a job's pods as soon as their checkpoint is in the bucket."""
        client.suspend(name, namespace=namespace, uid=uid)
        return Done(message=f"{name} is being suspended: its pods save a checkpoint and end")

    @routes.post("/jobs/{namespace}/{name}/resume")
    def resume(namespace: str, name: str, uid: Uid = None) -> Done:
        """Continue a suspended job from its newest checkpoint."""
        client.resume(name, namespace=namespace, uid=uid)
        return Done(message=f"{name} is being resumed")

    @routes.post("/jobs/{namespace}/{name}/scale")
    def scale(
        namespace: str, name: str, replicas: Annotated[dict[str, int], Body(embed=True)], uid: Uid = None
    ) -> Done:
        """Change the number of replicas. A running job is suspended, and continues with the new number."""
        client.scale(name, replicas, timeout=_SCALE_SECONDS, namespace=namespace, uid=uid)
        numbers = ", ".join(f"{role}={number}" for role, number in replicas.items())
        return Done(message=f"{name} now has {numbers}")

    @routes.delete("/jobs/{namespace}/{name}")
    def delete(namespace: str, name: str, uid: Uid = None) -> Done:
        """Delete a job with its pods. Its artifacts in the bucket stay."""
        client.delete(name, namespace=namespace, uid=uid)
        return Done(message=f"{name} is being deleted; its artifacts stay in the bucket")

    return routes


def _summary(file: JobFile) -> str:
    jobs: list[Any] = [entry.job for entry in file.jobs if entry.job is not None]
    counts = [len(plan_job(job).pods) for job in jobs]
    return "; ".join(
        f"{job.name} is valid: {job.spec.strategy} with {count} pod{'s' if count != 1 else ''}"
        for job, count in zip(jobs, counts, strict=True)
    )


def _masks(text: str) -> list[FaultRow]:
    """Return the lines on which a value is still hidden, as the page shows it of a job of the cluster."""
    return [
        FaultRow(line=line, field="value", message="the value is hidden here: write it, or use valueFrom")
        for line, content in enumerate(text.splitlines(), 1)
        if MASK in content
    ]

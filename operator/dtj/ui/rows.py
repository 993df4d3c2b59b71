"""Makes the answers of the API about jobs. Only `view_of` sends requests, through the place of a job.

`dtj.views` has the sentences. The routes are in `jobs`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from dtj.api.masking import masked_job, options_of
from dtj.api.yaml_text import dump
from dtj.client import DistributedTrainingJob, JobEvent, PastJob, Resume
from dtj.client.past_job import written
from dtj.status.state import shown_state
from dtj.ui.answers import EventRow, JobRow, JobView, PodRow, ShellCommand
from dtj.views.bucket_place import BucketPlace
from dtj.views.places import Place
from dtj.views.replicas import code_of_job, ranks_of, replica_state
from dtj.views.sentences import sentence_of
from dtj_trainer import contract

_MOST_PODS = 200
_MOST_EVENTS = 200
_NO_END = "Unknown"


def row_of(job: DistributedTrainingJob) -> JobRow:
    """Return a job as a row of the list."""
    status, worker = job.status, job.spec.replica_specs.worker
    deleting = job.metadata.deletion_timestamp is not None
    state, reason = shown_state(status)
    return JobRow(
        namespace=job.namespace,
        name=job.name,
        uid=job.uid,
        phase="Deleting" if deleting else status.phase.value if status.phase else "New",
        state="Deleting" if deleting else state or "New",
        reason=None if deleting else reason,
        gpus=status.gpus,
        sentence="The job is being deleted" if deleting else sentence_of(status),
        strategy=job.spec.strategy,
        workers=worker.replicas if worker else None,
        attempt=status.attempt,
        restarts=status.restarts.of_training,
        created=job.metadata.creation_timestamp,
        ended=status.completion_time,
        suspended=bool(job.spec.run_policy.suspend),
        arguments=options_of([*(job.spec.command or []), *(job.spec.args or [])]),
        progress=status.progress,
        past=False,
    )


def past_row(past: PastJob) -> JobRow:
    """Return a job that the cluster no longer has as a row of the list."""
    status = past.status
    state, reason = shown_state(status)
    return JobRow(
        namespace=past.namespace,
        name=past.name,
        uid=past.uid,
        phase=past.phase.value if past.phase else _NO_END,
        state=state or _NO_END,
        reason=past.state or reason,
        gpus=status.gpus,
        sentence=past.state or sentence_of(status),
        strategy=past.strategy,
        workers=past.workers,
        attempt=status.attempt,
        restarts=status.restarts.of_training,
        created=written(past.created),
        ended=written(past.ended) if past.ended else None,
        suspended=False,
        arguments={},
        progress=status.progress,
        past=True,
    )


def view_of(place: Place, words: Callable[[str | None], list[str]], *, changes: bool) -> JobView:
    """Return a job, without its curves, logs and artifacts. Raises DtjError.

    words: see `dtj.ui.sources.JobSources.words`. changes: whether the page can change the job.
    """
    job, pods, events = place.job(), place.pods(), place.events()
    past = place.past if isinstance(place, BucketPlace) else None
    row = row_of(job)
    if past:
        kept = past_row(past)
        shown = {"phase": kept.phase, "state": kept.state, "reason": kept.reason}
        row = row.model_copy(
            update={**shown, "sentence": past.state or row.sentence, "uid": past.uid, "past": True}
        )
    manifest = job.to_manifest()
    status = manifest.get("status", {})
    file = masked_job(manifest)
    return JobView(
        row=row,
        note=place.note(),
        failure=job.status.failure,
        conditions=status.get("conditions", []),
        pods=[
            PodRow(
                name=pod.name,
                role=pod.role,
                index=pod.index,
                ranks=ranks_of(job, pod),
                node=pod.node,
                state=replica_state(pod).words,
                attempt=pod.attempt,
            )
            for pod in pods[:_MOST_PODS]
        ],
        more_pods=max(0, len(pods) - _MOST_PODS),
        events=[event_row(event) for event in events[-_MOST_EVENTS:]],
        artifacts=status.get("artifacts"),
        tensorboard=status.get("tensorboard"),
        code=code_of_job(job),
        spec=file["spec"],
        yaml=dump(file),
        commands=commands_of(job, past.uri if past else None, words, changes=changes),
    )


def event_row(event: JobEvent) -> EventRow:
    """Return an event as a row."""
    return EventRow(
        time=event.time.isoformat() if event.time else None,
        type=event.type,
        reason=event.reason,
        message=event.message,
        count=event.count,
        object=event.object,
    )


def again_of(job: DistributedTrainingJob, *, resume: bool, past: bool = False) -> str:
    """Return a job file for another run of a job: under a new name, and not suspended.

    resume: whether the new run begins with the newest checkpoint of the job. past: whether the job is gone, and its
    ConfigMap with it. The new run then uses the archives in the bucket.
    """
    manifest = masked_job(job.to_manifest())
    manifest["metadata"]["name"] = _next_name(job.name)
    if run_policy := manifest["spec"].get("runPolicy"):
        run_policy.pop("suspend", None)
    code = manifest["spec"].get("code") or {}
    for archive, key in ((code, contract.CODE_FILE), (code.get("packages"), contract.PACKAGES_FILE)):
        if past and archive and archive.pop("configMap", None):
            archive["uri"] = f"{job.artifacts_uri}/{key}"
    if artifacts := manifest["spec"].get("artifacts"):
        for field in ("resume", "resumeUri"):
            artifacts.pop(field, None)
        if resume:
            artifacts |= {"resume": Resume.FROM_URI.value, "resumeUri": job.artifacts_uri}
    return dump(manifest)


def _next_name(name: str) -> str:
    numbered = re.fullmatch(r"(.+)-(\d{1,6})", name)
    return f"{numbered[1]}-{int(numbered[2]) + 1}" if numbered else f"{name}-2"


def commands_of(
    job: DistributedTrainingJob, past: str | None, words: Callable[[str | None], list[str]], *, changes: bool
) -> list[ShellCommand]:
    """Return the commands of a shell that do what the buttons do. past: the prefix of a job that is gone."""
    where = words(None if past else job.namespace)
    name = past or job.name

    def line(action: str, *command: str) -> ShellCommand:
        return ShellCommand(action=action, command=shlex.join(["dtj", *command, *where]))

    lines = [line("logs", "logs", name), line("status", "status", name)]
    lines.append(line("page", "report", name, "--format", "page"))
    if job.spec.artifacts or past:
        lines.append(line("artifacts", "artifacts", "ls", name))
    if job.status.artifacts and job.status.artifacts.model:
        lines.append(line("serve", "serve", name))
    if past or not changes:
        return lines
    lines.append(line("delete", "delete", name))
    if not job.status.finished:
        change = "resume" if job.spec.run_policy.suspend else "suspend"
        lines += [line(change, change, name), line("scale", "scale", name, "--workers", "N")]
    return lines

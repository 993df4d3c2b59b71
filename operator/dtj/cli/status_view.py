"""The view of `dtj status`. All functions are pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dtj.api.status import Condition, ConditionStatus, ConditionType, Failure, JobStatus
from dtj.cli.job_table import age, event_table, state_text
from dtj.cli.terminal import columns
from dtj.status.times import seconds_since
from dtj.views.figures import UNKNOWN, brief, figures
from dtj.views.replicas import code_of_job, ranks_of, replica_state

if TYPE_CHECKING:
    from dtj.client import DistributedTrainingJob, JobEvent, Pod

_BAR_WIDTH = 40
_MOST_LOG_LINES = 10
_MEASURES = ("rate", "loss", "accuracy", "source", "applied twice")
"""The figures that the program measures."""
_DESIRED_CONDITIONS = {ConditionType.SUCCEEDED, ConditionType.RUNNING, ConditionType.CREATED}


def status_view(
    job: DistributedTrainingJob,
    pods: Sequence[Pod],
    events: Sequence[JobEvent],
    now: datetime,
    *,
    note: str | None = None,
    most_replicas: int | None = None,
    most_events: int = 5,
) -> RenderableType:
    """Return the whole view of a job.

    note: a sentence at the top. most_replicas: the maximum number of lines for replicas; None means no limit.
    """
    parts: list[RenderableType] = [_headline(job, now)]
    if note:
        parts.append(Text(note, "yellow"))
    parts += [
        Padding(part, (1, 0, 0, 0)) for part in _parts(job, pods, events, now, most_replicas, most_events)
    ]
    return Group(*parts)


def one_line(job: DistributedTrainingJob) -> str:
    """Return the state of a job in one line, for a log."""
    words = [job.name, state_text(job).plain, f"attempt {job.status.attempt}"]
    return ", ".join(words + _known(job.status, "step", *_MEASURES))


def _parts(
    job: DistributedTrainingJob,
    pods: Sequence[Pod],
    events: Sequence[JobEvent],
    now: datetime,
    most_replicas: int | None,
    most_events: int,
) -> Iterator[RenderableType]:
    status = job.status
    if status.progress is not None:
        yield _progress(status)
    yield _replicas(job, pods, most_replicas)
    if status.conditions:
        yield _conditions(status.conditions, now)
    if facts := list(_facts(job, now)):
        yield _pairs(facts)
    # The failure explains the last restart of a running job. A succeeded job needs no explanation.
    if status.failure is not None and not status.holds(ConditionType.SUCCEEDED):
        yield Group(*failure_lines(status.failure))
    if events and most_events:
        yield event_table(events[-most_events:], now)


def _headline(job: DistributedTrainingJob, now: datetime) -> Text:
    line = Text.assemble((job.name, "bold"), f" in {job.namespace}: ", state_text(job))
    line.append(f", {job.spec.strategy}")
    if job.status.attempt > 1:
        line.append(f", attempt {job.status.attempt}")
    return line.append(f", {age(job, now)} old")


def _progress(status: JobStatus) -> RenderableType:
    progress = status.progress
    assert progress is not None
    line = Table.grid(padding=(0, 2, 0, 0))
    cells: list[RenderableType] = []
    if progress.percent is not None:
        bar = ProgressBar(total=100, completed=progress.percent, width=_BAR_WIDTH)
        cells += [bar, *(Text(percent, "bold") for percent in _known(status, "percent"))]
    line.add_row(*cells, *_known(status, "step", "epoch", "eta"))
    return Group(line, Text("   ").join(map(Text, _known(status, *_MEASURES))))


def _known(status: JobStatus, *names: str) -> list[str]:
    """Return the known figures among the names, as text."""
    known = figures(status)
    return [known[name] for name in names if name in known]


def _replicas(job: DistributedTrainingJob, pods: Sequence[Pod], most: int | None) -> Table:
    if not pods:
        return _roles(job.status)
    table = columns("REPLICA", "RANKS", "NODE", "STATE", "ATTEMPT", right=("ATTEMPT",))
    shown = pods if most is None else pods[:most]
    for pod in shown:
        table.add_row(
            f"{pod.role}-{pod.index}",
            ranks_of(job, pod),
            pod.node or UNKNOWN,
            Text(*replica_state(pod)),
            str(pod.attempt or UNKNOWN),
        )
    if len(pods) > len(shown):
        table.add_row(f"and {len(pods) - len(shown)} more")
    return table


def _roles(status: JobStatus) -> Table:
    """Return the number of replicas of each role, for a job without pods."""
    table = columns(
        "ROLE", "DESIRED", "ACTIVE", "READY", "SUCCEEDED", "FAILED",
        right=("DESIRED", "ACTIVE", "READY", "SUCCEEDED", "FAILED"),
    )  # fmt: skip
    for role, replicas in status.replica_statuses.items():
        counts = (replicas.desired, replicas.active, replicas.ready, replicas.succeeded, replicas.failed)
        table.add_row(role, *map(str, counts))
    return table


def _conditions(conditions: Sequence[Condition], now: datetime) -> Table:
    table = columns("CONDITION", "STATUS", "SINCE", "REASON", "MESSAGE")
    for condition in conditions:
        holds = condition.status is ConditionStatus.TRUE
        style = ("green" if condition.type in _DESIRED_CONDITIONS else "yellow") if holds else "dim"
        if holds and condition.type is ConditionType.FAILED:
            style = "red"
        since = brief(seconds_since(condition.last_transition_time, now))
        table.add_row(
            Text(condition.type, style), condition.status, since, condition.reason, condition.message
        )
    return table


def _facts(job: DistributedTrainingJob, now: datetime) -> Iterator[tuple[str, str]]:
    if manager := job.spec.run_policy.other_manager:
        yield "Managed by", f"{manager}: dtj's operator does not touch the job"
    if restarts := job.status.restarts.by_cause:
        yield "Restarts", restarts
    if job.status.start_time and job.status.completion_time:
        duration = seconds_since(job.status.start_time, datetime.fromisoformat(job.status.completion_time))
        yield "Took", brief(duration)
    if job.status.progress and (error := job.status.progress.export_error):
        yield "Export", f"failed: {error}"
    if code := code_of_job(job):
        yield "Code", code
    artifacts = job.status.artifacts
    if text := pod_checkpoint(job.status):
        yield "In the pod", text
    if artifacts is None:
        return
    if (newest := artifacts.checkpoint) is not None:
        when = f", {brief(seconds_since(newest.time, now))} ago" if newest.time else ""
        what = "" if newest.step is None else f"step {newest.step}"
        names = f" ({', '.join(newest.new)})" if newest.new else ""
        yield "Checkpoint", f"{what}{when}: {newest.uri}{names}".removeprefix(", ")
    if (back := job.status.resumed_from) is not None:
        yield "Went back", f"to {back.checkpoint}, for attempt {back.attempt}"
    if skipped := job.status.skipped_checkpoints:
        yield "Skipped", f"{', '.join(skipped)}: no attempt that restored them has made a step"
    if artifacts.model:
        yield "Model", artifacts.model


def pod_checkpoint(status: JobStatus) -> str | None:
    """Return a sentence about a checkpoint that is only in a pod, not yet in the bucket; None if there is none."""
    found, artifacts = status.pod_checkpoint, status.artifacts
    if found is None:
        return None
    step = "" if found.step is None else f" (step {found.step})"
    if artifacts is None:
        return f"a checkpoint{step} is only in the pod, and is lost with the pod: the job has no artifacts"
    stored = (artifacts.checkpoint.uri or "").rpartition("/")[2] if artifacts.checkpoint else ""
    number = "a checkpoint" if found.number is None else f"checkpoint {found.number}"
    in_bucket = f"the newest in the bucket is {stored}" if stored else "the bucket has none yet"
    return f"{number}{step} is complete in the pod; {in_bucket}"


def _pairs(facts: Sequence[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, value)
    return table


def failure_lines(failure: Failure) -> list[Text]:
    """Return a sentence about a failure, and below the sentence the last lines that the program printed."""
    head = f"Failure of attempt {failure.attempt}" if failure.attempt else "Failure"
    where = " on ".join(filter(None, (failure.source, failure.node)))
    sentence = ": ".join(filter(None, (head, failure.failure_class, where, failure.message)))
    lines = (failure.last_log_lines or [])[-_MOST_LOG_LINES:]
    return [Text(sentence, "red"), *(Text(f"  {line}", "dim") for line in lines)]

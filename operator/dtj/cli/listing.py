"""`dtj list`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from dtj.api.errors import Unusable
from dtj.api.status import Phase
from dtj.cli.connection import connect
from dtj.cli.job_table import job_table
from dtj.cli.options import (
    ContextOption,
    EndpointOption,
    FromOption,
    LocalOption,
    NamespaceOption,
    PastOption,
    seconds_of,
)
from dtj.cli.places import PastChoice, present_jobs, print_fault
from dtj.cli.terminal import OutputFormat, echo, errors, print_data, print_table
from dtj.client.history_query import HistoryQuery, SortBy

if TYPE_CHECKING:
    from dtj.client import DistributedTrainingJob, PastJob

app = typer.Typer()
_TOLD_FROM = 200
"""The progress is shown only while more records than this are read. Fewer records are read within a second."""
_LINE_SECONDS = 2.0


class ListFormat(StrEnum):
    """The formats of a list."""

    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    WIDE = "wide"


@app.command("list")
def list_jobs(
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="List the jobs of all namespaces.")
    ] = False,
    past: PastOption = False,
    from_: FromOption = None,
    phases: Annotated[
        list[Phase] | None,
        typer.Option("--phase", help="With --past: only jobs in this phase; may be repeated."),
    ] = None,
    since: Annotated[
        float | None,
        typer.Option(
            parser=seconds_of, metavar="DURATION", help="With --past: only jobs created within 12h, 7d, …"
        ),
    ] = None,
    sort_by: Annotated[
        SortBy, typer.Option("--sort-by", help="With --past: times and numbers sort from the largest.")
    ] = SortBy.CREATED,
    limit: Annotated[
        int, typer.Option(min=0, help="With --past: at most so many jobs; 0: all.", metavar="N")
    ] = 50,
    endpoint: EndpointOption = None,
    local: LocalOption = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    format_: Annotated[
        ListFormat | None, typer.Option("--output", "-o", help="Print JSON, YAML, names or more columns.")
    ] = None,
) -> None:
    """List jobs with their state, progress, rate and GPUs.

    STATE is the phase, or in its place what a person must know, such as Stalled; `-o wide` says why. PROGRESS is the
    share of the steps that are done. EX/S is examples per second of all ranks together, or steps with their unit if
    nobody knows how many examples a step has. GPUS counts the accelerators that the job asks for. With `--past`, the
    jobs are those of the history in the bucket, newest first, of all namespaces without `-n`.

    ```
    dtj list -A
    dtj list --local
    dtj list -o json
    dtj list --past --from s3://training/jobs
    dtj list --past --phase Failed --since 7d --sort-by ended
    ```
    """
    if past:
        if local or all_namespaces:
            raise Unusable(
                f"--past and {'--local' if local else '--all-namespaces'} exclude each other",
                "--past lists all namespaces unless -n names one",
            )
        created = datetime.now(UTC) - timedelta(seconds=since) if since is not None else None
        query = HistoryQuery(namespace, since=created, phases=phases or (), sort_by=sort_by)
        choice = PastChoice(from_, "", endpoint)
        _list_past(query, limit or None, choice, context, format_)
        return
    given = {"--from": from_, "--phase": phases, "--since": since, "--endpoint": endpoint}
    if only_past := [name for name, value in given.items() if value is not None]:
        raise Unusable(f"{only_past[0]} needs --past, which lists the history of a bucket", "give --past")
    if local:
        from dtj.local.runs import home
        from dtj.views.local_place import local_jobs

        jobs = local_jobs(home(), namespace)
    else:
        client = connect(namespace, context)
        jobs = client.list(all_namespaces=all_namespaces)
        namespace = client.namespace
    _print_jobs(jobs, format_, namespaces=all_namespaces or local)
    if not jobs and format_ is None:
        where = (
            "on this machine"
            if local
            else "on the cluster"
            if all_namespaces
            else f"in namespace {namespace}"
        )
        errors.print(f"no jobs {where}")


def _print_jobs(jobs: list[DistributedTrainingJob], format_: ListFormat | None, *, namespaces: bool) -> None:
    if format_ in (ListFormat.JSON, ListFormat.YAML):
        print_data([job.to_manifest() for job in jobs], OutputFormat(format_))
    elif format_ is ListFormat.NAME:
        for job in jobs:
            echo(job.name)
    elif jobs:
        print_table(job_table(jobs, datetime.now(UTC), namespaces=namespaces, wide=format_ is not None))


def _list_past(
    query: HistoryQuery,
    limit: int | None,
    choice: PastChoice,
    context: str | None,
    format_: ListFormat | None,
) -> None:
    from dtj.cli.job_table import as_data, past_table
    from dtj.views.histories import open_history

    present = present_jobs(query.namespace, context)
    with open_history(choice.source, present, choice.endpoint) as history, _told_progress() as tell:
        history.on_progress = tell
        # Ask for one job more than the limit, to find out whether the history has more jobs.
        jobs = history.jobs(query, limit=None if limit is None else limit + 1, present=present.jobs)
        uri = history.uri
    print_fault(present.fault)
    more = limit is not None and len(jobs) > limit
    jobs = jobs[:limit]
    if format_ in (ListFormat.JSON, ListFormat.YAML):
        print_data(as_data(jobs), OutputFormat(format_))
    elif format_ is ListFormat.NAME:
        # The URI of a job takes the place of its name in other commands, and is unique.
        for job in jobs:
            echo(job.uri)
    elif jobs:
        print_table(past_table(jobs, datetime.now(UTC), wide=format_ is not None))
    _tell_rest(jobs, uri, more=more, limit=limit)


def _tell_rest(jobs: list[PastJob], uri: str, *, more: bool, limit: int | None) -> None:
    if more:
        errors.print(f"there are more than {limit} jobs in {uri}; --limit 0 lists all")
    elif not jobs:
        errors.print(f"the history in {uri} has no job that fits the options")


@contextmanager
def _told_progress() -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows how many records are read: as a bar on a terminal, else as a line now and then."""
    if errors.is_terminal:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        names = TextColumn("reading the records of past jobs")
        with Progress(names, BarColumn(), MofNCompleteColumn(), console=errors, transient=True) as bar:
            task = bar.add_task("", total=None, visible=False)
            yield lambda done, total: bar.update(
                task, completed=done, total=total, visible=total > _TOLD_FROM
            )
        return
    told = 0.0

    def line(done: int, total: int) -> None:
        nonlocal told
        if total > _TOLD_FROM and (done == total or time.monotonic() - told > _LINE_SECONDS):
            told = time.monotonic()
            errors.print(f"read {done} of {total} records of past jobs")

    yield line

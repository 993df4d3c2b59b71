"""Commands that create, list, change and delete the jobs of a cluster."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from dtj.api.errors import Unusable
from dtj.api.status import ConditionType
from dtj.cli.connection import connect
from dtj.cli.job_table import event_table
from dtj.cli.options import (
    ContextOption,
    EndpointOption,
    JobName,
    JobNameOrUri,
    LocalOption,
    NamespaceOption,
    TimeoutOption,
    complete_name,
    with_fields,
)
from dtj.cli.places import PlaceOptions
from dtj.cli.status_view import one_line
from dtj.cli.terminal import FormatOption, echo, errors, print_data, print_table
from dtj.views.sentences import resuming, scaled, suspending

if TYPE_CHECKING:
    from dtj.client import JobEvent

app = typer.Typer()


class Goal(StrEnum):
    """What `dtj wait` waits for."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    ENDED = "ended"


@app.command()
def wait(
    name: JobName,
    goal: Annotated[
        Goal, typer.Option("--for", help="Condition to wait for; `ended`: succeeded or failed.")
    ] = Goal.SUCCEEDED,
    timeout: TimeoutOption = None,
    local: LocalOption = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Wait until a job has succeeded, or for another condition.

    Exit code 0: the job has the condition, 1: the job ended without it, or no process carries out the run of this
    machine, 5: the timeout passed.

    ```
    dtj wait fashion-mnist --timeout 1h
    dtj wait fashion-mnist --for=Running --timeout 10m
    dtj wait fashion-mnist --local
    ```
    """
    condition = None if goal is Goal.ENDED else ConditionType(goal.value)
    if local:
        from dtj.local.runs import Runs, home
        from dtj.views.local_place import wait_for_run

        echo(one_line(wait_for_run(Runs(home()).find(name, namespace), condition, timeout)))
        return
    client = connect(namespace, context)
    # `wait` retries for two minutes while the API server does not answer. Read the job first, so that the command
    # fails at once if the API server can't be reached at all.
    client.get(name)
    if condition is None:
        job = client.wait(name, timeout=timeout)
    else:
        job = client.wait_for(name, condition, timeout=timeout)
    echo(one_line(job))


@app.command()
def suspend(name: JobName, namespace: NamespaceOption = None, context: ContextOption = None) -> None:
    """End a job's pods as soon as their checkpoint is in the bucket.

    `dtj resume` continues from this checkpoint.

    ```
    dtj suspend fashion-mnist && dtj wait fashion-mnist --for=Suspended
    ```
    """
    connect(namespace, context).suspend(name)
    echo(suspending(name))


@app.command()
def resume(
    name: JobName,
    checkpoint: Annotated[
        int | None,
        typer.Option(
            help="Go back to the checkpoint of this number; by default the newest one.", metavar="NUMBER"
        ),
    ] = None,
    endpoint: EndpointOption = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Continue a suspended job from its newest checkpoint, or go back to an earlier one.

    The job starts a new attempt.

    ```
    dtj resume fashion-mnist
    dtj resume fashion-mnist --checkpoint 938
    ```
    """
    connect(namespace, context).resume(name, checkpoint=checkpoint, endpoint=endpoint)
    echo(resuming(name, checkpoint))


@app.command()
def scale(
    name: JobName,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of workers.", metavar="N")] = None,
    replicas: Annotated[
        list[str] | None, typer.Option(help="Number of replicas of any role.", metavar="ROLE=N")
    ] = None,
    timeout: TimeoutOption = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Change the number of replicas.

    A running job is suspended, and then continues from its checkpoint with the new number.

    ```
    dtj scale fashion-mnist --workers 4
    dtj scale cifar --replicas worker=3 --replicas ps=2
    ```
    """
    wanted = dict(_role_and_number(text) for text in replicas or [])
    if workers is not None and wanted.setdefault("worker", workers) != workers:
        raise Unusable(
            f"--workers {workers} and --replicas worker={wanted['worker']} differ", "give one of them"
        )
    if not wanted:
        raise Unusable("no number of replicas is given", "give --workers N or --replicas ROLE=N")
    client = connect(namespace, context)
    try:
        client.scale(name, wanted, timeout=timeout)
    except KeyboardInterrupt:
        errors.print(
            f"interrupted: if this command suspended {name}, it now resumes the job with the old number of replicas; "
            f"if the job stays suspended, run `dtj resume {name}`"
        )
        raise
    echo(scaled(name, wanted))


@app.command()
def delete(
    names: Annotated[
        list[str], typer.Argument(help="Names of the jobs.", metavar="NAME", autocompletion=complete_name)
    ],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until jobs and pods are gone.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Delete nothing; print the jobs that would be deleted.")
    ] = False,
    timeout: TimeoutOption = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Delete jobs with their pods.

    Their artifacts in the bucket stay.

    ```
    dtj delete fashion-mnist --wait
    ```
    """
    client = connect(namespace, context)
    for name in names:
        if dry_run:
            echo(f"{client.get(name).name} in namespace {client.namespace} would be deleted")
            continue
        client.delete(name, wait=wait, timeout=timeout)
        echo(f"{name} {'deleted' if wait else 'is being deleted'}")


@app.command()
@with_fields
def events(
    name: JobNameOrUri,
    where: PlaceOptions,
    *,
    format_: FormatOption = None,
) -> None:
    """Print the events of a job and its pods.

    The oldest comes first. Most clusters keep events for an hour. Of a deleted job, the command prints the changes of
    conditions that its record in the bucket has.

    ```
    dtj events fashion-mnist
    dtj events fashion-mnist --past
    ```
    """
    listed = where.find(name).events()
    if format_:
        print_data([_plain(event) for event in listed], format_)
    elif listed:
        print_table(event_table(listed, datetime.now(UTC)))
    else:
        errors.print(f"{name} has no events")


def _plain(event: JobEvent) -> dict[str, object]:
    return asdict(event) | {"time": event.time.isoformat() if event.time else None}


def _role_and_number(text: str) -> tuple[str, int]:
    role, equals, number = text.partition("=")
    if not (role and equals and number.isdecimal()):
        raise Unusable(f"--replicas {text}: must be ROLE=N, such as worker=4")
    return role, int(number)

"""`dtj status`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from dtj.api.errors import NotFound, Unreachable, Unusable
from dtj.api.status import Phase
from dtj.cli.options import (
    JobNameOrUri,
    with_fields,
)
from dtj.cli.places import PlaceOptions, on_the_cluster
from dtj.cli.status_view import one_line, status_view
from dtj.cli.terminal import FormatOption, echo, output, print_data, print_table

if TYPE_CHECKING:
    from dtj.client import DistributedTrainingJob, JobEvent
    from dtj.views.places import Place

app = typer.Typer()
_REFRESH_SECONDS = 1.0
_EVENT_REFRESHES = 5
"""The number of refreshes of the live view between two requests for events."""
_LINES_BESIDE_REPLICAS = 22
_FEWEST_REPLICAS = 6


@app.command()
@with_fields
def status(
    name: JobNameOrUri,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh the status until the job has ended.")
    ] = False,
    where: PlaceOptions,
    format_: FormatOption = None,
) -> None:
    """Show a job's progress, replicas and nodes, conditions, restarts, failure and last events.

    On a terminal, `--watch` shows a live view. In a pipe or a file, it writes a line at each change.

    ```
    dtj status fashion-mnist --watch
    dtj status fashion-mnist --local
    dtj status fashion-mnist -o json | jq .status.progress
    dtj status fashion-mnist --past
    ```

    Of a deleted job, the status is that of its record in the bucket.
    """
    if watch and format_:
        raise Unusable("--watch can't be used with --output", "leave out one of them")
    place = where.find(name)
    if name.startswith("s3://") and not where.local:
        place = on_the_cluster(place, where.context)
    if format_:
        print_data(place.job().to_manifest(), format_)
    elif not watch:
        job, note = place.job(), place.note()
        # Leave out the events of an ended job that is read from the bucket: its conditions contain the same facts.
        events = [] if note and job.status.finished else place.events()
        print_table(status_view(job, place.pods(), events, datetime.now(UTC), note=note))
    elif output.is_terminal:
        _show_live(place)
    else:
        _print_changes(place)


def _show_live(place: Place) -> None:
    from rich.live import Live

    with Live(console=output, auto_refresh=False, vertical_overflow="crop") as live:
        for view in _views(place):
            live.update(view, refresh=True)


def _views(place: Place) -> Iterator[RenderableType]:
    """Yield the refreshed view until the job has finished. While the cluster does not answer, show the last state."""
    job, pods = place.job(), place.pods()
    events: list[JobEvent] = []
    for refresh in count():
        note = None
        try:
            job, pods = _refreshed(place, job), place.pods()
            if refresh % _EVENT_REFRESHES == 0 or job.status.finished:
                events = place.events()
            note = place.note()
        except Unreachable as error:
            note = error.message
        most = max(output.height - _LINES_BESIDE_REPLICAS, _FEWEST_REPLICAS)
        yield status_view(job, pods, events, datetime.now(UTC), note=note, most_replicas=most)
        if _over(job, place):
            return
        time.sleep(_REFRESH_SECONDS)


def _print_changes(place: Place) -> None:
    printed, job = "", place.job()
    while True:
        if (line := one_line(job)) != printed:
            echo(f"{datetime.now(UTC):%H:%M:%S} {line}")
            printed = line
        if _over(job, place):
            return
        time.sleep(_REFRESH_SECONDS)
        job = _refreshed(place, job)


def _refreshed(place: Place, before: DistributedTrainingJob) -> DistributedTrainingJob:
    """Return the current state of the job. Raises NotFound if the job was deleted, with the possible cause."""
    try:
        return place.job()
    except NotFound:
        from dtj.client.failures import deleted

        raise deleted(before, f"while it was {before.status.phase or Phase.PENDING}") from None


def _over(job: DistributedTrainingJob, place: Place) -> bool:
    """Return whether the job has finished, or no process runs the job."""
    return job.status.finished or place.note() is not None

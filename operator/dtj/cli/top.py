"""`dtj top`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Protocol

import typer
from rich.console import RenderableType

from dtj.api.errors import Unusable
from dtj.cli.connection import ContextOption, JobName, LocalOption, NamespaceOption, connect
from dtj.cli.tables import print_table
from dtj.cli.terminal import FormatOption, output, print_data
from dtj.cli.top_view import top_view

if TYPE_CHECKING:
    from dtj.client import Client, PodUsage

app = typer.Typer()
_REFRESH_SECONDS = 5.0
"""metrics-server measures every 15 s by default."""


@app.command()
def top(
    name: JobName,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh the table every few seconds.")
    ] = False,
    local: LocalOption = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    format_: FormatOption = None,
) -> None:
    """Show the CPU and memory that each replica of a job uses, beside its limits.

    ```
    dtj top fashion-mnist --watch
    dtj top fashion-mnist --local
    ```

    The cluster's metrics-server measures the use. Without it, the table shows only nodes, states and limits. Of a run
    of this machine, dtj measures the use itself, for a second, and shows it beside what the machine has.
    """
    if watch and format_:
        raise Unusable("--watch can't be used with --output", "leave out one of them")
    place = _local(name, namespace) if local else _OnCluster(connect(namespace, context), name)
    if format_:
        print_data({pod: asdict(used) for pod, used in (place.usage() or {}).items()}, format_)
    elif watch and output.is_terminal:
        _show_live(place)
    else:
        print_table(place.view())
        while watch:
            time.sleep(_REFRESH_SECONDS)
            print_table(place.view())


class _Place(Protocol):
    def usage(self) -> Mapping[str, PodUsage] | None: ...

    def view(self) -> RenderableType: ...


class _OnCluster:
    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name

    def usage(self) -> Mapping[str, PodUsage] | None:
        self._client.get(self._name)  # A wrong name is an error.
        return self._client.usage(self._name)

    def view(self) -> RenderableType:
        client, name = self._client, self._name
        return top_view(client.get(name), client.pods(name), client.usage(name))


def _local(name: str, namespace: str | None) -> _Place:
    from dtj.cli.local_use import LocalUse
    from dtj.local.runs import Runs, home

    return LocalUse(Runs(home()).find(name, namespace))


def _show_live(place: _Place) -> None:
    from rich.live import Live

    with Live(console=output, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            live.update(place.view(), refresh=True)
            time.sleep(_REFRESH_SECONDS)

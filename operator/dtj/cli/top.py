"""`dtj top`."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from dtj.api.errors import Unusable
from dtj.cli.connection import ContextOption, JobName, NamespaceOption, connect
from dtj.cli.tables import print_table
from dtj.cli.terminal import FormatOption, output, print_data
from dtj.cli.top_view import top_view

if TYPE_CHECKING:
    from dtj.client import Client

app = typer.Typer()
_REFRESH_SECONDS = 5.0
"""metrics-server measures every 15 s by default."""


@app.command()
def top(
    name: JobName,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh the table every few seconds.")
    ] = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    format_: FormatOption = None,
) -> None:
    """Show the CPU and memory that each replica of a job uses, beside its limits.

    ```
    dtj top fashion-mnist --watch
    ```

    The cluster's metrics-server measures the use. Without it, the table shows only nodes, states and limits.
    """
    if watch and format_:
        raise Unusable("--watch can't be used with --output", "leave out one of them")
    client = connect(namespace, context)
    if format_:
        client.get(name)
        usage = client.usage(name)
        print_data({pod: asdict(used) for pod, used in (usage or {}).items()}, format_)
    elif watch and output.is_terminal:
        _show_live(client, name)
    else:
        print_table(_view(client, name))
        while watch:
            time.sleep(_REFRESH_SECONDS)
            print_table(_view(client, name))


def _view(client: Client, name: str) -> RenderableType:
    return top_view(client.get(name), client.pods(name), client.usage(name))


def _show_live(client: Client, name: str) -> None:
    from rich.live import Live

    with Live(console=output, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            live.update(_view(client, name), refresh=True)
            time.sleep(_REFRESH_SECONDS)

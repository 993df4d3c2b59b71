"""Tables as kubectl prints them: as wide as they need where no terminal limits them."""

from __future__ import annotations

from io import StringIO

import typer
from rich.console import Console, RenderableType
from rich.table import Table

from dtj.cli.terminal import output

_UNLIMITED = 1000


def columns(*headings: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table. right: headings of columns with numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for heading in headings:
        table.add_column(
            heading, justify="right" if heading in right else "left", no_wrap=heading == headings[0]
        )
    return table


def print_table(table: RenderableType) -> None:
    """Print a table; what reads a pipe gets whole lines."""
    if output.is_terminal:
        output.print(table, soft_wrap=False, highlight=False)
        return
    wide = Console(width=_UNLIMITED, file=StringIO())
    with wide.capture() as captured:
        wide.print(table, highlight=False)
    for line in captured.get().splitlines():
        typer.echo(line.rstrip())

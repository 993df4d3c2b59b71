"""Tables as kubectl prints them: as wide as they need where no terminal limits them."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table

from dtj.cli.terminal import echo_whole, output


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
        output.print(table, soft_wrap=False)
    else:
        echo_whole(table)

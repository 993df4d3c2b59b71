"""Tables in the style of kubectl. Only a terminal limits their width."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table

from dtj.cli.terminal import echo_whole, output


def columns(*headings: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table. right: headings of the columns to align at the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for heading in headings:
        table.add_column(
            heading, justify="right" if heading in right else "left", no_wrap=heading == headings[0]
        )
    return table


def print_table(table: RenderableType) -> None:
    """Print a table. A pipe or a file gets unfolded lines."""
    if output.is_terminal:
        output.print(table, soft_wrap=False)
    else:
        echo_whole(table)

"""The output of the commands: colours for a terminal; plain text, JSON or YAML for a program.

Many of the printed texts come from outside: messages of a program, keys in a bucket, events. A control character in
such a text could control the user's terminal. This module therefore prints a visible character in the place of each
control character, except for those of dtj's own colours and live views.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from io import StringIO
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"}
# Unicode has no visible characters for the control characters 0x80 to 0x9F (C1).
_PICTURES |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
# Python represents bytes of file names that are not UTF-8 by these surrogates.
_PICTURES |= dict.fromkeys(range(0xDC80, 0xDD00), 0xFFFD)
_UNLIMITED_WIDTH = 1000


def visible(text: str) -> str:
    """Return the text with a visible character in place of each control character, except tabs and line ends."""
    return text.translate(_PICTURES)


class VisibleConsole(Console):
    """A console that prints texts as they are: no control character, markup or emoji code of a text has an effect."""

    def __init__(
        self, *, width: int | None = None, file: StringIO | None = None, stderr: bool = False
    ) -> None:
        super().__init__(
            width=width, file=file, stderr=stderr, soft_wrap=True, markup=False, emoji=False, highlight=False
        )

    def render_str(self, text: str, **options: Any) -> Text:
        """Convert the visible text, so that columns of tables are as wide as the text that is shown."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments with visible text. The console's own control codes are in separate segments."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


output = VisibleConsole()
"""Standard output. rich leaves out colours if standard output is not a terminal, or NO_COLOR is set."""
errors = VisibleConsole(stderr=True)


class OutputFormat(StrEnum):
    """The formats for programs."""

    JSON = "json"
    YAML = "yaml"


FormatOption = Annotated[
    OutputFormat | None, typer.Option("--output", "-o", help="Print JSON or YAML instead of a table.")
]


def echo(text: str, *, end: str = "\n", err: bool = False) -> None:
    """Print a text. Long lines are not folded."""
    typer.echo(visible(text) + end, nl=False, err=err)


def echo_whole(table: RenderableType) -> None:
    """Print a table for a pipe or a file: unfolded, without spaces at the ends of lines."""
    wide = VisibleConsole(width=_UNLIMITED_WIDTH, file=StringIO())
    with wide.capture() as captured:
        wide.print(table, soft_wrap=False)
    for line in captured.get().splitlines():
        echo(line.rstrip())


def print_data(data: Mapping[str, Any] | Sequence[Any], format_: OutputFormat) -> None:
    """Print data as JSON or YAML."""
    if format_ is OutputFormat.JSON:
        echo(json.dumps(data, indent=2))
    else:
        from dtj.api.yaml_text import dump

        echo(dump(data), end="")


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


def size(amount: int) -> str:
    """Return a number of bytes as text, in the largest unit of which there is at least 1."""
    value, units = float(amount), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"

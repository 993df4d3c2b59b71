"""`dtj logs`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dtj.cli.options import (
    JobNameOrUri,
    with_fields,
)
from dtj.cli.places import PlaceOptions
from dtj.cli.terminal import output, visible

if TYPE_CHECKING:
    from dtj.client import LogLine

app = typer.Typer()
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red", "bright_cyan", "bright_magenta")
# Control sequences other than colours, which move the cursor, set the title or make a link.
_CONTROL_SEQUENCES = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-?]*[ -/]*[@-ln-~]")


@app.command()
@with_fields
def logs(
    name: JobNameOrUri,
    *,
    role: Annotated[str | None, typer.Option(help="Print only replicas of this role: worker, ps, …")] = None,
    index: Annotated[int | None, typer.Option(min=0, help="Print only this replica of the role.")] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Print only this rank.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until the job has ended.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option(min=0, help="Print only the last N lines of each replica.", metavar="N")
    ] = None,
    attempt: Annotated[
        int | None,
        typer.Option(min=1, help="Print the lines of an earlier attempt, from the bucket.", metavar="N"),
    ] = None,
    round_: Annotated[
        int | None,
        typer.Option(
            "--round",
            min=0,
            help="Print only the lines of one start of the ranks in the pods of the attempt: 0 is the first, 1 the "
            "first restart in place.",
            metavar="N",
        ),
    ] = None,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", help="Print the time of each line, if known.")
    ] = False,
    prefix: Annotated[
        bool,
        typer.Option(
            "--prefix/--no-prefix", help="Begin each line with the rank or replica that printed it."
        ),
    ] = True,
    where: PlaceOptions,
) -> None:
    """Print the output of all ranks and replicas of a job, each in its own colour.

    The lines come from the pods or, if the pods are gone, from the bucket.

    ```
    dtj logs fashion-mnist -f
    dtj logs fashion-mnist --rank 1 --tail 20
    dtj logs cifar --role worker --index 0 --attempt 1
    dtj logs cifar --round 1
    dtj logs fashion-mnist --past --tail 20
    ```
    """
    from dtj.client import LogQuery

    query = LogQuery(role, index, rank, follow, tail, attempt, round=round_)
    place = where.find(name)
    painter = LinePainter(prefix=prefix, timestamps=timestamps)
    for line in place.logs(query):
        output.print(painter.painted(line))


class LinePainter:
    """Makes lines of logs for a terminal. Each source keeps its first colour."""

    def __init__(self, *, prefix: bool = True, timestamps: bool = False) -> None:
        self._prefix = prefix
        self._timestamps = timestamps
        self._colours: dict[str, str] = {}

    def painted(self, line: LogLine) -> Text:
        """Return the line with its prefix. Of the program's control sequences only colours remain."""
        text = Text()
        if self._timestamps and line.time is not None:
            text.append(f"{line.time:%Y-%m-%dT%H:%M:%S.%fZ} ", "dim")
        if self._prefix:
            colour = self._colours.setdefault(line.source, _COLOURS[len(self._colours) % len(_COLOURS)])
            text.append(f"[{line.source}] ", colour)
        # Show only the text after the last carriage return: a progress bar overwrites its line, as on a terminal.
        shown = _CONTROL_SEQUENCES.sub("", line.text.rstrip("\r").rpartition("\r")[2])
        return text.append(Text.from_ansi("\x1b".join(map(visible, shown.split("\x1b")))))

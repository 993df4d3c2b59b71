"""`dtj logs`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dtj.cli.connection import ContextOption, JobName, LocalOption, NamespaceOption
from dtj.cli.places import find
from dtj.cli.terminal import output, visible

if TYPE_CHECKING:
    from dtj.client import LogLine

app = typer.Typer()
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red", "bright_cyan", "bright_magenta")
# What a program writes for a terminal and is no colour: it moves the cursor, sets the title or makes a link.
_COMMANDS = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-?]*[ -/]*[@-ln-~]")


@app.command()
def logs(
    name: JobName,
    role: Annotated[str | None, typer.Option(help="Only replicas of this role: worker, ps, …")] = None,
    index: Annotated[int | None, typer.Option(min=0, help="Only this replica of the role.")] = None,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Only this rank, where the strategy has ranks.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    tail: Annotated[
        int | None, typer.Option(min=0, help="Only so many last lines of each replica.", metavar="N")
    ] = None,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Those of an earlier attempt, from the bucket.", metavar="N")
    ] = None,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", help="With the time of each line, where it is known.")
    ] = False,
    prefix: Annotated[
        bool, typer.Option("--prefix/--no-prefix", help="Whether each line begins with who printed it.")
    ] = True,
    local: LocalOption = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Print what the ranks and replicas of a job printed, all together, each in its colour.

    They come from the pods while those are there, else from the bucket: also of a job that has ended.

    ```
    dtj logs fashion-mnist -f
    dtj logs fashion-mnist --rank 1 --tail 20
    dtj logs cifar --role worker --index 0 --attempt 1
    ```
    """
    from dtj.client import LogQuery

    query = LogQuery(role, index, rank, follow, tail, attempt)
    place = find(name, local=local, namespace=namespace, context=context)
    painter = LinePainter(prefix=prefix, timestamps=timestamps)
    for line in place.logs(query):
        output.print(painter.painted(line))


class LinePainter:
    """Makes lines for a terminal; each source keeps the colour that it had first."""

    def __init__(self, *, prefix: bool = True, timestamps: bool = False) -> None:
        self._prefix = prefix
        self._timestamps = timestamps
        self._colours: dict[str, str] = {}

    def painted(self, line: LogLine) -> Text:
        """The line with its prefix; colours that the program itself printed are kept, its other commands are not."""
        whole = Text()
        if self._timestamps and line.time is not None:
            whole.append(f"{line.time:%Y-%m-%dT%H:%M:%S.%fZ} ", "dim")
        if self._prefix:
            colour = self._colours.setdefault(line.source, _COLOURS[len(self._colours) % len(_COLOURS)])
            whole.append(f"[{line.source}] ", colour)
        # What a progress bar overwrote is not shown, as on a terminal.
        shown = _COMMANDS.sub("", line.text.rstrip("\r").rpartition("\r")[2])
        return whole.append(Text.from_ansi("\x1b".join(map(visible, shown.split("\x1b")))))

"""`dtj report`: makes the report of runs, and prints it or writes its files.

`report_sources` finds the runs, `dtj.views.runs` reads a run, and `dtj.report` makes the figures. `dtj ui` shows the
same report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.measure import Measurement
from rich.table import Table as RichTable

from dtj.api.errors import Unusable
from dtj.cli.options import (
    complete_name,
    with_fields,
)
from dtj.cli.places import PlaceOptions
from dtj.cli.terminal import FormatOption, VisibleConsole, output, print_data

if TYPE_CHECKING:
    from dtj.report.report import Report
    from dtj.report.tables import Table


app = typer.Typer()

FOLDER = Path("dtj-report")


class ReportForm(StrEnum):
    """The forms of a report."""

    TABLE = "table"
    MARKDOWN = "markdown"
    CSV = "csv"
    HTML = "html"
    PNG = "png"
    PAGE = "page"


@app.command()
@with_fields
def report(
    names: Annotated[
        list[str],
        typer.Argument(
            help="Jobs by name, s3:// prefixes of jobs or of folders of jobs, or folders with metrics.jsonl.",
            metavar="NAME...",
            autocompletion=complete_name,
        ),
    ],
    *,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Run or group to compare with, or FIELD=VALUE such as workers=1: for each group, the group that "
            "has this value and is otherwise equal."
        ),
    ] = None,
    group_by: Annotated[
        list[str] | None,
        typer.Option(
            help="model, strategy, updates, workers, ps, batch, a label of the job, a fact that the program reports, "
            "or an option of the program such as lr. Default: the first six together."
        ),
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(
            help="Price per hour of each pod, such as 0.90/h, or of a pod of each role, such as "
            "worker=0.90,ps=0.023. The cost is unknown if a role has pods and no price.",
            metavar="PRICE",
        ),
    ] = None,
    forms: Annotated[
        list[ReportForm] | None,
        typer.Option(
            "--format",
            help="Form of the report; may be repeated. page: one HTML file a run, to send. Default: table.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help=f"Folder for files. Default: {FOLDER}.", file_okay=False)
    ] = None,
    where: PlaceOptions,
    data: FormatOption = None,
) -> None:
    """Make tables and pictures of one or many runs: rates, times, accuracy, speed-up, cost.

    Rates cover only the time of training: a step that a restart repeats counts once, and the time between two
    attempts does not count. The training time is the time from the first row to the last row of rank 0. The total
    time is the time from the start of the job to its completion.

        dtj report fashion-mnist
        dtj report one-worker two-workers --baseline one-worker
        dtj report s3://training/jobs/ml --group-by updates
        dtj report s3://training/jobs/ml --group-by lr
        dtj report fashion-mnist --past
        dtj report s3://training/jobs/ml --baseline workers=1
        dtj report s3://training/jobs/ml --group-by machine --price chief=0.90,worker=0.90,ps=0.023
        dtj report fashion-mnist --format html --format png --out report
        dtj report fashion-mnist --format page
    """
    from dtj.cli.report_sources import read_runs
    from dtj.report.cost import read_price
    from dtj.report.report import make_report

    price_of_pods = None if price is None else read_price(price)
    wanted = set(forms or ([] if data or out else [ReportForm.TABLE]))
    if out and not forms:
        wanted = set(ReportForm) - {ReportForm.PAGE}
    bare = wanted == {ReportForm.PAGE} and not data
    runs = read_runs(names, where, bare=bare)
    result = make_report(runs, group_by=group_by or (), baseline=baseline, price=price_of_pods)
    if data:
        from dtj.report.data import as_data

        print_data(as_data(result), data)
    elif ReportForm.TABLE in wanted:
        _print(result)
    pages: dict[str, str] = {}
    if ReportForm.PAGE in wanted:
        from dtj.views.runs import pages_of

        pages = pages_of(runs)
    written = _write(_files(result, wanted - {ReportForm.TABLE}) | pages, out or FOLDER)
    if not data:
        for file in written:
            output.print(file)


def _print(report: Report) -> None:
    from dtj.report.tables import tables_of

    for table in tables_of(report):
        output.print(table.title, style="bold")
        _print_table(table)
        output.print()
    for note in report.notes:
        output.print(f"• {note}", style="dim")


def _print_table(table: Table) -> None:
    """Print a table. On a terminal that is too narrow, print the runs as columns. In a file, fold no lines."""
    rich_table = _rich(table.headings, table.rows)
    if output.is_terminal and _width(rich_table) > output.width and len(table.rows) < len(table.headings):
        first, *others = zip(table.headings, *table.rows, strict=True)
        rich_table = _rich(first, others)
    width = output.width if output.is_terminal else max(_width(rich_table), output.width)
    VisibleConsole(width=width).print(rich_table, soft_wrap=False)


def _rich(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> RichTable:
    rich_table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for position, heading in enumerate(headings):
        rich_table.add_column(
            heading, justify="right" if position else "left", no_wrap=not position, overflow="fold"
        )
    for row in rows:
        rich_table.add_row(*row)
    return rich_table


def _width(table: RichTable) -> int:
    unlimited = output.options.update(max_width=10_000)
    return Measurement.get(output, unlimited, table).maximum


def _files(report: Report, forms: set[ReportForm]) -> dict[str, str | bytes]:
    """Return the files of a report by name. Raises Unusable if matplotlib can't be used."""
    from dtj.report.data import as_csv
    from dtj.report.documents import as_html, as_markdown

    files: dict[str, str | bytes] = {}
    if ReportForm.CSV in forms:
        files |= as_csv(report)
    pictures: dict[str, bytes] = {}
    if forms & {ReportForm.HTML, ReportForm.PNG}:
        from dtj.report.pictures import pictures_of

        pictures = pictures_of(report)
    if ReportForm.PNG in forms:
        files |= pictures
    if ReportForm.MARKDOWN in forms:
        files["report.md"] = as_markdown(report, list(pictures) if ReportForm.PNG in forms else ())
    if ReportForm.HTML in forms:
        files["report.html"] = as_html(report, pictures)
    return files


def _write(files: Mapping[str, str | bytes], folder: Path) -> list[Path]:
    """Write the files, and return their paths. Raises Unusable if the folder can't be used."""
    if not files:
        return []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    except OSError as error:
        raise Unusable(f"{folder} can't be written: {error.strerror}") from None
    return [folder / name for name in files]

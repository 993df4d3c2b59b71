"""The tables of a report with cells of text, for the terminal, Markdown and HTML."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from dtj.report.entries import Comparison, Entry
from dtj.report.facts import FIELDS
from dtj.report.report import Report
from dtj.report.summary import RankSteps, Spread, Summary
from dtj.report.utilisation import RankUtilisation

NOTHING = "–"
_UNITS = ((180 * 60, "h", 3600.0, 2), (180, "min", 60.0, 1), (0, "s", 1.0, 1))
"""For each unit of time: the shortest time in seconds to show in it, its name, its seconds, and the decimals."""


@dataclass(frozen=True)
class Table:
    """Rows of text under headings. The first cell of a row is the name of the row."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables_of(report: Report) -> list[Table]:
    """Return the tables of the runs, the groups, the ranks' steps and the utilisation, each if it has rows.

    Leave out columns without a known value.
    """
    tables = [_table("Runs", [*_columns(report, report.runs)])]
    if report.groups:
        tables.append(_table("Groups", [*_columns(report, report.groups)]))
    if rows := [_rank_row(run, steps) for run in report.summaries for steps in run.rank_steps]:
        tables.append(Table("Steps by rank", ["run", "model", "rank", "steps", "time of a step (ms)"], rows))
    if report.utilisation:
        tables.append(_table("Utilisation", [*_usage_columns(report.utilisation)]))
    return tables


def _rank_row(run: Summary, of: RankSteps) -> list[str]:
    return [
        run.name,
        str(run.facts.get("model") or NOTHING),
        str(of.rank),
        str(of.steps),
        said(of.seconds, 2, 1000),
    ]


def _table(title: str, all_columns: Sequence[tuple[str, list[str]]]) -> Table:
    columns = [
        column
        for column in all_columns
        if column[0] in ("run", "group") or any(cell != NOTHING for cell in column[1])
    ]
    return Table(
        title,
        [heading for heading, _ in columns],
        list(zip(*(cells for _, cells in columns), strict=True)),
    )


def _columns(report: Report, entries: Sequence[Entry]) -> Iterator[tuple[str, list[str]]]:
    """Yield heading and cells of each column."""

    def column(heading: str, cell: Callable[[Entry], str]) -> tuple[str, list[str]]:
        return heading, [cell(entry) for entry in entries]

    def compared(figure: Callable[[Comparison], float | None]) -> Callable[[Entry], str]:
        def cell(entry: Entry) -> str:
            value = figure(entry.comparison) if entry.comparison else None
            return NOTHING if value is None else f"{value:.2f}"

        return cell

    grouped = entries is report.groups
    if not grouped:
        yield column("run", lambda entry: entry.label)
        yield column("started (UTC)", _started)
        yield column("arguments", lambda entry: entry.runs[0].arguments or NOTHING)
    elif report.group_fields != FIELDS:
        yield column("group", lambda entry: entry.label)
    names = dict.fromkeys([*FIELDS, *(report.group_fields if grouped else ())])
    if any(entry.facts.get("ranks") != entry.facts.get("workers") for entry in entries):
        names["ranks"] = None
    for name in names:
        yield column(name, lambda entry, name=name: _fact(entry, name))  # type: ignore[misc]
    if grouped:
        yield column("runs", lambda entry: str(len(entry.runs)))
    yield column("global step/s", lambda entry: rate(entry.steps_per_second))
    yield column("examples/s", lambda entry: rate(entry.examples_per_second))
    yield column("bandwidth (MB/s)", lambda entry: rate(entry.bandwidth, 1e-6))
    for name in ("training", "total"):
        times = [getattr(entry, f"{name}_seconds") for entry in entries]
        unit, seconds, digits = unit_of([time.mean for time in times if time])

        def time_cell(entry: Entry, name: str = name, seconds: float = seconds, digits: int = digits) -> str:
            cell = said(getattr(entry, f"{name}_seconds"), digits, 1 / seconds)
            return f"{cell} (est.)" if name == "training" and entry.estimated else cell

        yield column(f"{name} time ({unit})", time_cell)
    yield column("accuracy %", lambda entry: said(entry.accuracy, 2, 100))
    currency = report.price.currency if report.price else ""
    yield column(f"cost ({currency})" if currency else "cost", lambda entry: said(entry.cost, 2))
    yield column("restarts", lambda entry: str(entry.restarts))
    yield column("in place", lambda entry: str(entry.in_place) if entry.in_place else NOTHING)
    yield column("skipped", lambda entry: str(entry.skipped) if entry.skipped else NOTHING)
    yield column("speed-up", compared(lambda comparison: comparison.speedup))
    yield column("speed-up of time", compared(lambda comparison: comparison.time_speedup))
    yield column("efficiency", compared(lambda comparison: comparison.efficiency))


def _usage_columns(usages: Sequence[RankUtilisation]) -> Iterator[tuple[str, list[str]]]:
    """Yield heading and cells of each column of the utilisation."""

    def column(
        heading: str, value: Callable[[RankUtilisation], float | None], digits: int = 2
    ) -> tuple[str, list[str]]:
        return heading, [
            NOTHING if (number := value(usage)) is None else f"{number:,.{digits}f}" for usage in usages
        ]

    def scaled(name: str, scale: float) -> Callable[[RankUtilisation], float | None]:
        return lambda usage: None if (number := getattr(usage, name)) is None else number * scale

    yield "run", [usage.run for usage in usages]
    yield "rank", [usage.program for usage in usages]
    yield "pod", [usage.pod for usage in usages]
    unit, seconds, digits = unit_of([usage.seconds for usage in usages])
    yield column(f"time ({unit})", scaled("seconds", 1 / seconds), digits)
    yield column("CPUs in use", lambda usage: usage.cores)
    yield column("CPU limit", lambda usage: usage.cpu_limit)
    yield column("memory (GB)", scaled("memory", 1e-9))
    yield column("pod memory (GB)", scaled("pod_memory", 1e-9))
    yield column("memory limit (GB)", scaled("pod_memory_limit", 1e-9))
    yield column("read (GB)", scaled("read", 1e-9))
    yield column("written (GB)", scaled("written", 1e-9))
    yield column("GPUs in use %", scaled("gpu", 100), 1)
    yield column("GPU memory (GB)", scaled("gpu_memory", 1e-9))
    yield column("GPU power (W)", lambda usage: usage.gpu_watts, 0)


def unit_of(seconds: Sequence[float]) -> tuple[str, float, int]:
    """Return the unit in which to show times: its name, its seconds, and the decimals."""
    longest = max([0.0, *seconds])
    return next((name, size, digits) for least, name, size, digits in _UNITS if longest >= least)


def said(value: Spread | None, digits: int, scale: float = 1.0) -> str:
    """Return `mean ± deviation`."""
    if value is None:
        return NOTHING
    mean = f"{value.mean * scale:,.{digits}f}"
    return mean if value.deviation is None else f"{mean} ± {value.deviation * scale:,.{digits}f}"


def rate(value: Spread | None, scale: float = 1.0) -> str:
    """Return a rate per second: with fewer decimals for larger rates, and with two digits that are not zero."""
    mean = value.mean * scale if value else 0.0
    if 0 < mean < 0.1:
        return said(value, 1 - math.floor(math.log10(mean)), scale)
    return said(value, 2 if mean < 100 else 1 if mean < 1000 else 0, scale)


def _started(entry: Entry) -> str:
    started = entry.runs[0].started
    return NOTHING if started is None else f"{datetime.fromtimestamp(started, UTC):%Y-%m-%d %H:%M:%S}"


def _fact(entry: Entry, name: str) -> str:
    value = entry.facts.get(name)
    return NOTHING if value is None else str(value)

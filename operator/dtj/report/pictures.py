"""The pictures of a report as PNG files, drawn by matplotlib without a display."""

from __future__ import annotations

import io
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from dtj.api.errors import Unusable
from dtj.report.entries import Entry
from dtj.report.facts import FIELDS
from dtj.report.numbers import tick_texts
from dtj.report.report import Report
from dtj.report.summary import Spread, Summary
from dtj.report.tables import unit_of
from dtj_trainer.contract.distribution import install_line

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""The palette of Okabe and Ito, which people with colour blindness can distinguish."""
DOTS_PER_INCH = 150
SIZE = (10.0, 5.0)
"""Width and height in inches."""


def pictures_of(report: Report) -> dict[str, bytes]:
    """Return PNG files by name: time and accuracy of each model as bars, throughput and loss over time.

    With a baseline, a third picture shows speed-up and efficiency of each model as bars.

    Raises Unusable if matplotlib is not installed.
    """
    try:
        from matplotlib import rcParams
        from matplotlib.figure import Figure
    except ImportError:
        raise Unusable("pictures need matplotlib, which is not installed", install_line("report")) from None

    # Names of runs may contain dollar signs. matplotlib must not read them as the begin of a formula.
    rcParams["text.parse_math"] = False
    pictures = {}
    drawings = {"time-and-accuracy": _draw_bars, "over-time": _draw_over_time}
    if any(entry.comparison for entry in report.groups or report.runs):
        drawings["speed-up"] = _draw_comparison
    for name, draw in drawings.items():
        figure = Figure(figsize=SIZE, dpi=DOTS_PER_INCH, layout="constrained")
        draw(figure, report)
        content = io.BytesIO()
        figure.savefig(content, format="png")
        pictures[f"{name}.png"] = content.getvalue()
    return pictures


def _legend(figure: Figure, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    """Draw the legend above the picture, in as many columns as fit."""
    longest = max(map(len, labels), default=0)
    columns = max(1, min(4, 110 // (longest + 8)))
    if labels:
        figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False)


# --- bars ----------------------------------------------------------------------------------------


def _draw_bars(figure: Figure, report: Report) -> None:
    entries = report.groups or report.runs
    times = [entry.total_seconds if report.total_time else entry.training_seconds for entry in entries]
    unit, seconds, digits = unit_of([time.mean for time in times if time])
    which = "total" if report.total_time else "training"
    _, right = _pair_of_bars(
        figure,
        report,
        (f"{which} time ({unit})", [_scaled(time, 1 / seconds) for time in times], digits),
        ("test accuracy (%)", [_scaled(entry.accuracy, 100) for entry in entries], 1),
    )
    right.set_ylim(0, 105)


def _draw_comparison(figure: Figure, report: Report) -> None:
    compared = [entry.comparison for entry in report.groups or report.runs]
    speedups = [Spread(each.speedup) if each and each.speedup is not None else None for each in compared]
    efficiencies = [
        Spread(each.efficiency) if each and each.efficiency is not None else None for each in compared
    ]
    left, _ = _pair_of_bars(figure, report, ("speed-up", speedups, 2), ("efficiency", efficiencies, 2))
    left.axhline(1.0, color="grey", linewidth=1, linestyle="--")


def _pair_of_bars(
    figure: Figure, report: Report, *sides: tuple[str, Sequence[Spread | None], int]
) -> list[Axes]:
    """Draw two charts with a bar of each entry. `sides`: for each chart, the label, the values, and the decimals."""
    entries = report.groups or report.runs
    fields = report.group_fields if report.groups else FIELDS
    names = _differing(entries, [name for name in fields if name != "model"])
    both: list[Axes] = list(figure.subplots(1, 2))
    for axes, (label, values, digits) in zip(both, sides, strict=True):
        axes.set_ylabel(label)
        _bars(axes, entries, names, values, digits)
    left = both[0]
    if names:
        handles, labels = left.get_legend_handles_labels()
        _legend(figure, handles, labels)
    return both


def _bars(
    axes: Axes, entries: Sequence[Entry], names: Sequence[str], values: Sequence[Spread | None], digits: int
) -> None:
    """Draw for each model a bar of each kind of run, with deviation and value."""
    models = list(dict.fromkeys(_fact(entry, "model") for entry in entries))
    kinds = list(dict.fromkeys(_kind(entry, names) for entry in entries))
    width = 0.8 / len(kinds)
    for number, kind in enumerate(kinds):
        chosen = [
            (entry, value)
            for entry, value in zip(entries, values, strict=True)
            if _kind(entry, names) == kind and value is not None
        ]
        offset = (number - (len(kinds) - 1) / 2) * width
        bars = axes.bar(
            [models.index(_fact(entry, "model")) + offset for entry, _ in chosen],
            [value.mean for _, value in chosen],
            width * 0.92,
            yerr=[float("nan") if value.deviation is None else value.deviation for _, value in chosen],
            error_kw={"elinewidth": 1, "capsize": 3},
            color=COLOURS[number % len(COLOURS)],
            label=kind,
        )
        axes.bar_label(bars, fmt=f"%.{digits}f", padding=2, fontsize=8)
    axes.set_xticks(range(len(models)), models)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(y=0.12)


def _differing(entries: Sequence[Entry], names: Sequence[str]) -> list[str]:
    """Return the fields whose values tell the bars apart, for the legend; [""] if only the entries' labels do."""
    differing = [name for name in names if len({entry.facts.get(name) for entry in entries}) > 1]
    distinct_kinds = {(_fact(entry, "model"), _kind(entry, differing)) for entry in entries}
    return differing if len(distinct_kinds) == len(entries) else [""]


def _kind(entry: Entry, names: Sequence[str]) -> str:
    parts = []
    for name in names:
        value = entry.facts.get(name)
        if not name:
            parts.append(entry.label)
        elif value is not None:
            parts.append(str(value) if isinstance(value, str) else f"{name} {value}")
    return ", ".join(parts) or "–"


def _fact(entry: Entry, name: str) -> str:
    value = entry.facts.get(name)
    return "–" if value is None else str(value)


def _scaled(value: Spread | None, scale: float) -> Spread | None:
    if value is None:
        return None
    return Spread(value.mean * scale, None if value.deviation is None else value.deviation * scale)


# --- over time -----------------------------------------------------------------------------------


def _draw_over_time(figure: Figure, report: Report) -> None:
    runs = [run for run in report.summaries if run.starts]
    lengths = [run.starts[-1].rows[-1].time - run.starts[0].rows[0].time for run in runs]
    unit, seconds, _ = unit_of(lengths)
    above, below = figure.subplots(2, 1, sharex=True)
    for number, run in enumerate(runs):
        colour = COLOURS[number % len(COLOURS)]
        above.plot(*_rates(run, seconds), color=colour, label=run.name, linewidth=1.5)
        for start in run.starts:
            losses = start.losses()
            times = [_since(run, time) / seconds for time, _ in losses]
            below.plot(times, [loss for _, loss in losses], color=colour, linewidth=1.5)
        for start in run.starts[1:]:
            for axes in (above, below):
                axes.axvline(
                    _since(run, start.rows[0].time) / seconds, color=colour, linestyle="--", linewidth=1
                )
    if any(len(run.starts) > 1 for run in runs):
        above.plot([], [], color="grey", linestyle="--", linewidth=1, label="continues after a restart")
    above.set_ylabel("examples/s")
    above.set_ylim(bottom=0)
    below.set_ylabel("training loss")
    below.set_xlabel(f"time since the first row ({unit})")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
        _write_numbers(axes.yaxis)
    _legend(figure, *above.get_legend_handles_labels())


def _write_numbers(axis: Axis) -> None:
    """Write the numbers of an axis as the tables and the page do."""
    from matplotlib.ticker import Formatter

    class Numbers(Formatter):
        def format_ticks(self, values: Sequence[float]) -> list[str]:
            return tick_texts(values, min((b - a for a, b in pairwise(values)), default=1.0))

    axis.set_major_formatter(Numbers())


def _rates(run: Summary, unit: float) -> tuple[list[float], list[float]]:
    """Return times and examples/s. NaN separates intervals that do not adjoin, so that no line joins them."""
    times: list[float] = []
    rates: list[float] = []
    intervals = [each for each in run.intervals() if each.examples is not None]
    median = statistics.median([each.seconds for each in intervals]) if intervals else 0.0
    # Leave out intervals of a few milliseconds, whose rate has no meaning: two workers may have finished together.
    intervals = [each for each in intervals if each.seconds > median / 20]
    for previous, current in pairwise([None, *intervals]):
        assert current is not None
        if previous is not None and current.begin > previous.end + 1e-3:
            times.append(float("nan"))
            rates.append(float("nan"))
        times += [_since(run, moment) / unit for moment in (current.begin, current.end)]
        rates += [(current.examples or 0.0) / current.seconds] * 2
    return times, rates


def _since(run: Summary, time: float) -> float:
    return time - run.starts[0].rows[0].time

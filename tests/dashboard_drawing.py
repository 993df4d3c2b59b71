"""The panels of the dashboard, drawn by matplotlib from Prometheus' answers to their queries."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator
from PIL import Image

Panel = dict[str, Any]
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
COLUMNS = 24
_INCHES_OF_A_COLUMN = 0.62
_INCHES_OF_A_ROW = 0.34
_DOTS_PER_INCH = 84
_MOST_IN_A_LEGEND = 8


@dataclass(frozen=True)
class Series:
    """One line: its name as the panel's legend has it, and its values, NaN where there is none."""

    name: str
    values: Sequence[float]


def series_of(legend: str, answer: Any, times: Sequence[int]) -> list[Series]:
    """What Prometheus answered to a query at these times (`data.result`)."""
    found = []
    for each in answer:
        labels = each["metric"]
        name = re.sub(r"\{\{(\w+)\}\}", lambda match, labels=labels: labels.get(match[1], ""), legend)
        points = {round(time): float(value) for time, value in each["values"]}
        found.append(Series(name, [points.get(time, math.nan) for time in times]))
    return found


def picture(panels: Sequence[Panel], answers: dict[int, list[Series]], seconds: Sequence[float]) -> bytes:
    """The dashboard as PNG, its panels where Grafana has them. answers: by id of the panel.

    seconds: of each value, since the first.
    """
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    size = COLUMNS * _INCHES_OF_A_COLUMN, rows * _INCHES_OF_A_ROW
    figure = Figure(figsize=size, dpi=_DOTS_PER_INCH)
    for panel in panels:
        place = panel["gridPos"]
        left, width = place["x"] / COLUMNS, place["w"] / COLUMNS
        bottom, height = 1 - (place["y"] + place["h"]) / rows, place["h"] / rows
        if panel["type"] == "row":
            figure.text(left + 0.005, bottom + height / 3, panel["title"], fontsize=13, weight="bold")
        elif panel["type"] == "stat":
            _stat(figure, panel, answers[panel["id"]], (left, bottom, width, height))
        else:
            # Room for the title above, the times below and the figures on the left.
            inner = left + 0.032, bottom + 0.9 / rows, width - 0.042, height - 2.1 / rows
            _lines(figure.add_axes(inner), panel, answers[panel["id"]], seconds)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    # A few colours are enough: a third of the size.
    small = io.BytesIO()
    Image.open(content).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(
        small, format="png", optimize=True
    )
    return small.getvalue()


def _stat(figure: Figure, panel: Panel, series: Sequence[Series], box: tuple[float, ...]) -> None:
    left, bottom, width, height = box
    last = next((each.values[-1] for each in series if each.values), math.nan)
    unit = panel["fieldConfig"]["defaults"]["unit"]
    steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
    colour = {"green": COLOURS[2], "red": COLOURS[1]}.get(
        next((step["color"] for step in reversed(steps) if (step["value"] or 0) <= last), ""), "#222222"
    )
    middle = left + width / 2
    figure.text(middle, bottom + height * 0.72, panel["title"], ha="center", fontsize=9)
    figure.text(
        middle,
        bottom + height * 0.25,
        shown(last, unit),
        ha="center",
        fontsize=20,
        color=colour,
        weight="bold",
    )


def _lines(axes: Axes, panel: Panel, series: Sequence[Series], seconds: Sequence[float]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    stacked = defaults["custom"]["stacking"]["mode"] == "normal"
    axes.set_title(panel["title"], fontsize=9, loc="left")
    below = [0.0] * len(seconds)
    for number, each in enumerate(sorted(series, key=lambda each: each.name)):
        colour = COLOURS[number % len(COLOURS)]
        label = each.name if number < _MOST_IN_A_LEGEND else None
        if stacked:
            values = [0.0 if math.isnan(value) else value for value in each.values]
            above = [base + value for base, value in zip(below, values, strict=True)]
            axes.fill_between(seconds, below, above, color=colour, alpha=0.45, linewidth=0, label=label)
            below = above
        else:
            axes.plot(seconds, each.values, color=colour, linewidth=1.3, label=label)
    if series:
        axes.legend(fontsize=6.5, frameon=False, loc="upper left", labelspacing=0.2, handlelength=1.2)
    else:
        axes.text(
            0.5, 0.5, "no data: there was none of it", ha="center", transform=axes.transAxes, fontsize=8
        )
    axes.set_xlim(seconds[0], seconds[-1])
    axes.set_ylim(bottom=0, top=defaults.get("max"))
    axes.xaxis.set_major_locator(MultipleLocator(60))
    axes.tick_params(labelsize=6.5, length=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds / 60:.0f} min"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, defaults["unit"])))
    axes.grid(visible=True, linewidth=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def shown(value: float, unit: str) -> str:
    """A value in the unit that the panel says."""
    if math.isnan(value):
        return "-"
    match unit:
        case "percentunit":
            return f"{100 * value:.0f} %"
        case "percent":
            return f"{value:.0f} %"
        case "bytes":
            return f"{value / 2**20:.0f} MiB"
        case "s" if 0 < value < 1:
            return f"{1000 * value:.0f} ms"
        case "s":
            return f"{value:.0f} s"
        case _:
            return f"{value:.3g}" if value < 1000 else f"{value:.0f}"

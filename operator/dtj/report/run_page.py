"""A run as one HTML file to send: its state, failure, curves as SVG, tables, options and YAML. Pure.

`dtj.views.runs` calls it. The file runs nothing and refers to nothing; `html` has its frame.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby

from dtj.api.masking import masked, masked_job, options_of_manifest
from dtj.api.status import Failure, JobStatus, Phase
from dtj.api.yaml_text import dump
from dtj.report import html
from dtj.report.curves import MeasuredCurve, Point, curves_of, restarts_of
from dtj.report.documents import notes_of
from dtj.report.html import said
from dtj.report.numbers import number_text, tick_texts
from dtj.report.report import make_report
from dtj.report.run import Run
from dtj.report.tables import Table, tables_of

COLOURS = 6
"""Colours of the theme: the classes c1 to c6."""
_DASHES = ("", "8 4", "2 3", "10 3 2 3")
_WIDTH, _HEIGHT = 600, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 10, 24
"""The smallest margins of a drawing, in pixels."""
_TICKS = 5
_GAP = 6
"""The distance between a text and its axis, in pixels."""
_CHARACTER = 7
"""The width of a digit in the widest of the fonts in which browsers draw the texts."""


def drawing(title: str, curves: Mapping[str, Sequence[Point]], restarts: Sequence[int]) -> str:
    """Return curves over steps. curves: points by the name of the curve. restarts: steps that get a dashed line.

    A step that a later attempt repeated has the value of the later attempt.
    """
    lines = {
        name: sorted({step: value for step, value, _ in points}.items()) for name, points in curves.items()
    }
    steps = [float(step) for line in lines.values() for step, _ in line]
    values = [value for line in lines.values() for _, value in line]
    if not steps:
        return ""
    up = _Axis(values, _HEIGHT - _BOTTOM, _TOP)
    left = max(_LEFT, 2 * _GAP + _width([text for _, text in up.ticks()]))
    right = max(_RIGHT, _width([number_text(max(steps))]) / 2)
    across = _Axis(steps, left, _WIDTH - right)
    parts = [*_grid(across, up), *_restarts(across, restarts)]
    for number, line in enumerate(lines.values()):
        points = " ".join(f"{across.place(step):.1f},{up.place(value):.1f}" for step, value in line)
        parts.append(f'<polyline {_look(number)} points="{points}"/>')
        if len(line) == 1:
            step, value = line[0]
            parts.append(
                f'<circle class="{_colour(number)}" cx="{across.place(step):.1f}" cy="{up.place(value):.1f}" r="2"/>'
            )
    label = f"{title} over steps; the table below has the last values"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{said(label)}">{"".join(parts)}</svg>'
    )


def key(number: int) -> str:
    """Return the line that stands for a curve in a legend."""
    return (
        '<svg class="key" viewBox="0 0 40 12" aria-hidden="true">'
        f'<line {_look(number)} x1="0" y1="6" x2="40" y2="6"/></svg>'
    )


def _look(number: int) -> str:
    """Return the attributes of a curve: its colour, and dashes where several curves have the colour."""
    dashes = _DASHES[number // COLOURS % len(_DASHES)]
    return f'class="curve {_colour(number)}"' + (f' stroke-dasharray="{dashes}"' if dashes else "")


class _Axis:
    """Places numbers between two edges of the drawing."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        least, most = min(values), max(values)
        largest = max(abs(least), abs(most))
        if most - least <= max(largest * 1e-12, 1e-280):
            half = largest / 2 if largest > 1e-270 else 0.5
            least, most = least - half, most + half
        self.least, self.most = least, most
        self.first, self.last = first, last

    def place(self, value: float) -> float:
        share = (value - self.least) / (self.most - self.least)
        return self.first + share * (self.last - self.first)

    def ticks(self) -> list[tuple[float, str]]:
        """Return about _TICKS round numbers and their texts."""
        raw = (self.most - self.least) / _TICKS
        size = 10.0 ** math.floor(math.log10(raw))
        distance = size * next(factor for factor in (1, 2, 5, 10) if size * factor >= raw * 0.999)
        first = math.ceil(self.least / distance)
        found = (number * distance for number in range(first, first + 2 * _TICKS + 1))
        ticks = [value for value in found if value <= self.most]
        return list(zip(ticks, tick_texts(ticks, distance), strict=True))


def _grid(across: _Axis, up: _Axis) -> Iterator[str]:
    for value, text in up.ticks():
        y = up.place(value)
        yield f'<line class="grid" x1="{across.first}" x2="{across.last}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{across.first - _GAP}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
    for value, text in across.ticks():
        x = across.place(value)
        yield f'<text x="{x:.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{text}</text>'


def _width(texts: Sequence[str]) -> int:
    return max(map(len, texts)) * _CHARACTER


def _restarts(across: _Axis, restarts: Sequence[int]) -> Iterator[str]:
    for step in restarts:
        if across.least <= step <= across.most:
            x = across.place(step)
            yield f'<line class="restart" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'


def _colour(number: int) -> str:
    return f"c{number % COLOURS + 1}"


_MOST_POINTS = 400
"""The largest number of points of a curve. A drawing is some 600 pixels wide."""
_MOST_OPTIONS = 500


def run_page(run: Run, sentence: str, saved: datetime) -> str:
    """Return a page that needs no other file, runs no script, and opens without a network.

    Values whose names look secret are hidden in the job and its options. The program's last lines are as it wrote
    them. sentence: the state of the run. saved: the time of the page, with a time zone.
    """
    if run.job is not None:
        run = replace(run, job=masked(run.job))
    return html.page(f"{run.name}: a run of dtj", run.name, _parts(run, sentence, saved))


def _parts(run: Run, sentence: str, saved: datetime) -> Iterator[str]:
    status = run.status or JobStatus()
    phase = f"{status.phase.value}. " if status.phase else ""
    yield f'<p class="sentence">{said(phase + sentence)}</p>'
    if status.failure and status.phase is not Phase.SUCCEEDED:
        yield _failure(status.failure)
    yield _facts(run, status, saved)
    yield "<h2>Curves</h2>"
    yield from _curves(run)
    if run.rows or run.utilisation:
        report = make_report([run])
        yield "<h2>Figures</h2>"
        yield from map(html.table, tables_of(report))
        yield notes_of(report)
    yield from _job(run)


def _failure(failure: Failure) -> str:
    said_of_it = ": ".join(
        filter(None, (failure.failure_class, failure.source, failure.node, failure.message))
    )
    lines = "\n".join(failure.last_log_lines or ())
    shown = f'\n<pre tabindex="0" aria-label="Last lines">{said(lines)}</pre>' if lines else ""
    return f'<section class="failure">\n<h2>Failure</h2>\n<p>{said(said_of_it)}</p>{shown}\n</section>'


def _facts(run: Run, status: JobStatus, saved: datetime) -> str:
    metadata, spec = ((run.job or {}).get(name) or {} for name in ("metadata", "spec"))
    stored = status.artifacts
    checkpoint = stored.checkpoint if stored else None
    facts = {
        "Namespace": metadata.get("namespace"),
        "Strategy": spec.get("strategy"),
        "Image": spec.get("image"),
        "Attempt": status.attempt or None,
        "Restarts": status.restarts.by_cause or None,
        "Created": metadata.get("creationTimestamp"),
        "Started": status.start_time,
        "Ended": status.completion_time,
        "Bucket": stored.uri if stored else None,
        "Checkpoint": checkpoint.uri if checkpoint else None,
        "Model": stored.model if stored else None,
        "Page saved": f"{saved.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
    }
    return (
        "<dl>\n"
        + "\n".join(
            f"<div><dt>{said(name)}</dt><dd>{said(value)}</dd></div>"
            for name, value in facts.items()
            if value is not None
        )
        + "\n</dl>"
    )


def _curves(run: Run) -> Iterator[str]:
    rows = (
        sorted([*run.rows, *run.evaluator_rows], key=lambda row: row.time) if run.evaluator_rows else run.rows
    )
    curves, restarts = curves_of(rows, _MOST_POINTS), restarts_of(run.rows)
    if not curves:
        why = f": {run.unread}" if run.unread else ""
        yield f"<p>There are no metrics of the program{said(why)}.</p>"
        return
    if restarts:
        steps = ", ".join(map(str, restarts[:20])) + (", …" if len(restarts) > 20 else "")
        yield f"<p>Dashed vertical lines: restarts, at step {steps}.</p>"
    yield '<div class="plots">'
    by_measure = sorted(curves, key=lambda curve: [each.measure for each in curves].index(curve.measure))
    for measure, group in groupby(by_measure, lambda curve: curve.measure):
        yield _plot(measure, [*group], restarts)
    yield "</div>"


def _plot(measure: str, curves: Sequence[MeasuredCurve], restarts: Sequence[int]) -> str:
    picture = drawing(measure, {curve.kind: curve.points for curve in curves}, restarts)
    rows = []
    for number, curve in enumerate(curves):
        values = [value for _, value, _ in curve.points]
        step, last, _ = curve.points[-1]
        numbers = map(number_text, (step, last, min(values), max(values)))
        cells = "".join(f"<td>{cell}</td>" for cell in numbers)
        rows.append(f'<tr><th scope="row">{key(number)} {said(curve.kind)}</th>{cells}</tr>')
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("curve", "step", "last", "least", "greatest"))
    table = html.framed(
        f"Values of {measure}",
        f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>",
    )
    return f"<section>\n<h3>{said(measure)}</h3>\n{picture}\n{table}\n</section>"


def _job(run: Run) -> Iterator[str]:
    if run.job is None:
        return
    options = options_of_manifest(run.job)
    if options:
        yield "<h2>Options</h2>"
        rows = [(f"--{name}", value) for name, value in list(options.items())[:_MOST_OPTIONS]]
        yield html.table(Table("Options of the program", ["option", "value"], rows), words=True)
    yield "<h2>YAML</h2>"
    yield f'<pre tabindex="0" aria-label="YAML of the job">{said(dump(masked_job(run.job)))}</pre>'

"""A run as one HTML file to send: its state, failure, curves, tables, options and YAML. All functions are pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby

from dtj.api.masking import masked, written_job
from dtj.api.program_words import options_of_manifest
from dtj.api.status import Failure, JobStatus, Phase
from dtj.api.yaml_text import dump
from dtj.report import html
from dtj.report.curves import MeasuredCurve, curves_of, restarts_of
from dtj.report.documents import notes_of
from dtj.report.drawing import drawing, key
from dtj.report.html import said
from dtj.report.number_text import number_text
from dtj.report.report import make_report
from dtj.report.run import Run
from dtj.report.tables import Table, tables_of

_MOST_POINTS = 400
"""Points of a curve. A drawing is some 600 pixels wide."""
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
        "Restarts": status.restarts.of_training or None,
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
    yield f'<pre tabindex="0" aria-label="YAML of the job">{said(dump(written_job(run.job)))}</pre>'

"""A report as Markdown, and as one HTML page that needs no other file."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from html import escape

from dtj.report import html
from dtj.report.report import Report
from dtj.report.tables import Table, tables_of

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_SHOWN = {
    "time-and-accuracy.png": "bars of each run's time and accuracy, whose numbers the tables have",
    "over-time.png": "examples a second and training loss of each run over the time",
    "speed-up.png": "bars of each run's speed-up and efficiency, whose numbers the tables have",
}
_MARKDOWN_SYNTAX = re.compile(r"([\\`*\[\]|])")


def as_markdown(report: Report, pictures: Sequence[str] = ()) -> str:
    """Return tables and notes as Markdown. pictures: names of files in the folder of the Markdown file."""
    parts = []
    for table in tables_of(report):
        parts.append(f"## {table.title}\n\n{_markdown_table(table)}")
    parts += [f"![{_plain(name)}]({name})" for name in pictures]
    parts.append("\n".join(f"- {_as_text(note)}" for note in report.notes))
    return "\n\n".join(parts) + "\n"


def as_html(report: Report, pictures: Mapping[str, bytes]) -> str:
    """Return an HTML page with tables, pictures and notes, which refers to no other file.

    pictures: PNG content by file name.
    """
    parts = [html.table(table) for table in tables_of(report)]
    for name, content in pictures.items():
        encoded = base64.b64encode(content).decode()
        parts.append(
            f'<p><img alt="{html.said(alternative(name))}" src="data:image/png;base64,{encoded}"></p>'
        )
    parts.append(notes_of(report))
    title = ", ".join(entry.label for entry in report.runs[:4]) + (", …" if len(report.runs) > 4 else "")
    return html.page(f"dtj report: {title}", "Training runs", parts)


def notes_of(report: Report) -> str:
    """Return the notes as HTML."""
    notes = "\n".join(f"<li>{html.said(note)}</li>" for note in report.notes)
    return f"<ul>\n{notes}\n</ul>"


def _markdown_table(table: Table) -> str:
    headings, *rows = ([_as_text(cell) for cell in row] for row in (table.headings, *table.rows))
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, ["---"] * len(headings), *rows))


def _as_text(text: str) -> str:
    """Return Markdown that shows the text on one line and begins no cell, element, link or picture."""
    return _MARKDOWN_SYNTAX.sub(r"\\\1", escape(_CONTROLS.sub(" ", text), quote=False))


def alternative(name: str) -> str:
    """Return what a picture shows, in words. name: of its file."""
    return _SHOWN.get(name, _plain(name))


def _plain(name: str) -> str:
    return name.removesuffix(".png").replace("-", " ")

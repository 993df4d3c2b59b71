"""A report as Markdown, and as one HTML page that needs no other file."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from html import escape

from dtj.report.report import Report
from dtj.report.tables import Table, tables_of

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_MARKDOWN_SYNTAX = re.compile(r"([\\`*\[\]|])")
_STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --page: #ffffff; --line: #d0d7de; --head: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --page: #0d1117; --line: #30363d; --head: #161b22; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
  max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border: 1px solid var(--line); padding: .3rem .6rem; text-align: right; white-space: nowrap; }
th { background: var(--head); }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; background: #ffffff; border-radius: 6px; }
"""


def as_markdown(report: Report, pictures: Sequence[str] = ()) -> str:
    """Return tables and notes as Markdown. pictures: names of files in the folder of the Markdown file."""
    parts = []
    for table in tables_of(report):
        parts.append(f"## {table.title}\n\n{_markdown_table(table)}")
    parts += [f"![{_alt(name)}]({name})" for name in pictures]
    parts.append("\n".join(f"- {_as_text(note)}" for note in report.notes))
    return "\n\n".join(parts) + "\n"


def as_html(report: Report, pictures: Mapping[str, bytes]) -> str:
    """Return an HTML page with tables, pictures and notes, which refers to no other file.

    pictures: PNG content by file name.
    """
    parts = []
    for table in tables_of(report):
        parts.append(f"<h2>{escape(table.title)}</h2>\n<div class='wide'>{_html_table(table)}</div>")
    for name, content in pictures.items():
        encoded = base64.b64encode(content).decode()
        parts.append(f'<p><img alt="{escape(_alt(name))}" src="data:image/png;base64,{encoded}"></p>')
    notes = "\n".join(f"<li>{escape(note)}</li>" for note in report.notes)
    parts.append(f"<ul>\n{notes}\n</ul>")
    title = escape(
        ", ".join(entry.label for entry in report.runs[:4]) + (", …" if len(report.runs) > 4 else "")
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>dtj report: {title}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>Training runs</h1>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _markdown_table(table: Table) -> str:
    headings, *rows = ([_as_text(cell) for cell in row] for row in (table.headings, *table.rows))
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, ["---"] * len(headings), *rows))


def _as_text(text: str) -> str:
    """Return Markdown that shows the text on one line and begins no cell, element, link or picture."""
    return _MARKDOWN_SYNTAX.sub(r"\\\1", escape(_CONTROLS.sub(" ", text), quote=False))


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in table.headings)
    body = "\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _alt(name: str) -> str:
    return name.removesuffix(".png").replace("-", " ")

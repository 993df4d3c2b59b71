"""A report as Markdown, and as one HTML page that needs no other file."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape

from dtj.report.report import Report
from dtj.report.tables import Table, tables_of

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
    """Tables and notes; `pictures` are the names of files beside it."""
    parts = []
    for table in tables_of(report):
        parts.append(f"## {table.title}\n\n{_markdown_table(table)}")
    parts += [f"![{_alt(name)}]({name})" for name in pictures]
    parts.append("\n".join(f"- {note}" for note in report.notes))
    return "\n\n".join(parts) + "\n"


def as_html(report: Report, pictures: Mapping[str, bytes]) -> str:
    """A page with tables, pictures (PNG by file name) and notes; it refers to nothing outside of itself."""
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
    rows = [table.headings, ["---"] * len(table.headings), *table.rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in table.headings)
    body = "\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _alt(name: str) -> str:
    return name.removesuffix(".png").replace("-", " ")

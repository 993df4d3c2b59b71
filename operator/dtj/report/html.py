"""HTML pages that refer to no other file and run nothing: their frame, tables, and texts from outside."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from html import escape

from dtj.report.tables import Table

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --page: #ffffff; --line: #767f8a; --grid: #d0d7de;
  --head: #f6f8fa; --wrong: #a3161b; --c1: #0b5cad; --c2: #b3470b; --c3: #12702f; --c4: #8a1f8a; --c5: #7a6200;
  --c6: #a3161b; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --page: #0d1117; --line: #8b95a1; --grid: #30363d; --head: #161b22; --wrong: #ff9a94;
    --c1: #74b5ff; --c2: #ffab73; --c3: #86dba0; --c4: #eba0eb; --c5: #e6cc66; --c6: #ff9a94; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
  max-width: 75rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
.wide, pre { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .8rem 0 .3rem; font-weight: 600; white-space: nowrap; }
th, td { border: 1px solid var(--grid); padding: .3rem .6rem; text-align: right; white-space: nowrap; }
th { background: var(--head); }
tbody th { font-weight: 400; }
th:first-child, td:first-child, .words td { text-align: left; }
.words td { white-space: normal; }
img { max-width: 100%; background: #ffffff; border-radius: 6px; }
pre { padding: .6rem; border-radius: 6px; background: var(--head); }
.sentence { font-size: 1.15rem; }
.failure { border: 1px solid var(--wrong); border-radius: 6px; padding: 0 1rem 1rem; }
.failure h2 { color: var(--wrong); }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 16rem), 1fr)); gap: .5rem 1rem; }
dd { margin: 0; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1.5rem; }
.plots section { min-width: 0; }
svg { width: 100%; height: auto; }
svg text { fill: var(--text); font: 11px system-ui, sans-serif; }
.grid { stroke: var(--grid); }
.restart { stroke: var(--line); stroke-dasharray: 4 4; }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
circle { fill: none; stroke-width: 3; }
.c1 { stroke: var(--c1); } .c2 { stroke: var(--c2); } .c3 { stroke: var(--c3); }
.c4 { stroke: var(--c4); } .c5 { stroke: var(--c5); } .c6 { stroke: var(--c6); }
.key { width: 2.5rem; height: .8rem; vertical-align: middle; }
@media print { body { max-width: none; } pre { white-space: pre-wrap; } }
"""
POLICY = (
    "default-src 'none'; "
    f"style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "img-src data:; base-uri 'none'; form-action 'none'"
)
"""The Content-Security-Policy of a page: a browser applies only the page's own style and shows its own pictures."""


def said(text: object) -> str:
    """Escape a text for HTML, also for quoted attributes. Replace each control character by U+FFFD."""
    return escape(_CONTROLS.sub("\ufffd", str(text)))


def page(title: str, heading: str, parts: Iterable[str]) -> str:
    """Return a page. title, heading: text. parts: HTML."""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{said(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{said(heading)}</h1>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def table(of: Table, *, words: bool = False) -> str:
    """Return a table that scrolls in its own frame. words: whether the cells are texts rather than numbers."""
    head = "".join(f'<th scope="col">{said(heading)}</th>' for heading in of.headings)
    body = "\n".join(
        "<tr>"
        + "".join(f'<th scope="row">{said(cell)}</th>' for cell in row[:1])
        + "".join(f"<td>{said(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in of.rows
    )
    kind = ' class="words"' if words else ""
    return framed(
        of.title,
        f"<table{kind}>\n<caption>{said(of.title)}</caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody>\n</table>",
    )


def framed(name: str, content: str) -> str:
    """Return wide HTML in a frame that scrolls, also by keyboard. name: of the frame, text."""
    return f'<div class="wide" role="region" aria-label="{said(name)}" tabindex="0">{content}</div>'

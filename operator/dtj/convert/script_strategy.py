"""The strategy of a training script, by the names in its syntax tree. The script never runs."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dtj.api.errors import Unusable
from dtj.api.shown import enumerated
from dtj.api.strategies import RULES
from dtj.api.strategy import ScriptMark

_MOST_BYTES = 1024**2
"""The largest size of a script. Its syntax tree takes a hundred times as much memory."""
_LONGEST_LINE = 80


@dataclass(frozen=True)
class Found:
    """The strategy of a script, and the line that decided."""

    strategy: str
    replicas: Mapping[str, int]
    """The number of pods of each role besides the workers."""
    line: int | None = None
    """The number of the line, from 1; None if the user named the strategy, and no line has a mark of it."""
    text: str = ""
    """The line, without spaces around it."""


def strategy_of(source: bytes, name: str) -> Found:
    """Return the strategy that a script is written for.

    name: of the script, for messages. Raises Unusable if no line shows a strategy, or if lines show several ones.
    """
    marked = _marked(source, name)
    strategies = list(dict.fromkeys(found.strategy for found in marked))
    if len(strategies) == 1:
        return _first(marked)
    option = f"give --strategy {enumerated(RULES, 'or')}"
    if not marked:
        raise Unusable(f"{name} imports no library of distributed training that shows the strategy", option)
    lines = (_first([found for found in marked if found.strategy == each]) for each in strategies)
    told = "; ".join(f"line {found.line}, {found.text}: {found.strategy}" for found in lines)
    raise Unusable(f"{name} uses libraries of several strategies: {told}", option)


def found_in(strategy: str, source: bytes, name: str) -> Found:
    """Return what a script needs under a strategy that the user named. The script may be no Python at all."""
    try:
        marked = [found for found in _marked(source, name) if found.strategy == strategy]
    except Unusable:
        marked = []
    if marked:
        return _first(marked)
    marks = RULES[strategy].script_marks
    return Found(strategy, marks[0].replicas if marks else {})


def _first(marked: list[Found]) -> Found:
    """Return the first line with a mark. If a script can train in several forms, prefer the strategy's first mark."""
    usual = {found.strategy: RULES[found.strategy].script_marks[0].replicas for found in marked}
    return next((found for found in marked if found.replicas == usual[found.strategy]), marked[0])


def _marked(source: bytes, name: str) -> list[Found]:
    """Return each line with a mark of a strategy. Raises Unusable for a script that can't be read."""
    if len(source) > _MOST_BYTES:
        raise Unusable(f"{name} has {len(source):,} bytes, and the maximum for a script is {_MOST_BYTES:,}")
    try:
        with warnings.catch_warnings():
            # Hide Python's warnings about the script, such as invalid escapes.
            warnings.simplefilter("ignore")
            tree = ast.parse(source, name)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        why = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
        raise Unusable(
            f"{name}{where}: can't be read as Python: {why}", f"give --strategy {enumerated(RULES, 'or')}"
        ) from None
    lines = source.decode("utf-8", "replace").split("\n")
    found = [
        Found(strategy, mark.replicas, line, _short(lines[line - 1] if line <= len(lines) else ""))
        for line, used in _names(tree)
        for strategy, mark in _marks_of(used)
    ]
    return sorted(found, key=lambda each: each.line or 0)


def _marks_of(used: str) -> Iterator[tuple[str, ScriptMark]]:
    for rules in RULES.values():
        for mark in rules.script_marks:
            if used == mark.name or used.startswith(f"{mark.name}."):
                yield rules.name, mark


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the full dotted name of each import, and of each attribute of what is imported."""
    meaning: dict[str, str] = {}
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
                top = alias.name.partition(".")[0]
                meaning[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield node.lineno, full
                meaning[alias.asname or alias.name] = full
    for node in nodes:
        if isinstance(node, ast.Attribute) and (dotted := _dotted(node, meaning)):
            yield node.lineno, dotted


def _dotted(node: ast.Attribute, meaning: Mapping[str, str]) -> str | None:
    parts: list[str] = []
    inner: ast.expr = node
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    if not isinstance(inner, ast.Name) or inner.id not in meaning:
        return None
    return ".".join([meaning[inner.id], *reversed(parts)])


def _short(line: str) -> str:
    text = " ".join(line.split())
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}…"

"""`python -m tests.bounds`: write docs/security/growth.md's table from the tests that hold its rows.

A test that shows what bounds something carries the row:

    @pytest.mark.bound("operator", "Who may create jobs", "the status, by what it quotes", "16 KiB")

in: the program that it grows in. by: who can make it grow. what: what grows. bound: what bounds it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/security/growth.md"
BEGIN = "<!-- python -m tests.bounds: begin -->\n"
END = "<!-- python -m tests.bounds: end -->\n"
PROGRAMS = ("operator", "webhook", "metrics server", "dtj ui", "agent", "dtj run", "dtj serve")


@dataclass(frozen=True)
class Row:
    """What can grow, and the test that shows its bound."""

    program: str
    by: str
    what: str
    bound: str
    test: str
    """Path and name, as pytest takes them."""

    def __str__(self) -> str:
        path, _, name = self.test.partition("::")
        return f"| {self.what} | {self.by} | {self.bound} | [{name}](../../{path}) |"


def rows(folder: Path = ROOT / "tests") -> list[Row]:
    """The rows of all tests. Raises ValueError where a row is not four texts, or of no known program."""
    found = [row for path in sorted(folder.rglob("test_*.py")) for row in _of(path)]
    for row in found:
        if row.program not in PROGRAMS:
            raise ValueError(f"{row.test}: {row.program!r} must be one of {', '.join(PROGRAMS)}")
    return sorted(found, key=lambda row: (PROGRAMS.index(row.program), row.by, row.what, row.test))


def table(found: list[Row]) -> str:
    """The rows as Markdown, a section for each program."""
    sections = []
    for program in PROGRAMS:
        lines = [str(row) for row in found if row.program == program]
        if lines:
            head = "| what grows | who makes it grow | what bounds it | test |\n| --- | --- | --- | --- |"
            sections.append("\n".join([f"## {_title(program)}\n", head, *lines]))
    return "\n" + "\n\n".join(sections) + "\n\n"


def page(text: str, found: list[Row]) -> str:
    """The page with its table made anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table(found) + END + after


def _title(program: str) -> str:
    return f"`{program}`" if program.startswith("dtj ") else program.capitalize()


def _of(path: Path) -> Iterator[Row]:
    text = path.read_text()
    if "mark.bound(" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.bound":
                    test = f"{path.relative_to(ROOT)}::{node.name}"
                    words = [ast.literal_eval(word) for word in mark.args]
                    if len(words) != 4 or not all(isinstance(word, str) for word in words):
                        raise ValueError(f"{test}: a bound is four texts: program, by, what, bound")
                    yield Row(*words, test)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(), rows()))

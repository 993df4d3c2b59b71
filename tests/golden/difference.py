"""The expected objects of a job as the difference from those of another job: `expected.diff`.

One job of each strategy has its objects whole, in `expected.yaml`. Another job's file has a section for each object,
in the form of `diff -u`: the object that this one starts from, and what differs. An object starts from the one that
is most alike: an object of a whole job, with this job's name and uid in place of the other's, or one of this job
that stands before it. So worker 1 is worker 0 with another index.

`python -m tests.golden.difference CASE` prints the whole objects of a case.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

HERE = Path(__file__).parent
WHOLE = ("small", "parameter-server", "torch", "mpijob")
CONTEXT = 1
"""Lines around a change."""
_SEPARATOR = "---\n"
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@\n")


class Object(NamedTuple):
    """An object as YAML."""

    origin: str
    """Its case, its kind and its name; without the case where it is one of the same job."""
    text: str


def whole_text(case: Path) -> str:
    """All expected objects of a case, as YAML."""
    if case.name in WHOLE:
        return (case / "expected.yaml").read_text()
    return _SEPARATOR.join(_apply((case / "expected.diff").read_text(), _whole_objects(case)))


def write(case: Path, text: str) -> None:
    """Make these the expected objects of a case."""
    if case.name in WHOLE:
        (case / "expected.yaml").write_text(text)
        return
    before, sections = _whole_objects(case), []
    for each in _split(text):
        title = _title(each)
        start = min(before, key=lambda other: len(_lines_between(other.text, each)))
        sections += [f"--- {start.origin}\n", f"+++ {title}\n", *_lines_between(start.text, each)]
        before.append(Object(title, each))
    (case / "expected.diff").write_text("".join(sections))


def _whole_objects(case: Path) -> list[Object]:
    """The objects that this case's may start from, as if they were of its job."""
    to = yaml.safe_load((case / "job.yaml").read_text())["metadata"]
    found = []
    for name in WHOLE:
        of = yaml.safe_load((HERE / name / "job.yaml").read_text())["metadata"]
        for text in _split((HERE / name / "expected.yaml").read_text()):
            renamed = text.replace(of["name"], to["name"]).replace(of["uid"], to["uid"])
            found.append(Object(f"{name}: {_title(text)}", renamed))
    return found


def _split(text: str) -> list[str]:
    return re.split(rf"^{_SEPARATOR}", text, flags=re.MULTILINE)


def _title(text: str) -> str:
    kind = re.search(r"^kind: (.*)$", text, re.MULTILINE)
    name = re.search(r"^  name: (.*)$", text, re.MULTILINE)
    assert kind, text
    assert name, text
    return f"{kind[1]} {name[1]}"


def _lines_between(start: str, end: str) -> list[str]:
    return list(difflib.unified_diff(start.splitlines(True), end.splitlines(True), n=CONTEXT))[2:]


def _apply(difference: str, before: list[Object]) -> Iterator[str]:
    known = dict(before)
    for section in re.split(r"^--- ", difference, flags=re.MULTILINE)[1:]:
        origin, title, *changes = section.splitlines(True)
        text = "".join(_patched(known[origin.rstrip("\n")].splitlines(True), changes))
        known[title.removeprefix("+++ ").rstrip("\n")] = text
        yield text


def _patched(lines: list[str], changes: list[str]) -> Iterator[str]:
    at = 0
    for change in changes:
        if hunk := _HUNK.fullmatch(change):
            # A hunk that takes nothing names the line before it.
            until = int(hunk[1]) - (hunk[2] != "0")
            yield from lines[at:until]
            at = until
            continue
        kind, line = change[0], change[1:]
        if kind != "+":
            assert lines[at] == line, f"{line!r} is not what the difference starts from: {lines[at]!r}"
            at += 1
        if kind != "-":
            yield line
    yield from lines[at:]


if __name__ == "__main__":
    sys.stdout.write(whole_text(HERE / sys.argv[1]))

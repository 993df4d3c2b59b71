"""What `make test` keeps in build/test: seconds of each stage and of the slowest tests, and the tests that failed.

tests/times.md is the budget: the processor seconds of each stage, and of the tests that need most. `make test` prints
what it took beside them. `make times` writes the file anew from the last run.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from tests import processor_time

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build/test"
BUDGET = ROOT / "tests/times.md"
PROCESSOR = "processor"
"""The property of a test in pytest's JUnit report."""
_STAGES = "stages.jsonl"
SLOWEST = 40
GREW_MOST = 10
BUDGET_FROM = 2.0
"""Processor seconds from which on a test has a line in the budget. A test without one is said to have had so many."""
MESSAGE = 1500
"""Characters of a failure's message that are shown."""


@dataclass(frozen=True)
class StageTime:
    """A part of the run; other stages may run beside it."""

    name: str
    begun: float
    """Unix time."""
    seconds: float
    processor: float | None = None
    """Processor seconds, where the machine counts them."""


@dataclass(frozen=True)
class TestTime:
    """A test with its setup and teardown, as pytest's JUnit report has it."""

    stage: str
    name: str
    seconds: float
    processor: float
    """Seconds of pytest's process and of its children that have ended; a pod's are not among them."""


@contextmanager
def timed(
    name: str, folder: Path = FOLDER, used: Callable[[], float | None] = processor_time.of_this_group
) -> Iterator[None]:
    """Note the seconds of the block as those of a stage, also when the block fails.

    used: the stage's processor seconds so far.
    """
    begun, clock, before = time.time(), time.monotonic(), used()
    try:
        yield
    finally:
        after = used()
        processor = None if after is None else round(after - (before or 0.0), 1)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / _STAGES).open("a") as file:
            stage = StageTime(name, begun, round(time.monotonic() - clock, 1), processor)
            file.write(json.dumps(asdict(stage)) + "\n")


def report_file(stage: str, folder: Path = FOLDER) -> Path:
    """Where pytest writes the JUnit report of a stage."""
    return folder / f"{stage}.xml"


def stages(folder: Path = FOLDER) -> list[StageTime]:
    """The stages that have ended, in the order in which they began."""
    lines = (folder / _STAGES).read_text().splitlines() if (folder / _STAGES).exists() else []
    return sorted((StageTime(**json.loads(line)) for line in lines), key=lambda stage: stage.begun)


def cases(folder: Path = FOLDER) -> list[TestTime]:
    """The tests of all stages that left a report, the slowest first."""
    found = [
        TestTime(stage, _name(case), float(case.get("time", "0")), _processor(case))
        for stage, case in _reported(folder)
    ]
    return sorted(found, key=lambda case: -case.seconds)


def failures(folder: Path = FOLDER) -> list[str]:
    """A line for each test that failed or could not begin: stage, name and the beginning of the message."""
    return [
        f"{stage}  {_name(case)}  {' '.join(fault.get('message', '').split())[:MESSAGE]}"
        for stage, case in _reported(folder)
        for fault in case
        if fault.tag in {"failure", "error"}
    ]


def table(folder: Path = FOLDER, budget: Path = BUDGET) -> str:
    """Stages, beside the budget, and slowest tests, for people."""
    all_stages = stages(folder)
    begun = min((stage.begun for stage in all_stages), default=0.0)
    allowed, _ = read_budget(budget)
    lines = ["", f"{'stage':<24}{'from':>8}{'to':>8}{'seconds':>9}{'processor':>11}{'budget':>8}"]
    for stage in all_stages:
        processor, limit = (_whole(value) for value in (stage.processor, allowed.get(stage.name)))
        end = stage.begun - begun + stage.seconds
        lines.append(
            f"{stage.name:<24}{stage.begun - begun:8.0f}{end:8.0f}{stage.seconds:9.0f}{processor:>11}{limit:>8}"
        )
    slowest = cases(folder)[:SLOWEST]
    lines += ["", f"the {len(slowest)} slowest tests, with setup and teardown, and their processor seconds:"]
    lines += [
        f"{case.seconds:8.1f} s {case.processor:7.1f}  {case.stage:<14} {case.name}" for case in slowest
    ]
    return "\n".join(lines)


def growth(folder: Path = FOLDER, budget: Path = BUDGET) -> list[str]:
    """Lines of the tests that need most processor seconds above their budget."""
    _, allowed = read_budget(budget)
    grown = [(case.processor - allowed.get(case.name, BUDGET_FROM), case) for case in cases(folder)]
    most = sorted((each for each in grown if each[0] > 0), key=lambda each: -each[0])[:GREW_MOST]
    return [
        "",
        f"the {len(most)} tests that grew most above {budget.name}, in processor seconds:",
        *(
            f"{more:+8.1f} to {case.processor:6.1f}  {case.stage:<14} {case.name}" for more, case in most
        ),
    ]  # fmt: skip


def read_budget(file: Path = BUDGET) -> tuple[dict[str, float], dict[str, float]]:
    """Processor seconds by stage and by test; empty without a file."""
    text = file.read_text() if file.exists() else ""
    stages_table, _, tests_table = text.partition("| test |")
    return _rows(stages_table), _rows(tests_table)


def _rows(text: str) -> dict[str, float]:
    return {row[1]: float(row[2]) for row in _ROW.finditer(text)}


_ROW = re.compile(r"^\| `(.+)` \| ([\d.]+) \|", re.MULTILINE)


def budget_text(folder: Path = FOLDER) -> str:
    """The budget, as the run in the folder took it."""
    by_stage = [stage for stage in stages(folder) if stage.processor is not None]
    by_test = sorted(
        (case for case in cases(folder) if case.processor >= BUDGET_FROM), key=lambda case: case.name
    )
    return "\n".join(
        [
            "# The budget of `make test`",
            "",
            "Processor seconds on a machine of two cores, with warm caches and nothing beside. A change that adds",
            "tests takes away as much. `make test` prints what each stage took beside these figures, and names the",
            "tests that grew most. `make times` writes this file from the last run.",
            "",
            "| stage | processor | wall |",
            "| --- | --- | --- |",
            *(f"| `{stage.name}` | {stage.processor:.0f} | {stage.seconds:.0f} |" for stage in by_stage),
            "",
            f"Tests of {BUDGET_FROM:.0f} processor seconds and more, without the seconds of pods:",
            "",
            "| test | processor |",
            "| --- | --- |",
            *(f"| `{case.name}` | {case.processor:.1f} |" for case in by_test),
            "",
        ]
    )  # fmt: skip


def _whole(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.0f}"


def _reported(folder: Path) -> Iterator[tuple[str, ET.Element]]:
    for file in sorted(folder.glob("*.xml")):
        for case in ET.parse(file).iter("testcase"):
            yield file.stem, case


def _processor(case: ET.Element) -> float:
    found = case.find(f"properties/property[@name='{PROCESSOR}']")
    return 0.0 if found is None else float(found.get("value", "0"))


def _name(case: ET.Element) -> str:
    return f"{case.get('classname', '')}::{case.get('name', '')}"


def main() -> int:
    """Write the budget."""
    if not stages():
        print(f"{FOLDER} has no stages: run `make test` first", file=sys.stderr)
        return 1
    BUDGET.write_text(budget_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What `make test` keeps in build/test: seconds of each stage and of the slowest tests, and the tests that failed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

FOLDER = Path(__file__).parents[1] / "build/test"
_STAGES = "stages.jsonl"
SLOWEST = 40
MESSAGE = 1500
"""Characters of a failure's message that are shown."""


@dataclass(frozen=True)
class StageTime:
    """A part of the run; other stages may run beside it."""

    name: str
    begun: float
    """Unix time."""
    seconds: float


@dataclass(frozen=True)
class TestTime:
    """A test with its setup and teardown, as pytest's JUnit report has it."""

    stage: str
    name: str
    seconds: float


@contextmanager
def timed(name: str, folder: Path = FOLDER) -> Iterator[None]:
    """Note the seconds of the block as those of a stage, also when the block fails."""
    begun, clock = time.time(), time.monotonic()
    try:
        yield
    finally:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / _STAGES).open("a") as file:
            stage = StageTime(name, begun, round(time.monotonic() - clock, 1))
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
    found = [TestTime(stage, _name(case), float(case.get("time", "0"))) for stage, case in _reported(folder)]
    return sorted(found, key=lambda case: -case.seconds)


def failures(folder: Path = FOLDER) -> list[str]:
    """A line for each test that failed or could not begin: stage, name and the beginning of the message."""
    return [
        f"{stage}  {_name(case)}  {' '.join(fault.get('message', '').split())[:MESSAGE]}"
        for stage, case in _reported(folder)
        for fault in case
        if fault.tag in {"failure", "error"}
    ]


def _reported(folder: Path) -> Iterator[tuple[str, ET.Element]]:
    for file in sorted(folder.glob("*.xml")):
        for case in ET.parse(file).iter("testcase"):
            yield file.stem, case


def _name(case: ET.Element) -> str:
    return f"{case.get('classname', '')}::{case.get('name', '')}"


def table(folder: Path = FOLDER) -> str:
    """Stages and slowest tests, for people."""
    all_stages = stages(folder)
    begun = min((stage.begun for stage in all_stages), default=0.0)
    lines = ["", f"{'stage':<24}{'from':>8}{'to':>8}{'seconds':>9}"]
    lines += [
        f"{stage.name:<24}{stage.begun - begun:8.0f}{stage.begun - begun + stage.seconds:8.0f}{stage.seconds:9.0f}"
        for stage in all_stages
    ]
    slowest = cases(folder)[:SLOWEST]
    lines += ["", f"the {len(slowest)} slowest tests, with setup and teardown:"]
    lines += [f"{case.seconds:8.1f} s  {case.stage:<14} {case.name}" for case in slowest]
    return "\n".join(lines)

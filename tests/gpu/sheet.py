"""The rows of a check: figures, bounds and verdicts, as JSON and as a Markdown table."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

PASSED, FAILED, NEEDS_GPU, NO_TIME = "passed", "failed", "needs a GPU", "no time left"
_DIGITS = 4


@dataclass
class Sheet:
    """One row."""

    name: str
    figures: dict[str, object] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    """What does not hold. The row fails if there are any."""
    instead: str = ""
    """Why the row did not run; empty if it ran."""
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """Return the verdict of the row."""
        return self.instead or (FAILED if self.faults else PASSED)

    def say(self, name: str, value: object) -> None:
        """Note a figure."""
        self.figures[name] = value

    def hold(
        self, name: str, value: float, *, at_least: float | None = None, at_most: float | None = None
    ) -> None:
        """Note a figure that has a bound."""
        self.say(name, value)
        if at_least is not None and not value >= at_least:
            self.faults.append(f"{name} is {_text(value)}, and must be at least {_text(at_least)}")
        if at_most is not None and not value <= at_most:
            self.faults.append(f"{name} is {_text(value)}, and must be at most {_text(at_most)}")

    def require(self, held: object, otherwise: str) -> None:
        """Note what is wrong unless something holds."""
        if not held:
            self.faults.append(otherwise)

    def names(self, words: str, text: str) -> None:
        """Require that a text has these words."""
        self.say("says", words)
        self.require(words in text, f"nothing says {words!r}; the end of the output: …{text[-1500:]}")


def needs_gpu(name: str) -> Sheet:
    """Return the row of a check that this machine can't make."""
    return Sheet(name, instead=NEEDS_GPU)


def good(sheet: Sheet) -> bool:
    """Return whether a row is no reason for a failure of the check."""
    return sheet.verdict in (PASSED, NEEDS_GPU)


def write(folder: Path, machine: dict[str, str], sheets: list[Sheet]) -> None:
    """Write the rows so far as `gpu.json` and `gpu.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{**asdict(sheet), "verdict": sheet.verdict} for sheet in sheets]
    (folder / "gpu.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    (folder / "gpu.md").write_text(markdown(machine, sheets))


def markdown(machine: dict[str, str], sheets: list[Sheet]) -> str:
    """Return the machine and the rows, as a list and a table of Markdown."""
    lines = [*(f"- {name}: {value}" for name, value in machine.items()), ""]
    lines += ["| row | verdict | s | figures |", "| --- | --- | ---: | --- |"]
    for sheet in sheets:
        figures = ", ".join(f"{name} {_text(value)}" for name, value in sheet.figures.items())
        cells = [sheet.name, sheet.verdict, f"{sheet.seconds:.1f}", "; ".join([figures, *sheet.faults])]
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _text(value: object) -> str:
    return f"{value:.{_DIGITS}g}" if isinstance(value, float) else str(value)

"""The table of a chaos run, as Markdown."""

from __future__ import annotations

from dataclasses import dataclass

from tests.cluster.chaos.verdict import Cost

COLUMNS = (
    "fault",
    "strategy",
    "what was hit",
    "outcome",
    "counted",
    "seconds to recover",
    "steps lost",
    "accuracy",
)


@dataclass(frozen=True)
class Row:
    """A fault, a strategy, and how it went."""

    fault: str
    strategy: str
    what: str
    outcome: str
    cost: Cost | None


def table(rows: list[Row]) -> str:
    """The rows below each other, the columns as wide as they have to be."""
    cells = [list(COLUMNS), *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(COLUMNS))]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in cells
    )


def _cells(row: Row) -> list[str]:
    head = [row.fault, row.strategy, row.what, row.outcome]
    if row.cost is None:
        return [*head, "", "", "", ""]
    counted = ", ".join(f"{name} {count}" for name, count in row.cost.restarts.items() if count) or "none"
    return [*head, counted, f"{row.cost.seconds:.1f}", str(row.cost.steps), f"{row.cost.accuracy:.3f}"]

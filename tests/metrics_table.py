"""`make chart`: the table of metrics in docs/monitoring.md, from the metrics of a leading operator."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.unit.support.measured import all_told

PAGE = Path(__file__).parents[1] / "docs/monitoring.md"
_TABLE = re.compile(r"(?<=<!-- metrics -->\n).*?(?=<!-- end of metrics -->)", re.DOTALL)


def with_table(text: str) -> str:
    """The page with the table in its place."""
    table = "\n".join(["| metric | type | labels | |", "| --- | --- | --- | --- |", *_rows()])
    return _TABLE.sub(lambda _: f"\n{table}\n\n", text)


def _rows() -> Iterator[str]:
    for family in sorted(all_told().collect(), key=lambda family: family.name):
        if not family.name.startswith("dtj_"):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")
        shown = ", ".join(f"`{label}`" for label in labels)
        yield f"| `{name}` | {family.type} | {shown} | {family.documentation} |"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))

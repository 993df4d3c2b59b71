"""What a browser draws of a curve and its axes, on a canvas or as SVG: the texts, the curve, and their places."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator

STEPS = [10_000 * step for step in range(1, 101)]
SERIES = {
    "tiny": [1e-6 * (1 + step / 100) for step in range(100)],
    "lr": [5e-5 * (1 - step / 100) for step in range(100)],
    "examplesPerSecond": [12_345.0 + 7 * (step % 10) for step in range(100)],
    "almostEqual": [20_003.0 + step / 100 for step in range(100)],
    "reducedBytesPerSecond": [1.2e8 + 1e6 * (step % 7) for step in range(100)],
    "negative": [-0.3 - step / 1000 for step in range(100)],
    "constant": [0.5] * 100,
    "constantRate": [20_003.0] * 100,
}
"""Values over STEPS, by the name of the measure."""
RECORD = """
const drawings = new WeakMap(), lines = new WeakMap()
const before = (kind, name, then) => {
  const original = kind.prototype[name]
  kind.prototype[name] = function (...given) { then(this, ...given); return original.apply(this, given) }
}
for (const name of ["moveTo", "lineTo"])
  before(Path2D, name, (path, ...point) => lines.set(path, [...(lines.get(path) ?? []), point]))
before(CanvasRenderingContext2D, "clearRect", ({ canvas }) => drawings.set(canvas, { texts: [], points: [] }))
before(CanvasRenderingContext2D, "stroke", ({ canvas }, path) =>
  drawings.get(canvas).points.push(...(lines.get(path) ?? [])))
before(CanvasRenderingContext2D, "fillText", (pen, text, x, y) => {
  const { width } = pen.measureText(text)
  const left = x - (pen.textAlign === "right" ? width : width / 2)
  drawings.get(pen.canvas).texts.push({ text, x, y, left, right: left + width, across: pen.textAlign === "center" })
})
globalThis.onCanvas = (canvas) => ({ ...drawings.get(canvas), width: canvas.width })
"""
"""A script for a page, before it loads."""
_IN_SVG = """(svg) => ({
  width: svg.viewBox.baseVal.width,
  points: [...svg.querySelector("polyline").points].map(({ x, y }) => [x, y]),
  texts: [...svg.querySelectorAll("text")].map((each) => {
    const { x, width } = each.getBBox()
    const [across, y] = [each.getAttribute("text-anchor") === "middle", Number(each.getAttribute("y"))]
    // The middle of a digit lies above the line on which it stands.
    return { text: each.textContent, x: x + width / 2, y: across ? y : y - 4, left: x, right: x + width, across }
  }),
})"""


def check(drawing: Locator, measure: str) -> None:
    """Fail if the texts of the axes of a curve of SERIES are cut, cover each other, or do not say what it has."""
    on_canvas = drawing.evaluate("each => each.tagName") == "CANVAS"
    drawn = drawing.evaluate("canvas => onCanvas(canvas)" if on_canvas else _IN_SVG)
    texts = drawn["texts"]
    assert all(text["left"] >= 0 and text["right"] <= drawn["width"] for text in texts), (measure, texts)
    across = [text for text in texts if text["across"]]
    assert all(text["right"] < after["left"] for text, after in pairwise(across)), (measure, across)
    up = [text for text in texts if not text["across"]]
    steps, values = [x for x, _ in drawn["points"]], [-y for _, y in drawn["points"]]
    _compare([(text["text"], text["x"]) for text in across], steps, STEPS)
    _compare([(text["text"], -text["y"]) for text in up], values, SERIES[measure])


def _compare(texts: Sequence[tuple[str, float]], curve: Sequence[float], data: Sequence[float]) -> None:
    """Read the ends of a curve by the texts of its axis and their places: they are those of the data.

    Within a tenth of a tick: the browser draws whole pixels.
    """
    read = [(float(text.replace(",", "")), place) for text, place in texts]
    assert len(read) >= 2, texts
    (first, begin), (last, end) = read[0], read[-1]
    tick = (last - first) / (len(read) - 1)
    for wanted, place in [*read, (min(data), min(curve)), (max(data), max(curve))]:
        value = first + (place - begin) / (end - begin) * (last - first)
        assert abs(value - wanted) < tick / 10, (texts, wanted)

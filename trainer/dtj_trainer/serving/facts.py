"""What an export writes into model.json: what the training wrote, what the user gave, and what the model shows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dtj_trainer.serving.description import Preprocessing, checked_labels
from dtj_trainer.serving.errors import NotExportable

if TYPE_CHECKING:
    from dtj_trainer.serving.description import Layout, Meaning
    from dtj_trainer.serving.forms import Input
    from dtj_trainer.serving.parity import Comparison

_CHANNELS = (1, 3)


@dataclass(frozen=True)
class Given:
    """What the user says of a model. None and empty: nothing."""

    labels: tuple[str, ...] = ()
    layout: Layout | None = None
    range: tuple[float, float] | None = None
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    meaning: Meaning | None = None
    invert: bool = False


def read_given(
    labels: str | None,
    layout: str | None,
    limits: str | None,
    mean: str | None,
    deviation: str | None,
    meaning: str | None,
    *,
    invert: bool,
) -> Given:
    """Read the options of the command line. Raises NotExportable, which names the option."""
    try:
        names = checked_labels(_names(labels)) if labels else ()
    except (ValueError, OSError) as error:
        raise NotExportable(f"--labels: {error}") from error
    pair = _numbers("--range", limits)
    if pair and len(pair) != 2:
        raise NotExportable(f"--range={limits} has to be two numbers, as 0,1")
    return Given(
        names,
        cast("Layout | None", layout),
        (pair[0], pair[1]) if pair else None,
        _numbers("--mean", mean),
        _numbers("--deviation", deviation),
        cast("Meaning | None", meaning),
        invert,
    )


def _names(labels: str) -> list[str]:
    if "," in labels:
        return [name.strip() for name in labels.split(",")]
    return [line.strip() for line in Path(labels).read_text().splitlines() if line.strip()]


def _numbers(option: str, text: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(number) for number in text.split(",")) if text else ()
    except ValueError as error:
        raise NotExportable(f"{option}={text} has to be numbers, separated by commas") from error


@dataclass(frozen=True)
class Described:
    """What is known before the outputs are computed."""

    known: dict[str, Any]
    preprocessing: Preprocessing | None
    labels: tuple[str, ...]
    meaning: Meaning | None
    range: tuple[float, float] | None
    framework: str
    inputs: tuple[Input, ...]
    classes: int | None

    @property
    def output_name(self) -> str:
        """The name of the model's single output in ONNX."""
        return self.meaning or "output"

    def with_comparison(
        self, comparison: Comparison, *, source: str, opset: int, file: str
    ) -> dict[str, Any]:
        """Return the content of model.json."""
        meaning = self.meaning or ("probabilities" if comparison.probabilities else "logits")
        first = self.inputs[0]
        content = {
            "input": {"dtype": first.dtype, "shape": ["batch", *first.shape]},
            **{name: value for name, value in self.known.items() if name != "export"},  # Of an earlier try.
            "output": {
                "shape": ["batch", self.classes],
                **self.known.get("output", {}),
                "meaning": meaning,
            },
            "onnx": {
                "file": file,
                "from": source,
                "by": self.framework,
                "opset": opset,
                "largestDifference": comparison.largest,
                "examplesCompared": comparison.examples,
            },
        }
        if self.preprocessing:
            content["preprocessing"] = self.preprocessing.to_json()
        if self.labels:
            content["labels"] = list(self.labels)
        return content


def described(
    known: dict[str, Any], given: Given, inputs: tuple[Input, ...], framework: str, classes: int | None
) -> Described:
    """Put together what model.json, the user and the inputs say; the user goes first. Raises NotExportable."""
    labels = given.labels or tuple(known.get("labels") or ())
    if labels and classes is not None and len(labels) != classes:
        raise NotExportable(f"there are {len(labels)} labels, and the model has {classes} classes")
    meaning = given.meaning or known.get("output", {}).get("meaning")
    preprocessing = _preprocessing(known, given, inputs)
    return Described(
        known,
        preprocessing,
        labels,
        meaning if meaning in ("logits", "probabilities") else None,
        preprocessing.range if preprocessing and not preprocessing.mean else None,
        framework,
        inputs,
        classes,
    )


def _preprocessing(known: dict[str, Any], given: Given, inputs: tuple[Input, ...]) -> Preprocessing | None:
    """Return how pictures become inputs; None if the model takes no square pictures, or the range isn't known."""
    limits = given.range or _known_range(known, inputs[0])
    picture = _picture(inputs, given.layout)
    if picture is None or limits is None:
        if given.mean or given.deviation or given.invert or given.range:
            raise NotExportable(
                "--range, --mean, --deviation and --invert are for models with one input of square pictures in 1 or "
                f"3 channels, and need the range; this model takes {', '.join(map(str, inputs))}"
            )
        return None
    size, channels, layout = picture
    found = Preprocessing(size, channels, layout, limits)
    try:
        if known.get("preprocessing"):
            found = replace(Preprocessing.from_json(known["preprocessing"]), range=limits)
        found = replace(
            found,
            mean=given.mean or found.mean,
            deviation=given.deviation or found.deviation,
            invert=given.invert or found.invert,
        )
        found.check()
    except (ValueError, TypeError, KeyError) as error:
        raise NotExportable(f"the preprocessing can't be: {error}") from error
    return found


def _known_range(known: dict[str, Any], first: Input) -> tuple[float, float] | None:
    limits = known.get("preprocessing", {}).get("range") or known.get("input", {}).get("range")
    if limits:
        return float(limits[0]), float(limits[1])
    return (0.0, 255.0) if first.dtype == "uint8" else None


def _picture(inputs: tuple[Input, ...], layout: Layout | None) -> tuple[int, int, Layout] | None:
    """Return size, channels and layout of the pictures that the model takes."""
    if len(inputs) != 1 or len(inputs[0].shape) != 3 or inputs[0].dtype not in ("uint8", "float32"):
        return None
    first, second, last = inputs[0].shape
    found: list[tuple[int, int, Layout]] = []
    if layout != "NHWC" and first in _CHANNELS and second == last:
        found.append((last, first, "NCHW"))
    if layout != "NCHW" and last in _CHANNELS and first == second:
        found.append((first, last, "NHWC"))
    return found[0] if len(found) == 1 else None

"""Compares an ONNX model with the trained model that it was converted from, on random inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnxruntime

from dtj_trainer.serving.errors import NotExportable, first_line

if TYPE_CHECKING:
    from pathlib import Path

    from dtj_trainer.serving.forms import Input, TrainedModel

BATCHES = (1, 2, 7, 32)
TOLERANCE = 1e-4
"""Of an output: absolute, and relative to the largest output of its example, by whose size rounding errors grow."""
_SEED = 20261125


class Comparison(NamedTuple):
    """`largest`: difference of any two outputs. `probabilities`: the outputs of each example sum up to 1."""

    largest: float
    examples: int
    probabilities: bool


def classes_of(model: TrainedModel) -> int | None:
    """Return the number of classes; None if the first output has not one value for each class."""
    first = model.answer([np.zeros((1, *each.shape), each.dtype) for each in model.inputs])[0]
    return first.shape[1] if first.ndim == 2 else None


def compare(model: TrainedModel, path: Path, limits: tuple[float, float] | None) -> Comparison:
    """Compare outputs for batches of BATCHES examples, drawn from a fixed seed.

    `limits`: of the values of floating-point inputs; None draws from the normal distribution. Raises NotExportable if
    an output differs by more than TOLERANCE.
    """
    try:
        session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises classes of its own.
        raise NotExportable(f"onnxruntime can't load the converted model: {first_line(error)}") from error
    names = [each.name for each in session.get_inputs()]
    chance = np.random.default_rng(_SEED)
    largest, probabilities = 0.0, True
    for batch in BATCHES:
        inputs = [_drawn(each, batch, chance, limits) for each in model.inputs]
        wanted = model.answer(inputs)
        try:
            found = session.run(None, dict(zip(names, inputs, strict=True)))
        except Exception as error:  # onnxruntime raises classes of its own.
            raise NotExportable(
                f"the converted model does not take a batch of {batch}: {first_line(error)}"
            ) from error
        for one, other in zip(wanted, found, strict=True):
            largest = max(largest, _difference(one, np.asarray(other)))
        probabilities = probabilities and _sums_to_one(wanted)
    return Comparison(largest, sum(BATCHES), probabilities)


def _drawn(
    one: Input, batch: int, chance: np.random.Generator, limits: tuple[float, float] | None
) -> np.ndarray:
    shape, dtype = (batch, *one.shape), np.dtype(one.dtype)
    if dtype.kind == "b":
        return chance.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        return chance.integers(0, 256 if dtype == np.uint8 else 2, shape).astype(dtype)
    if limits is None:
        return chance.standard_normal(shape).astype(dtype)
    return chance.uniform(*limits, shape).astype(dtype)


def _difference(wanted: np.ndarray, found: np.ndarray) -> float:
    if wanted.shape != found.shape:
        raise NotExportable(
            f"the converted model answers {found.shape}, and the trained model {wanted.shape}"
        )
    one, other = wanted.astype(np.float64), found.astype(np.float64)
    difference = np.abs(one - other)
    largest = np.abs(one).max(axis=tuple(range(1, one.ndim)), keepdims=True)
    if not (difference <= TOLERANCE + TOLERANCE * largest).all():
        raise NotExportable(
            f"the converted model's outputs differ by up to {difference.max():.2e} from the trained model's, and "
            f"{TOLERANCE:.0e} is allowed"
        )
    return float(difference.max(initial=0.0))


def _sums_to_one(outputs: list[np.ndarray]) -> bool:
    first = outputs[0]
    return first.ndim == 2 and bool((first >= 0).all() and np.allclose(first.sum(1), 1, atol=1e-3))

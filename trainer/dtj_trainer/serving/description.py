"""What model.json says of a model: how a picture becomes its input, and what its output means."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Literal, cast

from dtj_trainer.contract import MODEL_DESCRIPTION_FILE
from dtj_trainer.contract.export_options import MEANINGS
from dtj_trainer.serving.errors import ModelDamaged

MAX_BYTES = 16 << 20
_MAX_SIZE = 4096
Layout = Literal["NCHW", "NHWC"]
Meaning = Literal["logits", "probabilities"]


@dataclass(frozen=True)
class Preprocessing:
    """How a decoded picture becomes the model's input.

    The shorter side is resized to `size` pixels and the centre is cut out, in `channels` channels (1 for grey, 3 for
    RGB). With `orient`, the picture is turned before as its EXIF orientation says. Values 0 to 255 are inverted if
    `invert`, and mapped to `range`. Then the mean of each channel is subtracted and the rest divided by its
    deviation; both are on the scale of `range`, and empty for none.
    """

    size: int
    channels: int
    layout: Layout
    range: tuple[float, float] = (0.0, 255.0)
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    invert: bool = False
    orient: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the entry of model.json."""
        return {
            "size": [self.size, self.size],
            "channels": self.channels,
            "layout": self.layout,
            "range": list(self.range),
            "mean": list(self.mean) or None,
            "deviation": list(self.deviation) or None,
            "invert": self.invert,
            "orient": self.orient,
        }

    @staticmethod
    def from_json(read: Any) -> Preprocessing:
        """Read the entry of model.json. Raises ValueError or TypeError, KeyError if one is missing."""
        height, width = read["size"]
        if height != width:
            raise ValueError(f"size {height} x {width} is not square")
        low, high = _numbers(read.get("range", [0, 255]))
        made = Preprocessing(
            int(height),
            int(read["channels"]),
            read["layout"],
            (low, high),
            _numbers(read.get("mean") or ()),
            _numbers(read.get("deviation") or ()),
            bool(read.get("invert", False)),
            bool(read.get("orient", False)),
        )
        made.check()
        return made

    def check(self) -> None:
        """Raise ValueError for values with which no picture can be preprocessed."""
        if not 1 <= self.size <= _MAX_SIZE:
            raise ValueError(f"size {self.size} is not between 1 and {_MAX_SIZE}")
        if self.channels not in (1, 3):
            raise ValueError(f"channels {self.channels} is neither 1 nor 3")
        if self.layout not in ("NCHW", "NHWC"):
            raise ValueError(f"layout {self.layout!r} is neither NCHW nor NHWC")
        if self.range[0] >= self.range[1]:
            raise ValueError(
                f"range {self.range[0]} to {self.range[1]} does not go from a lower to a higher value"
            )
        for name, values in (("mean", self.mean), ("deviation", self.deviation)):
            if values and len(values) != self.channels:
                raise ValueError(f"{name} has {len(values)} values for {self.channels} channels")
        if any(value <= 0 for value in self.deviation):
            raise ValueError("each value of deviation has to be above 0")


@dataclass(frozen=True)
class Description:
    """What a server needs of model.json.

    `preprocessing` is None if it is not known; the model then takes tensors alone. `labels` are the names of the
    classes, empty if they are not known. `steps`: those of the training, if known.
    """

    preprocessing: Preprocessing | None
    meaning: Meaning | None
    labels: tuple[str, ...] = ()
    steps: int | None = None

    @staticmethod
    def from_json(content: bytes) -> Description:
        """Read model.json. Raises ModelDamaged."""
        try:
            read = json.loads(content)
            preprocessing = read.get("preprocessing")
            meaning = read.get("output", {}).get("meaning")
            steps = read.get("steps")
            return Description(
                Preprocessing.from_json(preprocessing) if preprocessing else None,
                cast(Meaning, meaning) if meaning in MEANINGS else None,
                checked_labels(read.get("labels") or ()),
                steps if isinstance(steps, int) else None,
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ModelDamaged(f"{MODEL_DESCRIPTION_FILE} can't be read: {error!r}") from error


def checked_labels(read: Any) -> tuple[str, ...]:
    """Return the names of the classes. Raises ValueError if a name is no text, or two names are equal."""
    if not isinstance(read, list | tuple) or not all(isinstance(label, str) for label in read):
        raise ValueError("`labels` must be a list of the names of the classes")
    if len(set(read)) != len(read):
        twice = next(label for label in read if list(read).count(label) > 1)
        raise ValueError(f"{twice!r} is the label of two classes")
    return tuple(read)


def _numbers(values: Any) -> tuple[float, ...]:
    read = tuple(float(value) for value in values)
    if not all(map(math.isfinite, read)):
        raise ValueError(f"{values!r} are not finite numbers")
    return read

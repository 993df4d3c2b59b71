"""Networks for small pictures: PyTorch networks under the names here, Keras networks in `keras_pictures`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtj_trainer.models.classifier import MODELS, PictureClassifier, build

__all__ = ["MODELS", "PictureClassifier", "build"]


def __getattr__(name: str) -> Any:
    # Import lazily: an image with TensorFlow imports keras_pictures from this package and has no PyTorch.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("dtj_trainer.models.classifier"), name)

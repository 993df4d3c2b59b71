"""Networks for small pictures: those named here in PyTorch, `keras_pictures` in Keras."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtj_trainer.models.classifier import MODELS, PictureClassifier, build

__all__ = ["MODELS", "PictureClassifier", "build"]


def __getattr__(name: str) -> Any:
    # On first use: an image with TensorFlow imports keras_pictures from here and has no PyTorch.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("dtj_trainer.models.classifier"), name)

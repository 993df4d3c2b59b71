"""Networks for small pictures."""

from __future__ import annotations

from dtj_trainer.models.classifier import MODELS, PictureClassifier, build

__all__ = ["MODELS", "PictureClassifier", "build"]

"""PyTorch networks for pictures."""

from __future__ import annotations

from dtj_trainer.torch.models.classifier import MODELS, PictureClassifier, build

__all__ = ["MODELS", "PictureClassifier", "build"]

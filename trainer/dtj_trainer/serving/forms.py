"""The forms of a trained model that are converted to ONNX, and which of them a folder has."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from dtj_trainer.contract.distribution import install_line
from dtj_trainer.serving.errors import ModelMissing, NotExportable

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np


class Input(NamedTuple):
    """An input of a model: numpy's name of the type, and the shape without the batch."""

    dtype: str
    shape: tuple[int, ...]


class TrainedModel(Protocol):
    """A loaded model in the form of its framework."""

    framework: str
    """The framework and its version, as in model.json."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The inputs, in order. Raises NotExportable for one that is no tensor of fixed shape but for the batch."""

    def answer(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs for a batch, as the framework computes them."""

    def write_onnx(self, path: Path) -> None:
        """Convert the model and write it. Raises NotExportable."""


def source_of(folder: Path) -> Path:
    """Return the file, or the folder of a SavedModel, from which a model is exported.

    Raises ModelMissing if the folder has no model, and NotExportable if the folder has several.
    """
    for name in ("model.pt2", "model.keras"):  # The built-in programs give their models these names.
        if (folder / name).is_file():
            return folder / name
    saved = [
        file.parent
        for file in (folder / "saved_model.pb", *folder.glob("*/saved_model.pb"))
        if file.is_file()
    ]
    found = sorted([*folder.glob("*.pt2"), *folder.glob("*.keras"), *saved])
    if len(found) > 1:
        names = ", ".join(each.name for each in found)
        raise NotExportable(
            f"{folder} has several models: {names}; leave one in it, or name one model.pt2 or model.keras"
        )
    if not found:
        raise ModelMissing(
            f"{folder} has no model that can be exported: *.pt2 of torch.export.save, *.keras, or a SavedModel"
        )
    return found[0]


def load(source: Path) -> TrainedModel:
    """Load a model by its framework. Raises NotExportable if the framework is missing or can't load it."""
    try:
        if source.suffix == ".pt2":
            from dtj_trainer.serving.torch_form import TorchProgram

            return TorchProgram(source)
        from dtj_trainer.serving.keras_form import keras_model, saved_model

        return keras_model(source) if source.suffix == ".keras" else saved_model(source)
    except ModuleNotFoundError as error:
        raise NotExportable(
            f"{source.name} needs the module {error.name}: run the export in the trainer's image, or "
            + install_line("export", "torch" if source.suffix == ".pt2" else "tensorflow")
        ) from error

"""What the folder of a final model has in every framework: the description of its pictures, and the manifest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from dtj_trainer import contract
from dtj_trainer.artifacts import model_manifest
from dtj_trainer.whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def begin(folder: Path) -> None:
    """Make the folder ready for a new model: without the ONNX model and the manifest of an earlier one."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (contract.MANIFEST_FILE, contract.MODEL_ONNX_FILE):
        (folder / name).unlink(missing_ok=True)


def picture_facts(
    shape: tuple[int, int, int],
    layout: Literal["NCHW", "NHWC"],
    class_names: Sequence[str],
    orient: bool = False,
) -> dict[str, Any]:
    """Return what a description says of pictures: their labels, and how a picture becomes the network's input.

    `shape`: channels, height and width. The networks take pixels from 0 to 255, and normalize them by themselves:
    there is neither a mean nor a deviation to apply. `labels` is left out where the classes have only numbers, and
    `preprocessing` for pictures that are not square.
    """
    channels, height, width = shape
    facts: dict[str, Any] = {}
    if list(class_names) != [str(number) for number in range(len(class_names))]:
        facts["labels"] = list(class_names)
    if height == width:
        facts["preprocessing"] = {
            "size": [height, width],
            "channels": channels,
            "layout": layout,
            "range": [0, 255],
            "mean": None,
            "deviation": None,
            "invert": False,
            "orient": orient,
        }
    return facts


def write_description(folder: Path, description: dict[str, Any]) -> None:
    """Write model.json and then the manifest, which makes the folder's files a model."""
    text = json.dumps(description, indent=2) + "\n"
    write_whole(folder / contract.MODEL_DESCRIPTION_FILE, lambda path: path.write_text(text))
    write_manifest(folder)


def write_manifest(folder: Path) -> None:
    """Write the manifest of a model's folder, atomically, after all of its files."""
    content = model_manifest.manifest_of(folder).to_json()
    write_whole(folder / contract.MANIFEST_FILE, lambda path: path.write_bytes(content))

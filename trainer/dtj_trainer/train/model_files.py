"""The files that the folder of a final model has in every framework: model.json and the manifest."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dtj_trainer import contract, progress
from dtj_trainer.artifacts import model_manifest
from dtj_trainer.whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger(__name__)

_LINE = re.compile(r'File "([^"]+)", line (\d+), in \w+\s+(\S.{,100})')
"""Finds a line of the user's source code in the text of an error."""


def begin(folder: Path, *forms: str) -> None:
    """Make the folder ready for a new model: remove an earlier model's ONNX file, manifest and `forms`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (contract.MANIFEST_FILE, contract.MODEL_ONNX_FILE, *forms):
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


def write_description(folder: Path, description: dict[str, Any], *, complete: bool = True) -> None:
    """Write model.json and, if the folder's files are complete, the manifest, without which readers find no model."""
    text = json.dumps(description, indent=2) + "\n"
    write_whole(folder / contract.MODEL_DESCRIPTION_FILE, lambda path: path.write_text(text))
    if complete:
        write_manifest(folder)


def not_exported(by: str, error: Exception, left: str) -> str:
    """Record in the log and in the job's progress that a form of the model could not be written; return why.

    `by`: what refused the model. `left`: what the folder has in place of the form.
    """
    reason = reason_of(by, error, left)
    progress.exported(reason)
    log.warning("%s", reason)
    return reason


def reason_of(by: str, error: Exception, left: str) -> str:
    """Return in one line why a form of the model can't be written."""
    text = str(error)
    # torch.export names the line of the network at the end of a long text: put the line first.
    found = _LINE.search(text)
    where = f"{Path(found[1]).name}:{found[2]} `{found[3]}`: " if found else ""
    return f"{by} refused the model ({left}): {where}{type(error).__name__}: {' '.join(text.split())[:1000]}"


def write_manifest(folder: Path) -> None:
    """Write the manifest of a model's folder, atomically, after all of its files."""
    content = model_manifest.manifest_of(folder).to_json()
    write_whole(folder / contract.MANIFEST_FILE, lambda path: path.write_bytes(content))

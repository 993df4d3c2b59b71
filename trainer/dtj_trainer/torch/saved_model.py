"""The final model as files that load without this package, and the loading of these files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from dtj_trainer import contract
from dtj_trainer.torch.models import PictureClassifier, build
from dtj_trainer.train import model_files
from dtj_trainer.whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

WEIGHTS = "model.pt"
EXPORTED = "model.pt2"


def write(
    folder: Path,
    state: Mapping[str, Tensor],
    *,
    name: str,
    shape: tuple[int, int, int],
    classes: int,
    facts: Mapping[str, object],
    class_names: Sequence[str] = (),
    orient: bool = False,
) -> None:
    """Write weights, the exported program, a description and the manifest into `folder`, each file atomically.

    `state` is that of the network, `shape` is channels, height and width of a picture. `facts` go into the
    description (accuracy, steps), and so do `class_names`, in the order of the outputs.
    """
    model_files.begin(folder)
    copy = build(name, shape, classes)
    copy.load_state_dict({key: value.cpu() for key, value in state.items()})
    copy.eval()
    write_whole(folder / WEIGHTS, lambda path: torch.save(copy.state_dict(), path))
    batch = torch.export.Dim("batch", min=1)
    example = torch.zeros((2, *shape), dtype=torch.uint8)
    program = torch.export.export(copy, (example,), dynamic_shapes=({0: batch},))
    write_whole(folder / EXPORTED, lambda path: torch.export.save(program, path))
    description = {
        "model": name,
        "input": {"dtype": "uint8", "shape": ["batch", *shape], "range": [0, 255]},
        "output": {"shape": ["batch", classes], "meaning": "logits"},
        "classes": classes,
        "parameters": sum(parameter.numel() for parameter in copy.parameters()),
        **model_files.picture_facts(shape, "NCHW", class_names, orient),
        **facts,
        "files": {
            WEIGHTS: "state dict of dtj_trainer.torch.models.build(model, shape, classes)",
            EXPORTED: "torch.export.load(file).module()(pixels): needs PyTorch alone",
        },
        "torch": str(torch.__version__),
    }
    model_files.write_description(folder, description)


def describe(folder: Path) -> dict[str, Any]:
    """Read model.json. Raises OSError or ValueError for a missing or invalid file."""
    content: dict[str, Any] = json.loads((folder / contract.MODEL_DESCRIPTION_FILE).read_bytes())
    return content


def load(folder: Path) -> PictureClassifier:
    """Rebuild the model from its description and weights, ready for inference."""
    description = describe(folder)
    _, channels, height, width = description["input"]["shape"]
    model = build(description["model"], (channels, height, width), description["classes"])
    model.load_state_dict(torch.load(folder / WEIGHTS, weights_only=True, map_location="cpu"))
    return model.eval()


def load_exported(folder: Path) -> torch.nn.Module:
    """Load the exported program as a module, without classes of this package."""
    module: torch.nn.Module = torch.export.load(folder / EXPORTED).module()
    return module

"""The final model as files that load without this package, and the loading of these files."""

from __future__ import annotations

import json
import logging
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dtj_trainer import contract
from dtj_trainer.torch.models import PictureClassifier, build
from dtj_trainer.train import model_files
from dtj_trainer.whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)

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
    """Write weights, description, the exported program and the manifest into `folder`, each file atomically.

    `state` is that of the network, `shape` is channels, height and width of a picture. `facts` go into the
    description (accuracy, steps), and so do `class_names`, in the order of the outputs. The weights come first: a
    network that can't be exported has them and a description, which says why there is no exported program.
    """
    model_files.begin(folder, EXPORTED)
    weights = {key: _alone(value) for key, value in state.items() if isinstance(value, Tensor)}
    write_whole(folder / WEIGHTS, lambda path: torch.save(weights, path))
    description = {
        "model": name,
        "input": {"dtype": "uint8", "shape": ["batch", *shape], "range": [0, 255]},
        "output": {"shape": ["batch", classes], "meaning": "logits"},
        "classes": classes,
        **model_files.picture_facts(shape, "NCHW", class_names, orient),
        **facts,
        "files": {
            WEIGHTS: "torch.load(file, weights_only=True): the network's state_dict, with the prefix `network.`, and "
            "mean and deviation of the pictures",
        },
        "torch": str(torch.__version__),
    }
    # Describe the weights before the export, in case the process ends during the export, for lack of memory or at its
    # time limit.
    model_files.write_description(folder, description, complete=False)
    try:
        description["parameters"] = _export(folder / EXPORTED, weights, name, shape, classes)
    except Exception as error:
        log.debug("torch.export failed", exc_info=True)
        description["export"] = {
            "error": model_files.not_exported("torch.export", error, f"{WEIGHTS} has the weights")
        }
    else:
        description["files"][EXPORTED] = "torch.export.load(file).module()(pixels): needs PyTorch alone"
    model_files.write_description(folder, description)


def _alone(value: Tensor) -> Tensor:
    """Return a tensor on the CPU with a storage of its own: torch.save writes the whole storage of a tensor, even if
    the tensor uses only a part.
    """
    held = value.detach().cpu()
    return held if held.untyped_storage().nbytes() == held.nbytes else held.clone()


def _export(
    path: Path, weights: dict[str, Tensor], name: str, shape: tuple[int, int, int], classes: int
) -> int:
    """Write the exported program of a network with these weights; return the number of its parameters."""
    copy = build(name, shape, classes)
    copy.load_state_dict(weights, strict=False)  # not strict: `weights` has no objects of `get_extra_state`
    program = exported(copy.eval(), shape)
    write_whole(path, lambda written: torch.export.save(program, written))
    return sum(parameter.numel() for parameter in copy.parameters())


def exported(network: torch.nn.Module, shape: tuple[int, int, int]) -> torch.export.ExportedProgram:
    """Export a network for any number of pictures of `shape`. Raises what torch.export raises if it can't."""
    sizes = ({0: torch.export.Dim("batch", min=1)},)
    example = (torch.zeros((2, *shape), dtype=torch.uint8),)
    try:
        return torch.export.export(network, example, dynamic_shapes=sizes)
    except Exception as error:
        # Try the strict mode: it reads the source, and so takes `len(pixels)` and `.numpy()`, which the other mode
        # refuses.
        log.debug("torch.export failed, trying its strict mode", exc_info=True)
        try:
            program = torch.export.export(network, example, dynamic_shapes=sizes, strict=True)
            pixels = torch.arange(3 * math.prod(shape)).remainder(251).to(torch.uint8).view(3, *shape)
            with torch.no_grad():
                torch.testing.assert_close(program.module()(pixels), network(pixels), rtol=1e-4, atol=1e-4)
        except Exception:
            log.debug("the strict mode failed too", exc_info=True)
            raise error from None
        return program


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

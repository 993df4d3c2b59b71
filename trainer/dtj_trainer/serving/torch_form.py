"""A program of torch.export as a trained model."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from typing import TYPE_CHECKING, Any

import torch

from dtj_trainer.serving.errors import NotExportable, first_line
from dtj_trainer.serving.forms import Input

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np


class TorchProgram:
    """See TrainedModel."""

    def __init__(self, path: Path) -> None:
        self.framework = f"torch {torch.__version__}"
        try:
            self._program = torch.export.load(path)
        except Exception as error:  # PyTorch raises many classes for files that it can't read.
            raise NotExportable(f"{path} is no program of torch.export.save: {first_line(error)}") from error
        self._module = self._program.module()

    @property
    def inputs(self) -> tuple[Input, ...]:
        """See TrainedModel."""
        nodes = {node.name: node for node in self._program.graph.nodes}
        return tuple(_input(name, nodes.get(str(name))) for name in self._program.graph_signature.user_inputs)

    def answer(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """See TrainedModel."""
        with torch.inference_mode():
            found = self._module(*(torch.from_numpy(values) for values in inputs))
        return [each.numpy() for each in (found if isinstance(found, list | tuple) else (found,))]

    def write_onnx(self, path: Path) -> None:
        """See TrainedModel."""
        # Silence the exporter: it prints its progress to stdout, and warns of packages that it could use.
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            try:
                made = torch.onnx.export(self._program, dynamo=True, verbose=False)
                assert made is not None
                made.save(path, external_data=False)
            except Exception as error:  # The exporter raises many classes.
                raise NotExportable(
                    f"PyTorch can't convert the model to ONNX: {first_line(error)}"
                ) from error


def _input(name: object, node: Any) -> Input:
    value = node.meta.get("val") if node is not None else None
    if not isinstance(value, torch.Tensor):
        raise NotExportable(f"the input {name} is no tensor")
    sizes: list[Any] = list(value.shape)
    batch, shape = sizes[0] if sizes else 0, sizes[1:]
    if isinstance(batch, int):
        raise NotExportable(
            f"the input {name} has a fixed batch of {batch}: give torch.export.export a dynamic first axis, as in "
            '`dynamic_shapes=({0: torch.export.Dim("batch")},)`'
        )
    if not all(isinstance(size, int) for size in shape):
        raise NotExportable(f"the input {name} has an axis without a fixed size besides the batch axis")
    return Input(str(value.dtype).removeprefix("torch."), tuple(shape))

"""What the export changes in a converted graph: the name of the batch axis, and of a single output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
from onnx import helper

from dtj_trainer.serving.errors import NotExportable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BATCH = "batch"


def finish(path: Path, output: str) -> int:
    """Name the first axis of every input and output `batch`, and a single output `output`; return the opset.

    Raises NotExportable if an input has a fixed first axis, or another axis that is not fixed.
    """
    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    constants = {constant.name for constant in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    symbols = set()
    for value in inputs:
        axes = value.type.tensor_type.shape.dim
        if not axes or axes[0].HasField("dim_value"):
            raise NotExportable(
                f"the input {value.name} has a fixed batch: export the model with a dynamic first axis "
                "(dynamic_shapes of torch.export.export, None in Keras)"
            )
        if not all(axis.dim_value for axis in axes[1:]):
            raise NotExportable(f"the input {value.name} has other axes than the batch without a fixed size")
        symbols.add(axes[0].dim_param or BATCH)
        axes[0].dim_param = BATCH
    for value in (*graph.output, *graph.value_info):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param in symbols:
                axis.dim_param = BATCH
    for value in graph.output:
        axes = value.type.tensor_type.shape.dim
        if axes and not axes[0].HasField("dim_value"):
            axes[0].dim_param = BATCH
    if len(graph.output) == 1:
        _name_output(model, output)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return next(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))


def _name_output(model: onnx.ModelProto, name: str) -> None:
    """Add a node that does nothing but give the output its name."""
    graph = model.graph
    found = graph.output[0].name
    if found == name or name in _names(graph):
        return
    graph.node.append(helper.make_node("Identity", [found], [name], name=f"named_{name}"))
    graph.output[0].name = name


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from node.input
        yield from node.output

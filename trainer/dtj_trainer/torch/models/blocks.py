"""A network as a list of blocks, of which each takes what the one before returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Block = Callable[[Tensor], Tensor]
"""A module, or a function without parameters."""


def blocks_of(network: nn.Module) -> list[Block]:
    """Return the blocks that a pass through `network` applies one after the other.

    A network has a method `blocks` without arguments, or is an `nn.Sequential`, whose children are the blocks. Any
    other network is a single block.
    """
    blocks: Any = getattr(network, "blocks", None)
    if inspect.ismethod(blocks):  # Another network may have a child module of the name `blocks`.
        listed: list[Block] = list(blocks())
        return listed
    return list(network) if isinstance(network, nn.Sequential) else [network]


def tensor_layers_of(network: nn.Module) -> dict[str, str]:
    """Return the layers of `network` that several ranks can share, by name; none if it has no such layers.

    A network has a method `tensor_layers` without arguments. A dense layer is `column`, where each rank computes some
    of the outputs, or `row`, where each takes the inputs that it computed itself. Between both there are functions of
    single values only. `dropout` marks an `nn.Dropout` there.
    """
    layers: Any = getattr(network, "tensor_layers", None)
    return dict(layers()) if inspect.ismethod(layers) else {}


def keep_inputs(network: nn.Module) -> None:
    """Let functions such as `nn.ReLU(inplace=True)` keep their input.

    The output of a layer that ranks share, or of a block in shards, may be a view whose hook of the backward pass an
    overwriting function would remove. PyTorch refuses the former and warns of the latter.
    """
    for module in network.modules():
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # type: ignore[assignment]


def flat(values: Tensor) -> Tensor:
    """Join all dimensions of an example."""
    return torch.flatten(values, 1)


def mean_of_pixels(values: Tensor) -> Tensor:
    """Average (batch, channels, height, width) over the pixels."""
    return values.mean((2, 3))

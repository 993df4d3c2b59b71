"""Cuts a network into the stages of a pipeline: neighbouring blocks, about the same work in each stage."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dtj_trainer.torch.models.blocks import blocks_of
from dtj_trainer.torch.models.classifier import normalized

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from dtj_trainer.torch.models import PictureClassifier
    from dtj_trainer.torch.models.blocks import Block


class Piece(NamedTuple):
    """Blocks that stay together: one with weights, and those without that follow it.

    `work` counts the floating point operations of a forward pass, and the weights; `shape` is that of the output for
    one picture.
    """

    blocks: tuple[Block, ...]
    work: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Cut:
    """A stage: its blocks, and the shapes of one example at its begin and end."""

    blocks: tuple[Block, ...]
    takes: tuple[int, ...]
    gives: tuple[int, ...]


def pieces_of(network: PictureClassifier, shape: tuple[int, int, int]) -> list[Piece]:
    """Return the pieces of a network, by a pass of one black picture of `shape` through it."""
    joined: list[list[Block]] = []
    for block in blocks_of(network.network):
        has_weights = isinstance(block, nn.Module) and any(True for _ in block.parameters())
        if has_weights or not joined:
            joined.append([])
        joined[-1].append(block)
    if len(joined) > 1 and not _weights(joined[0]):
        joined[:2] = [joined[0] + joined[1]]
    was_training = network.training
    network.eval()
    values = normalized(torch.zeros((1, *shape), dtype=torch.uint8), network.mean, network.deviation)
    found = []
    with torch.no_grad():
        for blocks in joined:
            with FlopCounterMode(display=False) as counter:
                for block in blocks:
                    values = block(values)
            if not isinstance(values, Tensor):
                raise SystemExit(
                    f"--pipeline-stages: a block of the network returned {type(values).__name__}, and stages "
                    "exchange one tensor: let it return logits alone, or leave the option out"
                )
            found.append(
                Piece(tuple(blocks), counter.get_total_flops() + _weights(blocks), tuple(values.shape[1:]))
            )
    network.train(was_training)
    return found


def cut(pieces: Sequence[Piece], stages: int, shape: tuple[int, int, int]) -> list[Cut]:
    """Cut the pieces into stages so that the most work of a stage is the least possible.

    `shape` is that of a picture. Raises ValueError for fewer pieces than stages.
    """
    if len(pieces) < stages:
        raise ValueError(f"{len(pieces)} blocks can't be cut into {stages} stages")
    ends = [0, *_ends([piece.work for piece in pieces], stages)]
    shapes = [shape, *(pieces[end - 1].shape for end in ends[1:])]
    return [
        Cut(tuple(block for piece in pieces[first:end] for block in piece.blocks), takes, gives)
        for (first, end), (takes, gives) in zip(pairwise(ends), pairwise(shapes), strict=True)
    ]


def _ends(work: Sequence[int], stages: int) -> list[int]:
    """Return where each stage ends, as the number of pieces up to there."""
    upto = [0, *accumulate(work)]
    # best[n]: the largest stage and the ends, if the first n pieces are cut into the stages so far.
    best: dict[int, tuple[int, list[int]]] = {0: (0, [])}
    for stage in range(1, stages + 1):
        best = {
            n: min(
                (max(largest, upto[n] - upto[before]), [*ends, n])
                for before, (largest, ends) in best.items()
                if before < n
            )
            for n in range(stage, len(work) + 1)
        }
    return best[len(work)][1]


class Stage(nn.Module):
    """The blocks of a stage, with the names that they have in the network.

    The first stage takes pictures, and normalizes them. Values between stages have the weights' `dtype`. The last
    stage returns logits. `autocast` gives the context of a pass.
    """

    def __init__(
        self,
        network: PictureClassifier,
        blocks: Sequence[Block],
        *,
        first: bool,
        autocast: Callable[[], AbstractContextManager[object]],
    ) -> None:
        super().__init__()
        names = {module: name for name, module in network.named_modules()}
        for block in blocks:
            if isinstance(block, nn.Module):
                _place(self, names[block], block)
        self._blocks, self._autocast, self._first = tuple(blocks), autocast, first
        self.dtype = next(network.parameters()).dtype
        if first:
            self.register_buffer("mean", network.mean)
            self.register_buffer("deviation", network.deviation)

    def forward(self, values: Tensor) -> Tensor:
        """Apply the blocks."""
        if self._first:
            values = normalized(values, self.get_buffer("mean"), self.get_buffer("deviation"))
        with self._autocast():
            for block in self._blocks:
                values = block(values)
        return values.to(self.dtype).contiguous()


def _place(root: nn.Module, path: str, module: nn.Module) -> None:
    """Make `module` the descendant of `root` with this path."""
    *above, name = path.split(".")
    for each in above:
        if not hasattr(root, each):
            root.add_module(each, nn.Module())
        root = getattr(root, each)
    root.add_module(name, module)


def _weights(blocks: Sequence[Block]) -> int:
    return sum(
        each.numel() for block in blocks if isinstance(block, nn.Module) for each in block.parameters()
    )

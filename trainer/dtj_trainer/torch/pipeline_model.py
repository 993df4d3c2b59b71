"""A picture classifier of which a rank trains one stage of a pipeline."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from dtj_trainer.torch.divided_model import DividedModel, shard
from dtj_trainer.torch.model import among_five, right_answers
from dtj_trainer.torch.models.blocks import blocks_of
from dtj_trainer.torch.models.classifier import normalized
from dtj_trainer.train.protocols import Tested

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    import numpy as np

    from dtj_trainer.data.pictures import PictureSet
    from dtj_trainer.data.sharding import Share
    from dtj_trainer.torch.mesh_ranks import MeshRanks
    from dtj_trainer.torch.models import PictureClassifier
    from dtj_trainer.torch.models.blocks import Block
    from dtj_trainer.train.options import TrainingOptions


# `cut` divides a network into the stages of a pipeline: neighbouring blocks, about the same work in each stage.


class Piece(NamedTuple):
    """Blocks that stay together: a block with weights, and the following blocks that have none.

    `work` counts the floating point operations of a forward pass, and the weights; `shape` is that of the output for
    one picture.
    """

    blocks: tuple[Block, ...]
    work: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class StageCut:
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
                    f"--pipeline-stages: a block of the network returned {type(values).__name__}, but stages "
                    "exchange one tensor: let each block return a tensor, or leave the option out"
                )
            found.append(
                Piece(tuple(blocks), counter.get_total_flops() + _weights(blocks), tuple(values.shape[1:]))
            )
    network.train(was_training)
    return found


def cut(pieces: Sequence[Piece], stages: int, shape: tuple[int, int, int]) -> list[StageCut]:
    """Cut the pieces into stages so that the most work of a stage is the least possible.

    `shape` is that of a picture. Raises ValueError for fewer pieces than stages.
    """
    if len(pieces) < stages:
        raise ValueError(f"{len(pieces)} blocks can't be cut into {stages} stages")
    ends = [0, *_ends([piece.work for piece in pieces], stages)]
    shapes = [shape, *(pieces[end - 1].shape for end in ends[1:])]
    return [
        StageCut(tuple(block for piece in pieces[first:end] for block in piece.blocks), takes, gives)
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


_PADDING = -1
"""The label of an example that fills up the last micro batches."""


class PipelineModel(DividedModel):
    """See TorchModel. The step's examples pass through the stages in micro batches of one size.

    Repeated examples, which do not count, fill up the last micro batches.
    """

    _staged = True

    def __init__(
        self, options: TrainingOptions, data: PictureSet, device: torch.device, ranks: MeshRanks
    ) -> None:
        _check_batch(options, ranks.data_size)
        self._number, self._stages = ranks.model_rank, options.pipeline_stages
        self._micro_batches = options.passes_of_stages
        self._total = 0
        self._schedules: dict[int, Schedule1F1B] = {}
        super().__init__(options, data, device, ranks)

    def _placed(
        self, network: PictureClassifier, options: TrainingOptions, shape: tuple[int, int, int]
    ) -> nn.Module:
        self._ranks.broadcast_tensors(network.state_dict())
        pieces = pieces_of(network, shape)
        if len(pieces) < self._stages:
            raise SystemExit(
                f"--pipeline-stages={self._stages}: {options.model} has {len(pieces)} blocks with weights: give at "
                "most as many stages, or a network with more blocks (docs/model-parallel.md)"
            )
        self._cut = cut(pieces, self._stages, shape)[self._number]
        stage = Stage(network, self._cut.blocks, first=self._first, autocast=self.precision.autocast)
        self._dtype = stage.dtype
        if options.fsdp:
            shard(stage, self._cut.blocks, self._ranks.data)
        return stage.to(self._device)

    @property
    def _first(self) -> bool:
        return self._number == 0

    @property
    def _last(self) -> bool:
        return self._number == self._stages - 1

    @property
    def _chance_rank(self) -> int:
        return self._ranks.rank

    def _make_passes(self, data: tuple[Tensor, Tensor], share: Share) -> None:
        each = max(math.ceil(share.count / self._micro_batches), 1)
        size = each * self._micro_batches
        # A share without examples holds one example of weight 0 (see `Sharding`). This example passes through the
        # stages with the label _PADDING, because every rank must make every step.
        places = torch.arange(size) % max(share.count, 1)
        self._total = share.total
        labels = torch.where(torch.arange(size) < share.count, data[1][places], _PADDING)
        pixels = [self._moved(data[0][places])] if self._first else []
        self._schedule(each).step(
            *pixels, target=labels.to(self._device) if self._last else None, return_outputs=False
        )

    def _schedule(self, size: int) -> Schedule1F1B:
        """Return the schedule for micro batches of this size: a schedule has buffers of one size."""
        if size not in self._schedules:
            takes = torch.empty(
                (size, *self._cut.takes),
                dtype=torch.uint8 if self._first else self._dtype,
                device="meta",
                requires_grad=not self._first,
            )
            gives = torch.empty(
                (size, *self._cut.gives), dtype=self._dtype, device="meta", requires_grad=True
            )
            stage = PipelineStage(
                self.network,
                self._number,
                self._stages,
                self._device,
                input_args=takes,
                output_args=gives,
                group=self._ranks.model.get_group(),
            )
            # Do not scale the gradients: the loss is already divided by the number of all examples of the step.
            self._schedules[size] = Schedule1F1B(
                stage, self._micro_batches, loss_fn=self._loss, scale_grads=False
            )
        return self._schedules[size]

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        losses = functional.cross_entropy(
            logits.float(), labels, reduction="none", ignore_index=_PADDING, label_smoothing=self._smoothing
        )
        self._add_up(losses, logits, labels)
        return losses.sum() * (self._ranks.data_size / self._total)

    def test(self, pixels: np.ndarray, labels: np.ndarray) -> Tested:
        """See PictureModel. The last stage returns the answers of its pipeline, the others zeros."""
        self.network.eval()
        sends: list[dist.Work | None] = []
        right = loss = top5 = 0.0
        with torch.no_grad():
            # Run the network on empty parts too: with --fsdp, ranks gather their weights only together.
            for part in range(self._micro_batches):
                first, end = (len(labels) * each // self._micro_batches for each in (part, part + 1))
                values = self.network(self._received(pixels[first:end]))
                if not self._last:
                    sends.append(self._sent(values))
                    continue
                wanted = torch.from_numpy(labels[first:end]).to(self._device)
                loss += functional.cross_entropy(values, wanted, reduction="sum").item()
                right += right_answers(values, wanted).item()
                top5 += among_five(values, wanted).item()
        for send in sends:
            if send:
                send.wait()
        return Tested(right, loss, top5)

    def _received(self, pixels: np.ndarray) -> Tensor:
        """Return the input of this stage for these pictures."""
        if self._first:
            return self._moved(torch.from_numpy(pixels))
        values = torch.empty((len(pixels), *self._cut.takes), dtype=self._dtype, device=self._device)
        if len(pixels):
            dist.recv(values, group=self._ranks.model.get_group(), group_src=self._number - 1)
        return values

    def _sent(self, values: Tensor) -> dist.Work | None:
        """Begin to send the output of this stage."""
        if not len(values):
            return None
        return dist.isend(values, group=self._ranks.model.get_group(), group_dst=self._number + 1)


def _check_batch(options: TrainingOptions, shares: int) -> None:
    """End the process unless a step of each pipeline is one pass with enough examples."""
    stages, parts = options.pipeline_stages, options.passes_of_stages
    examples = math.ceil(options.step_size(shares) / shares)
    if options.passes(shares) > 1:
        raise SystemExit(
            f"--pipeline-stages={stages}: --global-batch-size={options.global_batch_size} gives each of {shares} "
            f"pipelines {examples} examples a step, which have to be one pass: give --batch-size={examples}"
        )
    if examples < parts:
        raise SystemExit(
            f"--pipeline-stages={stages}: {examples} examples a step can't fill {parts} micro batches: give "
            f"--micro-batches={examples} or fewer, at least {stages}, or a larger batch"
        )

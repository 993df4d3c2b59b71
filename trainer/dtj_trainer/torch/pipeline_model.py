"""A picture classifier of which a rank trains one stage of a pipeline."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional

from dtj_trainer.torch.divided_model import DividedModel
from dtj_trainer.torch.fully_sharded import shard
from dtj_trainer.torch.model import among_five, right_answers
from dtj_trainer.torch.stages import Stage, cut, pieces_of
from dtj_trainer.train.protocols import Tested

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from dtj_trainer.data.pictures import PictureSet
    from dtj_trainer.data.sharding import Share
    from dtj_trainer.torch.mesh_ranks import MeshRanks
    from dtj_trainer.torch.models import PictureClassifier
    from dtj_trainer.train.options import Options

_PADDING = -1
"""The label of an example that fills up the last micro batches."""


class PipelineModel(DividedModel):
    """See TorchModel. The step's examples pass through the stages in micro batches of one size.

    Examples that occur twice, and do not count, fill up the last micro batches.
    """

    _staged = True

    def __init__(self, options: Options, data: PictureSet, device: torch.device, ranks: MeshRanks) -> None:
        _check_batch(options, ranks.data_size)
        self._number, self._stages = ranks.model_rank, options.pipeline_stages
        self._micro_batches = options.passes_of_stages
        self._total = 0
        self._schedules: dict[int, Schedule1F1B] = {}
        super().__init__(options, data, device, ranks)

    def _placed(self, network: PictureClassifier, options: Options, shape: tuple[int, int, int]) -> nn.Module:
        self._ranks.overwrite(network.state_dict())
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
        # A share without an example has one that does not count.
        places = torch.arange(size) % max(share.count, 1)
        self._total = share.total
        labels = torch.where(torch.arange(size) < share.count, data[1][places], _PADDING)
        pixels = [self._moved(data[0][places])] if self._first else []
        self._schedule(each).step(
            *pixels, target=labels.to(self._device) if self._last else None, return_outputs=False
        )

    def _schedule(self, size: int) -> Schedule1F1B:
        """Return the schedule for micro batches of this size: its buffers have one size only."""
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
            # The loss is divided by all examples of the step already.
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
            # Without pictures, the stages still gather their weights if those are in shards.
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


def _check_batch(options: Options, shares: int) -> None:
    """End the process unless a step of each pipeline is one pass with enough examples."""
    stages, parts = options.pipeline_stages, options.passes_of_stages
    examples = math.ceil(options.step_size(shares) / shares)
    if options.passes(shares) > 1:
        raise SystemExit(
            f"--pipeline-stages={stages}: --global-batch-size={options.global_batch_size} gives each of {shares} "
            f"pipelines {examples} examples a step, which is one pass: give --batch-size={examples}"
        )
    if examples < parts:
        raise SystemExit(
            f"--pipeline-stages={stages}: {examples} examples a step can't fill {parts} micro batches: give "
            f"--micro-batches={examples} or fewer, at least {stages}, or a larger batch"
        )

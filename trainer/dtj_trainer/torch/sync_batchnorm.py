"""BatchNorm over the examples of all ranks. PyTorch's SyncBatchNorm needs GPUs; this module has one for CPUs."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def synchronize(network: nn.Module, *, on_gpu: bool) -> None:
    """Let each BatchNorm2d of a network, which will be on a CPU or a GPU, normalize by the examples of all ranks.

    Weights and statistics stay. The ranks of the default process group make equally many forward passes. A rank may
    make a pass without an example.
    """
    for name, child in network.named_children():
        if not isinstance(child, nn.BatchNorm2d):
            synchronize(child, on_gpu=on_gpu)
        elif on_gpu:
            setattr(network, name, nn.SyncBatchNorm.convert_sync_batchnorm(child))  # type: ignore[no-untyped-call]
        else:
            layer = CpuSyncBatchNorm(child.num_features, child.eps, child.momentum, dtype=child.weight.dtype)
            layer.load_state_dict(child.state_dict())
            setattr(network, name, layer)


class CpuSyncBatchNorm(nn.BatchNorm2d):
    """BatchNorm2d over the examples of all ranks.

    A single value of a channel on all ranks has no variance: it is normalized by the running statistics, which stay
    unchanged. DistributedDataParallel refuses every subclass of PyTorch's SyncBatchNorm on CPUs.
    """

    momentum: float

    def forward(self, values: Tensor) -> Tensor:
        """Normalize (batch, channels, height, width), while training by the mean and the variance over all ranks."""
        if not self.training:
            return super().forward(values)
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        exact = values.to(self.weight.dtype)  # Mixed precision brings bfloat16.
        own = torch.full((1,), values.numel() // self.num_features, dtype=torch.float64)
        total = _all_reduce(torch.cat([_sum(exact), own]))
        count = total[-1].detach()
        if count == 1:
            mean, variance = self.running_mean, self.running_var
            centered = exact - _of_channel(mean)
        else:
            mean = (total[:-1] / count).to(exact.dtype)
            centered = exact - _of_channel(mean)
            variance = (_all_reduce(_sum(centered * centered)) / count).to(exact.dtype)
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(variance * (count / (count - 1)).to(exact.dtype), self.momentum)
        scale = self.weight * (variance + self.eps).rsqrt()
        return (centered * _of_channel(scale) + _of_channel(self.bias)).to(values.dtype)


def _all_reduce(values: Tensor) -> Tensor:
    """Add up over all ranks, differentiably."""
    total: Tensor = _AllReduce.apply(values)  # type: ignore[no-untyped-call]
    return total


class _AllReduce(torch.autograd.Function):
    """The sum over all ranks. Each rank's loss depends on it, so the gradient is the sum of all ranks' gradients."""

    @staticmethod
    def forward(_context: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


def _sum(values: Tensor) -> Tensor:
    """Add up (batch, channels, height, width) for each channel, in float64: float32 would add a rounding error."""
    return values.sum((0, 2, 3), dtype=torch.float64)


def _of_channel(values: Tensor) -> Tensor:
    """Return one value for each channel in a shape that combines with (batch, channels, height, width)."""
    return values[:, None, None]

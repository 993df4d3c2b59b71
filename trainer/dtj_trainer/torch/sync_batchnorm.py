"""BatchNorm over the examples of all ranks. PyTorch's SyncBatchNorm needs GPUs; this module has one for CPUs."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def synchronize(network: nn.Module, *, on_gpu: bool) -> None:
    """Let each BatchNorm of a network, which will be on a CPU or a GPU, normalize by the examples of all ranks.

    Weights and statistics stay. The ranks of the default process group make equally many forward passes. A rank may
    make a pass without an example. Ends the process for a layer on CPUs without weights or running statistics.
    """
    for name, child in network.named_children():
        if not isinstance(child, _BatchNorm):
            synchronize(child, on_gpu=on_gpu)
        elif on_gpu:
            setattr(network, name, nn.SyncBatchNorm.convert_sync_batchnorm(child))  # type: ignore[no-untyped-call]
        elif not (child.affine and child.track_running_stats):
            raise SystemExit(
                f"--sync-batchnorm: the layer {name} has affine=False or track_running_stats=False, which "
                "needs GPUs"
            )
        else:
            layer = CpuSyncBatchNorm(child.num_features, child.eps, child.momentum, dtype=child.weight.dtype)
            layer.load_state_dict(child.state_dict())
            setattr(network, name, layer)


class CpuSyncBatchNorm(_BatchNorm):
    """BatchNorm over the examples of all ranks.

    A single value of a channel on all ranks has no variance: it is normalized by the running statistics, which stay
    unchanged. DistributedDataParallel refuses every subclass of PyTorch's SyncBatchNorm on CPUs.
    """

    momentum: float

    def _check_input_dim(self, _values: Tensor) -> None:
        """Accept any number of axes."""

    def forward(self, values: Tensor) -> Tensor:
        """Normalize (batch, channels, …), while training by the mean and the variance over all ranks."""
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
            centered = exact - _of_channel(mean, exact)
        else:
            mean = (total[:-1] / count).to(exact.dtype)
            centered = exact - _of_channel(mean, exact)
            variance = (_all_reduce(_sum(centered * centered)) / count).to(exact.dtype)
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(variance * (count / (count - 1)).to(exact.dtype), self.momentum)
        scale = self.weight * (variance + self.eps).rsqrt()
        return (centered * _of_channel(scale, exact) + _of_channel(self.bias, exact)).to(values.dtype)


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
    """Add up (batch, channels, …) for each channel, in float64: float32 would add a rounding error."""
    return values.sum((0, *range(2, values.dim())), dtype=torch.float64)


def _of_channel(values: Tensor, like: Tensor) -> Tensor:
    """Return one value for each channel in a shape that combines with `like`."""
    return values.view(-1, *[1] * (like.dim() - 2))

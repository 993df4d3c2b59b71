"""BatchNorm for the last examples of an epoch, of which a rank may get one or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Tolerant(_BatchNorm):
    """PyTorch's BatchNorm that also accepts a single value for each channel, or none, during training.

    One value has no variance: it is normalized by the running statistics, which stay unchanged. Without running
    statistics, its deviation from itself is 0.
    """

    def forward(self, values: Tensor) -> Tensor:
        """Normalize (batch, channels, …)."""
        if not self.training or values.numel() > self.num_features:
            return super().forward(values)
        if self.running_mean is None:
            scaled = (
                (values - values)
                if self.weight is None
                else (values - values) * _of_channel(self.weight, values)
            )
            return scaled if self.bias is None else scaled + _of_channel(self.bias, values)
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)  # Count on all ranks alike, whatever examples a rank got.
        return functional.batch_norm(
            values, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )


def _of_channel(weight: Tensor, values: Tensor) -> Tensor:
    return weight.view(-1, *[1] * (values.dim() - 2))


class BatchNorm1d(_Tolerant, nn.BatchNorm1d):
    """See _Tolerant."""


class BatchNorm2d(_Tolerant, nn.BatchNorm2d):
    """See _Tolerant."""


class BatchNorm3d(_Tolerant, nn.BatchNorm3d):
    """See _Tolerant."""


_TOLERANT: Mapping[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
}


def accept_single_values(network: nn.Module) -> None:
    """Let each of PyTorch's own BatchNorm layers of a network accept a single value for each channel, or none.

    The layers stay the same objects, whoever else holds them. A user's subclass stays as it is.
    """
    for module in network.modules():
        if type(module) in _TOLERANT:
            module.__class__ = _TOLERANT[type(module)]

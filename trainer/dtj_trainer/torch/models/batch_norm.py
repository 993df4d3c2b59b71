"""BatchNorm for the last examples of an epoch, of which a rank may get one or none."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class BatchNorm2d(nn.BatchNorm2d):
    """PyTorch's BatchNorm2d that also accepts a single value for each channel, or none, during training.

    One value has no variance: it is normalized by the running statistics, which stay unchanged.
    """

    def forward(self, values: Tensor) -> Tensor:
        """Normalize (batch, channels, height, width)."""
        if not self.training or values.numel() > self.num_features:
            return super().forward(values)
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)  # Equal on all ranks, whatever examples each rank got.
        return functional.batch_norm(
            values, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )

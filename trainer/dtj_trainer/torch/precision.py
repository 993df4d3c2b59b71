"""Mixed precision on several ranks."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import Tensor

    from dtj_trainer.torch.ranks import GradientAveraging


class Precision:
    """The precision of a step. Weights and gradients stay float32, so that ranks average in float32.

    `enabled`: None means on GPUs only. bfloat16 is used if the device supports it; otherwise float16, with a scaled
    loss so that small gradients don't vanish.
    """

    def __init__(self, device: torch.device, enabled: bool | None) -> None:
        self._device = device.type
        self.dtype: torch.dtype | None = None
        self._scaler: torch.amp.GradScaler | None = None
        if enabled if enabled is not None else device.type == "cuda":
            has_bfloat16 = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
            self.dtype = torch.bfloat16 if has_bfloat16 else torch.float16
            if self.dtype is torch.float16:
                self._scaler = torch.amp.GradScaler(device.type)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which the forward pass runs."""
        return torch.autocast(self._device, dtype=self.dtype) if self.dtype else nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of a step, or one of its passes."""
        torch.autograd.backward(loss if self._scaler is None else self._scaler.scale(loss))

    def step(self, averaging: GradientAveraging) -> None:
        """Update the weights by the mean of all ranks' gradients."""
        # Average the gradients before the scaler checks them for infinities, so that all ranks take or skip the
        # step together.
        with averaging.averaged():
            if self._scaler is None:
                averaging.optimizer.step()
            else:
                self._scaler.step(averaging.optimizer)
                self._scaler.update()

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return self._scaler.state_dict() if self._scaler else {}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        if self._scaler and state:
            self._scaler.load_state_dict(state)

"""Mixed precision on several ranks."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor


class Precision:
    """The precision of a step. Weights and gradients stay float32, so that ranks average in float32.

    `enabled`: None means on GPUs only. `dtype`: `bfloat16` or `float16`; None means bfloat16 if the device supports
    it, otherwise float16. The loss of float16 is scaled, so that small gradients don't vanish. Ends the process if
    the device has no such type.
    """

    def __init__(self, device: torch.device, enabled: bool | None, dtype: str | None = None) -> None:
        self._device = device.type
        self.dtype: torch.dtype | None = None
        self._scaler: torch.amp.GradScaler | None = None
        if enabled is None:
            enabled = device.type == "cuda" or dtype is not None
        if not enabled:
            return
        has_bfloat16 = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
        self.dtype = torch.bfloat16 if (dtype or "bfloat16") == "bfloat16" and has_bfloat16 else torch.float16
        if dtype == "bfloat16" and not has_bfloat16:
            raise SystemExit("--amp-dtype=bfloat16: this GPU has no bfloat16: use float16")
        if self.dtype is torch.float16:
            if device.type == "cpu":
                raise SystemExit("--amp-dtype=float16 needs a GPU: on CPUs, mixed precision is bfloat16")
            self._scaler = torch.amp.GradScaler(device.type)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which the forward pass runs."""
        return torch.autocast(self._device, dtype=self.dtype) if self.dtype else nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of a step, or one of its passes."""
        torch.autograd.backward(loss if self._scaler is None else self._scaler.scale(loss))

    def step(
        self, optimizer: torch.optim.Optimizer, clip: Callable[[Sequence[Tensor]], object] | None = None
    ) -> None:
        """Update the weights by their gradients, whose norm `clip` reduces.

        The gradients are the mean of all ranks', so that all ranks find the same norm and the same infinities, and
        take or skip the step together.
        """
        if clip is not None:
            if self._scaler is not None:
                self._scaler.unscale_(optimizer)
            clip([each for group in optimizer.param_groups for each in group["params"]])
        if self._scaler is None:
            optimizer.step()
        else:
            self._scaler.step(optimizer)
            self._scaler.update()

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return self._scaler.state_dict() if self._scaler else {}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        if self._scaler and state:
            self._scaler.load_state_dict(state)

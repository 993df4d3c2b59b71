"""Selects a rank's GPU for PyTorch, and ends a rank whose replica requested GPUs that PyTorch does not find."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dtj_trainer.train import accelerator

if TYPE_CHECKING:
    from collections.abc import Callable


def device_of(local_rank: int, need_nccl: Callable[[int], None]) -> torch.device:
    """Select this rank's GPU on its host, or the CPU if there is no GPU and none was requested.

    local_rank: the rank's number among those of its host. need_nccl: ends the process if the ranks of this host can't
    exchange tensors of so many GPUs.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not gpus:
        accelerator.need_gpus(gpus, _without_gpus())
        return torch.device("cpu")
    need_nccl(gpus)
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def _without_gpus() -> str:
    """Return why PyTorch finds no GPU."""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"PyTorch {torch.__version__} is built without CUDA"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return f"PyTorch {torch.__version__} can use no GPU: {str(error).splitlines()[0]}"
    return f"PyTorch {torch.__version__} finds no GPU"

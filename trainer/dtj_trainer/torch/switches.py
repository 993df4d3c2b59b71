"""Switches of PyTorch's own: algorithms that repeat, or that are fast, and the compiler."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import nn

    from dtj_trainer.train.options import Options

_COMPILERS = ("g++", "clang++", "c++")


def set_algorithms(options: Options) -> None:
    """Select algorithms by `--deterministic` and `--cudnn-benchmark`. Call it before the first work of a GPU."""
    torch.backends.cudnn.benchmark = options.cudnn_benchmark
    if options.deterministic:
        # cuBLAS reads the variable when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(mode=True)


def compile_in_place(network: nn.Module) -> None:
    """Compile the network at its first pass. Ends the process if there is no C++ compiler."""
    if not shutil.which(os.environ.get("CXX", "")) and not any(map(shutil.which, _COMPILERS)):
        raise SystemExit(
            f"--compile needs a C++ compiler, which this image lacks: install one of {', '.join(_COMPILERS)}, "
            "or name it in CXX"
        )
    network.compile()

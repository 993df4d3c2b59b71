"""Runs while an image is built, in it: whether its framework, its Horovod and its CUDA belong together.

before-horovod   PyTorch is installed, Horovod is not compiled yet: BUILD_IMAGE has PyTorch's CUDA
image            both are in the image, and compute on GPUs or neither does

A GPU is not needed. Ends with 1 and a line for each fault.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

TORCH_FOR_CPUS = (
    "set PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu, where this PyTorch is without CUDA"
)
TENSORFLOW_FOR_CPUS = "leave out --build-arg TENSORFLOW: tensorflow-cpu is without CUDA"
PAGE = "docs/gpu-images.md"


class Framework(NamedTuple):
    """What a framework says of itself."""

    name: str
    """With its version."""
    cuda: str | None
    """The version of CUDA that it is built with; None: none."""
    for_cpus: str = ""
    """How to have the same framework without CUDA."""


def before_horovod(framework: Framework, operations: str, toolkit: str | None) -> list[str]:
    """What is wrong before Horovod is compiled.

    operations: HOROVOD_GPU_OPERATIONS. toolkit: the CUDA of the image that compiles, None: none.
    """
    if not framework.cuda and operations:
        return [f"HOROVOD_GPU_OPERATIONS={operations} needs a framework with CUDA, {framework.name} has none"]
    if not framework.cuda:
        return []
    if not operations:
        return [_without_nccl(framework)]
    if toolkit is None:
        return [f"BUILD_IMAGE has no CUDA: take a devel image of CUDA {framework.cuda}, {framework.name}'s"]
    return _differs("BUILD_IMAGE", framework, toolkit)


def image(framework: Framework, nccl: bool, toolkit: str | None) -> list[str]:
    """What is wrong with an image. nccl: whether its Horovod has NCCL. toolkit: the CUDA of its base, None: none."""
    if framework.cuda and not nccl:
        return [_without_nccl(framework)]
    if nccl and not framework.cuda:
        return [f"Horovod is compiled with NCCL, {framework.name} without CUDA"]
    return _differs("BASE_IMAGE", framework, toolkit) if framework.cuda and toolkit else []


def _without_nccl(framework: Framework) -> str:
    return (
        f"{framework.name} is built with CUDA {framework.cuda} and Horovod would be without NCCL, so that it can't "
        f"average what is computed on a GPU. For an image for CPUs {framework.for_cpus}; {PAGE} builds one for GPUs"
    )


def _differs(which: str, framework: Framework, toolkit: str) -> list[str]:
    wanted, there = (version.split(".")[:2] for version in (framework.cuda or "", toolkit))
    if wanted == there:
        return []
    return [
        f"{which} has CUDA {toolkit}, and {framework.name} is built with {framework.cuda}: take an image of that"
    ]


def _installed() -> tuple[Framework, str]:
    """The framework, and the name of Horovod's module for it."""
    if find_spec("torch"):
        torch: Any = importlib.import_module("torch")
        return Framework(f"PyTorch {torch.__version__}", torch.version.cuda, TORCH_FOR_CPUS), "horovod.torch"
    tensorflow: Any = importlib.import_module("tensorflow")
    built = tensorflow.sysconfig.get_build_info()
    cuda = built.get("cuda_version") if built.get("is_cuda_build") else None
    return Framework(f"TensorFlow {tensorflow.__version__}", cuda, TENSORFLOW_FOR_CPUS), "horovod.tensorflow"


def _toolkit() -> str | None:
    """The version of CUDA of NVIDIA's images, and of those made from them."""
    if version := os.environ.get("CUDA_VERSION"):
        return version
    names = sorted(Path("/usr/local").glob("cuda-[0-9]*.[0-9]*"))
    return names[-1].name.removeprefix("cuda-") if names else None


def main() -> None:
    """The command line; see the module."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["KERAS_HOME"] = home  # Keras writes its settings at its import: not into the image
        faults, name = _faults(sys.argv[1:])
    if faults:
        sys.exit("\n".join(f"gpu_check: {fault}" for fault in faults))
    print(f"gpu_check: {name}: {sys.argv[1]} is right")


def _faults(words: list[str]) -> tuple[list[str], str]:
    framework, horovod = _installed()
    if words == ["before-horovod"]:
        faults = before_horovod(framework, os.environ.get("HOROVOD_GPU_OPERATIONS", ""), _toolkit())
    elif words == ["image"]:
        faults = image(framework, bool(importlib.import_module(horovod).nccl_built()), _toolkit())
    else:
        sys.exit(__doc__)
    return faults, f"{framework.name}, CUDA {framework.cuda or 'none'}"


if __name__ == "__main__":
    main()

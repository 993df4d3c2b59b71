"""Refuses build arguments that would fail together, or have no effect, before anything is built."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from base import IMAGE
from host import BuildError, pins

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

USUAL_TENSORFLOW = "tensorflow-cpu"
PAGE = "docs/gpu-images.md"
TORCH_CUDA = {"2.13.0": "13.0"}
"""The CUDA version of PyTorch's builds on PyPI, by PyTorch's version."""
_NVIDIAS = re.compile(r"(?:^|/)cuda:(?P<cuda>\d+\.\d+)(?:\.\d+)?-(?P<flavour>.*?)(?P<system>[a-z]+[\d.]+)$")
"""NVIDIA's images, from any registry: cuda:13.0.2-cudnn-devel-ubuntu24.04."""
_LOCAL_CUDA = re.compile(r"\+cu(\d+)(\d)$")
_NO_HOROVOD_FOR_TENSORFLOW = (
    "Horovod's operations for TensorFlow on GPUs can't be built: Horovod 0.28.1 calls stream_executor's "
    "AsGpuStreamValue, which TensorFlow has no more. TensorFlow trains on GPUs with parameter servers "
    "(--build-arg 'TENSORFLOW=tensorflow[and-cuda]'), Horovod with PyTorch (--image trainer-horovod)"
)


def for_gpus(args: Mapping[str, str]) -> bool:
    """Return whether TensorFlow is built with CUDA. Such an image has no Horovod."""
    return "cuda" in args.get("TENSORFLOW", USUAL_TENSORFLOW)


def refuse(image: str, args: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Raise BuildError for build arguments that don't work together.

    args: those of this image. given: those of the command line, which may be meant for another image.
    """
    if image == "trainer-horovod":
        faults = _of_torch(args)
    elif image == "trainer-tensorflow":
        faults = _of_tensorflow(args, given)
    else:
        return
    for fault in faults:
        raise BuildError(f"{image}: {fault}")


def _of_torch(args: Mapping[str, str]) -> Iterator[str]:
    version = args.get("TORCH_VERSION") or pins()["torch"]
    if given := args.get("TORCH_VERSION"):
        yield from _missing(args, f"TORCH_VERSION={given} does nothing", PACKAGES_FROM="index")
    for name in (
        "HOROVOD_GPU_OPERATIONS",
        "HOROVOD_BUILD_CUDA_CC_LIST",
        "HOROVOD_NCCL_HOME",
        "HOROVOD_NCCL_LINK",
    ):
        if value := args.get(name):
            yield from _missing(args, f"{name}={value} does nothing", HOROVOD_FROM="source")
    if args.get("PACKAGES_FROM") == "index" and not version.endswith("+cpu"):
        yield from _missing(
            args,
            f"PyTorch of the package index has CUDA, and a Horovod without NCCL can't train with it on GPUs ({PAGE}; "
            f"for CPUs add --build-arg TORCH_VERSION={version}+cpu and PyTorch's index for CPUs as "
            "PIP_EXTRA_INDEX_URL). It is not built",
            HOROVOD_FROM="source",
            HOROVOD_GPU_OPERATIONS="NCCL",
        )
    if args.get("HOROVOD_GPU_OPERATIONS"):
        yield from _cuda_images(args, _cuda_of(version))


def _cuda_images(args: Mapping[str, str], cuda: str | None) -> Iterator[str]:
    """Yield faults of the CUDA images. cuda: PyTorch's CUDA version, None if unknown."""
    devel = f"nvidia/cuda:{cuda or '<version>'}.<patch>-devel-ubuntu24.04"
    base, build = args["BASE_IMAGE"], args.get("BUILD_IMAGE", args["BASE_IMAGE"])
    if build == IMAGE:
        yield f"nvcc compiles Horovod's operations on GPUs, {IMAGE} has none: add --build-arg BUILD_IMAGE={devel}"
    known = {name: found for name in (base, build) if (found := _NVIDIAS.search(name))}
    for name, found in known.items():
        if cuda and found["cuda"] != cuda:
            yield f"{name} has CUDA {found['cuda']}, PyTorch is built with CUDA {cuda}: take an image of that"
    if build in known and "devel" not in known[build]["flavour"]:
        yield f"{build} has no nvcc, which compiles Horovod's operations on GPUs: add --build-arg BUILD_IMAGE={devel}"
    if len({found["system"] for found in known.values()}) > 1:
        yield f"{base} and {build} are of different systems: what one compiles does not run in the other"


def _cuda_of(torch: str) -> str | None:
    if local := _LOCAL_CUDA.search(torch):
        return f"{local[1]}.{local[2]}"
    return TORCH_CUDA.get(torch)


def _of_tensorflow(args: Mapping[str, str], given: Mapping[str, str]) -> Iterator[str]:
    tensorflow = args.get("TENSORFLOW", USUAL_TENSORFLOW)
    if tensorflow != USUAL_TENSORFLOW:
        yield from _missing(args, f"TENSORFLOW={tensorflow} does nothing", PACKAGES_FROM="index")
    if "HOROVOD_GPU_OPERATIONS" in given:
        yield _NO_HOROVOD_FOR_TENSORFLOW
    base = _NVIDIAS.search(args["BASE_IMAGE"])
    if for_gpus(args) and base and "cudnn" in base["flavour"]:
        yield f"{args['BASE_IMAGE']} brings a second cuDNN beside TensorFlow's own: take a base image without it"


def _missing(args: Mapping[str, str], what: str, **others: str) -> Iterator[str]:
    missing = [f"--build-arg {name}={value}" for name, value in others.items() if args.get(name) != value]
    if missing:
        yield f"{what} without {' '.join(missing)}: add it"

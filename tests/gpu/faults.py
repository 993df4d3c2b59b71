"""Rows of faults that dtj has to name by words."""

from __future__ import annotations

from collections.abc import Iterator

from tests.gpu.place import PROGRAM, CheckFailed, Place, gpu_only, standing
from tests.gpu.sheet import Sheet

_TOO_LARGE = "import torch; kept = [torch.empty(2**34, dtype=torch.uint8, device='cuda') for _ in range(64)]"
_ILLEGAL = """
import torch, triton
import triton.language as tl

@triton.jit
def write(at):
    tl.store(at + 2**45, 1)

write[(1,)](torch.zeros(1, dtype=torch.int32, device="cuda"))
torch.cuda.synchronize()
"""
_FILL = """
import sys, torch
torch.zeros(1, device="cuda")
left = torch.cuda.mem_get_info()[0] - 600 * 2**20
kept = torch.empty(left, dtype=torch.uint8, device="cuda")
print("filled", flush=True)
sys.stdin.read()
"""

TWO_RANKS, FILLED = "two ranks on one GPU", "a GPU that another process has filled"
BROKEN = (
    ("out of GPU memory", _TOO_LARGE, "CUDA out of memory"),
    ("illegal access", _ILLEGAL, "illegal memory access"),
)
"""The rows of `broken`: name, script, and the words of the failure."""


@gpu_only(TWO_RANKS)
def two_ranks(at: Place) -> Iterator[Sheet]:
    """Start two ranks on one GPU."""
    row = Sheet(TWO_RANKS)
    with at.job("two-ranks", [at.python, "-m", PROGRAM], ["--model=cnn"], gpus=1, ranks=2) as run:
        row.names(
            "this host has 2 ranks and 1 visible GPUs, and NCCL needs a GPU for each rank", run.ended(1)
        )
        row.require(
            run.status["failure"]["class"] == "NoAccelerator", f"the failure is {run.status['failure']}"
        )
    yield row


def no_gpu(at: Place) -> Iterator[Sheet]:
    """Start the program with an empty CUDA_VISIBLE_DEVICES where a GPU was asked for."""
    row = Sheet("CUDA_VISIBLE_DEVICES empty")
    variables = {"CUDA_VISIBLE_DEVICES": "", "DTJ_GPUS": "1", "DTJ_GPU_RESOURCE": "nvidia.com/gpu"}
    try:
        at.module(PROGRAM, f"--data={at.data}", env={**variables, "DTJ_ROOT": str(at.folder / "no-gpu")})
        row.require(False, "the program trains without the GPU that it was given")
    except CheckFailed as error:
        row.names("the replica requests 1 of nvidia.com/gpu, but PyTorch", str(error))
    yield row


def fewer_gpus(at: Place) -> Iterator[Sheet]:
    """Ask for more GPUs than the machine has."""
    row = Sheet("fewer GPUs than asked for")
    with at.job("fewer", [at.python, "-m", PROGRAM], gpus=64) as run:
        row.names("the job asks for 64 GPUs, this machine has", run.ended(2))
    yield row


@gpu_only(*(name for name, *_ in BROKEN))
def broken(at: Place) -> Iterator[Sheet]:
    """Run out of GPU memory, and write outside of it."""
    for name, code, words in BROKEN:
        row = Sheet(name)
        script = at.folder / f"{name.split()[0]}.py"
        script.write_text(code)
        with at.job(script.stem, [at.python, str(script)]) as run:
            run.ended(1)
            row.names(words, str(run.status["failure"]))
        yield row


@gpu_only(FILLED)
def filled(at: Place) -> Iterator[Sheet]:
    """Train on a GPU that another process has filled."""
    row = Sheet(FILLED)
    args = ["--model=resnet18", "--batch-size=4096", "--max-steps=5"]
    with standing(_FILL), at.job("filled", [at.python, "-m", PROGRAM], args) as run:
        run.ended(1)
        row.names("out of memory", str(run.status["failure"]))
    yield row

"""Ends a program whose replica requested accelerators that the program can't use, with the reason.

The programs themselves query their frameworks: this module imports no framework.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

from dtj_trainer import contract, progress
from dtj_trainer.contract.failure_class import FailureClass

log = logging.getLogger("dtj_trainer.programs")

_PAGE = "docs/gpu-images.md"


def asked() -> int:
    """Return how many accelerators this replica requested."""
    text = os.environ.get(contract.ENV_GPUS, "").strip()
    return int(text) if text.isdecimal() else 0


def refuse(message: str) -> NoReturn:
    """End the process, and report the reason to the job's status."""
    progress.failed(FailureClass.NO_ACCELERATOR, message)
    print(f"{FailureClass.NO_ACCELERATOR}: {message}", file=sys.stderr, flush=True)
    sys.exit(contract.EXIT_UNAVAILABLE)


def need_gpus(found: int, why_none: str) -> None:
    """End the process if the replica requested accelerators and the framework found no GPU.

    found: GPUs that the framework can use. why_none: the reason for none, as `PyTorch 2.13.0 is built without CUDA`.
    """
    if found or not asked():
        return
    resource = os.environ.get(contract.ENV_GPU_RESOURCE, "accelerators")
    refuse(
        f"the replica requests {asked()} of {resource}, but {why_none}: use an image built for GPUs ({_PAGE}), or "
        "set gpus: 0 to train on CPUs"
    )


def need_nccl_of_horovod(gpus: int, ranks: int, *, built: bool) -> None:
    """Call `need_nccl` for a Horovod job. built: whether Horovod is built with NCCL."""
    remedy = f"build Horovod with HOROVOD_FROM=source and HOROVOD_GPU_OPERATIONS=NCCL ({_PAGE})"
    without = None if built else f"Horovod in this image is compiled without NCCL: {remedy}"
    need_nccl(gpus, ranks, without=without, field="horovod.slotsPerWorker")


def need_nccl(gpus: int, ranks: int, *, without: str | None, field: str) -> None:
    """End the process if NCCL can't average the gradients of this host's ranks on its GPUs.

    gpus: visible GPUs of this host. ranks: ranks on this host. without: what in this image has no NCCL, with the
    remedy; None if nothing. field: the job's field with the number of ranks of a host.
    """
    if without:
        refuse(f"ranks on GPUs average their gradients by NCCL, but {without}")
    if ranks > gpus:
        refuse(
            f"this host has {ranks} ranks and {gpus} visible GPUs, and NCCL needs a GPU for each rank: "
            f"set {field} to the number of GPUs of a replica"
        )
    if gpus > ranks:
        log.warning(
            "%d of this host's %d GPUs are idle: each rank uses one GPU, and %s is %d",
            gpus - ranks,
            gpus,
            field,
            ranks,
        )

"""Whether a program has the accelerators that its replica asked for, and can use them; else it ends and says why.

What is asked of the frameworks is in the programs: nothing is imported here.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

from dtj_trainer import contract, progress
from dtj_trainer.failure_class import FailureClass

log = logging.getLogger("dtj_trainer.programs")

_PAGE = "docs/gpu-images.md"


def asked() -> int:
    """How many accelerators this replica asked for."""
    text = os.environ.get(contract.ENV_GPUS, "").strip()
    return int(text) if text.isdecimal() else 0


def refuse(message: str) -> NoReturn:
    """End the process, and tell the job's status why."""
    progress.failed(FailureClass.NO_ACCELERATOR, message)
    print(f"{FailureClass.NO_ACCELERATOR}: {message}", file=sys.stderr, flush=True)
    sys.exit(contract.EXIT_UNAVAILABLE)


def need_gpus(found: int, why_none: str) -> None:
    """End the process when the replica asked for accelerators and the framework has found no GPU.

    found: GPUs that the framework can use. why_none: why there are none, as `PyTorch 2.13.0 is built without CUDA`.
    """
    if found or not asked():
        return
    resource = os.environ.get(contract.ENV_GPU_RESOURCE, "accelerators")
    refuse(
        f"{asked()} of {resource} {'was' if asked() == 1 else 'were'} asked for, and {why_none}: "
        f"{_PAGE} builds an image for GPUs; gpus: 0 trains on CPUs"
    )


def need_nccl(gpus: int, ranks: int, *, built: bool) -> None:
    """End the process when Horovod can't average the gradients of this host's ranks on its GPUs.

    gpus: those of this host that its ranks see. ranks: those of this host. built: whether Horovod has NCCL.
    """
    if not built:
        refuse(
            "the framework computes on a GPU, and Horovod in this image is compiled without NCCL: "
            f"{_PAGE} builds it with HOROVOD_FROM=source and HOROVOD_GPU_OPERATIONS=NCCL"
        )
    if ranks > gpus:
        refuse(
            f"{ranks} ranks on this host have {gpus} of its GPUs, and NCCL needs one for each rank: "
            "make horovod.slotsPerWorker as large as gpus"
        )
    if gpus > ranks:
        log.warning(
            "%d of this host's %d GPUs do nothing: each rank takes one, horovod.slotsPerWorker is %d",
            gpus - ranks,
            gpus,
            ranks,
        )

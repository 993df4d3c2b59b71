"""A program that knows nothing of dtj, and trains with PyTorch from the newest checkpoint.

Arguments: `ddp` or `horovod`, the folder of checkpoints, the file of steps, and the number of steps after a
checkpoint. Without that number, and from the first step, the program does not end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

SAVES_EVERY = int(os.environ.get("SAVES_EVERY", "100"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0.02"))


def main(by: str, checkpoints: Path, steps: Path, more: int = sys.maxsize) -> None:
    """Train; return after `more` steps if the first of them follows a checkpoint."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model: torch.nn.Module = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
    )
    optimizer = torch.optim.Adam(model.parameters())
    if by == "horovod":
        import horovod.torch as hvd

        hvd.init()
        rank = hvd.rank()
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    else:
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
        model = torch.nn.parallel.DistributedDataParallel(model)
    step = 0
    if found := sorted(checkpoints.glob("step-*.pt")):
        saved = torch.load(found[-1], weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    if by == "horovod":
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    print(f"rank {rank} begins after step {step}", flush=True)
    last = step + more if step else sys.maxsize
    while step < last:
        optimizer.zero_grad()
        model(torch.randn(16, 32)).square().mean().backward()
        optimizer.step()
        step += 1
        with steps.open("a") as file:
            told = {"rank": rank, "pid": os.getpid(), "step": step, "time": time.time()}
            file.write(json.dumps(told) + "\n")
        if rank == 0 and step % SAVES_EVERY == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, checkpoints / "new.tmp")
            (checkpoints / "new.tmp").rename(checkpoints / f"step-{step:09}.pt")
            for old in sorted(checkpoints.glob("step-*.pt"))[:-3]:
                old.unlink()
        time.sleep(STEP_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))

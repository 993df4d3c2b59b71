"""Rows of trainings by `dtj run`: accuracy, resume, a divided network, the export."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dtj_trainer.artifacts.local_checkpoints import MARK_FILE
from tests.gpu.place import PROGRAM, Place, Run
from tests.gpu.sheet import Sheet, needs_gpu

ACCURACY = 0.93
SMALL_ACCURACY = 0.5
"""After some steps on a CPU."""
TOLERANCE = 1e-5
"""Of weights after a resume, and after the same steps without one."""
REPEATABLE = [
    *("--model=cnn", "--batch-size=32", "--epochs=100", "--max-steps=300", "--checkpoint-steps=50"),
    *("--deterministic", "--no-amp"),
]
"""Options of a training whose weights are the same each time. Two checkpoints are some tenths of a second apart."""
PARITY = 1e-3
"""Of logits, relative and absolute."""
_PICTURES = 250


def ddp(at: Place) -> Iterator[Sheet]:
    """Train by DistributedDataParallel over NCCL with one rank, and export the model."""
    whole = ["--model=resnet18", "--epochs=12", "--batch-size=256", "--augment", "--data-workers=4"]
    row = Sheet("DDP program, ResNet18" if at.gpu else "DDP program")
    command = [at.python, "-m", PROGRAM]
    small = ["--model=cnn", "--max-steps=60", "--batch-size=64", "--epochs=9"]
    with at.job(
        "ddp", command, whole if at.gpu else small, env={"NCCL_DEBUG": "VERSION"}, seconds=150
    ) as run:
        output = run.ended()
        row.hold(
            "accuracy", run.metrics("test")[-1]["accuracy"], at_least=ACCURACY if at.gpu else SMALL_ACCURACY
        )
        row.say("examples/s", max(each["examplesPerSecond"] for each in run.metrics("train")))
        row.names(f"on {'cuda' if at.gpu else 'cpu'} with", output)
        if at.gpu:
            row.require("NCCL version" in output, "NCCL was not used")
        yield row
        yield _export(at, run)


def _export(at: Place, run: Run) -> Sheet:
    """Compare the exported model with the network on the device that trained it."""
    import numpy as np
    import onnxruntime
    import torch

    from dtj_trainer.data.pictures import load_pictures
    from dtj_trainer.torch.models import build

    row = Sheet("export")
    folder = run.root / "model"
    exported = folder / "model.onnx"
    row.require(exported.is_file(), f"no model.onnx: {run.output[-800:]}")
    if not exported.is_file():
        return row
    told = json.loads((folder / "model.json").read_text())
    torch.backends.cudnn.allow_tf32 = False
    device = "cuda" if at.gpu else "cpu"
    network = build(told["model"], tuple(told["input"]["shape"][1:]), told["classes"])
    network.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    network.to(device).eval()
    pixels = load_pictures(str(at.data)).test.read(np.arange(_PICTURES)).pixels
    with torch.inference_mode():
        wanted = network(torch.from_numpy(pixels).to(device)).cpu().numpy()
    session = onnxruntime.InferenceSession(exported, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    found: Any = session.run(None, {given.name: pixels})[0]
    difference = np.abs(found - wanted) / (1 + np.abs(wanted))
    row.hold("difference of logits", float(difference.max()), at_most=PARITY)
    row.hold("same class", float((found.argmax(1) == wanted.argmax(1)).mean()), at_least=0.998)
    return row


def own_script(at: Place) -> Iterator[Sheet]:
    """Train a script that knows nothing of dtj."""
    row = Sheet("own script")
    script = Path(__file__).with_name("own_script.py")
    words = [str(at.data), "/dtj/checkpoints", *(("10", "64") if at.gpu else ("5", "8"))]
    with at.job("own-script", [at.python, str(script)], words) as run:
        output = run.ended()
    told = output.rpartition("accuracy ")[2].split()
    row.hold("accuracy", float(told[0]), at_least=ACCURACY if at.gpu else SMALL_ACCURACY)
    row.require(told[2] == ("cuda" if at.gpu else "cpu"), f"trained on {told[2]}")
    yield row


def resume(at: Place) -> Iterator[Sheet]:
    """Kill the rank by SIGKILL; compare the weights with those of a training without a kill."""
    import torch

    row = Sheet("resume after kill -9")
    args = [*REPEATABLE, "--no-export"]
    command = [at.python, "-m", PROGRAM]
    if at.gpu:
        args.append("--model=resnet18")
    with at.job("undisturbed", command, args) as run:
        run.ended()
        wanted = torch.load(run.root / "model/model.pt", weights_only=True)
    with at.job("killed", command, args, retries=1) as run:
        at.until(lambda: any((run.root / "checkpoints").glob(f"[0-9]*/{MARK_FILE}")), "a checkpoint")
        rank = _rank_of(run)
        os.kill(rank, signal.SIGKILL)
        run.ended()
        found = torch.load(run.root / "model/model.pt", weights_only=True)
        begun = run.metrics("start")[-1]["step"]
    row.say("resumed at step", begun)
    row.require(begun, "the second attempt began at step 0")
    row.require(run.status["attempt"] == 2, f"attempt {run.status['attempt']} trained to the end")
    differences = [(value.float() - found[name].float()).abs().max() for name, value in wanted.items()]
    row.hold("difference of weights", float(max(differences)), at_most=TOLERANCE)
    yield row


def _rank_of(run: Run) -> int:
    """Return the process of rank 0. The command line of dtj-launch has the same words at other positions."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                variables = (entry / "environ").read_bytes()
            except OSError:
                continue
            if PROGRAM.encode() in words[1:3] and str(run.root).encode() in variables:
                found.append(int(entry.name))
    (rank,) = found
    return rank


def fsdp(at: Place) -> Iterator[Sheet]:
    """Train a network by FSDP with one rank, and trace some steps of it."""
    row = Sheet("FSDP with one rank")
    args = ["--model=cnn", "--fsdp", "--max-steps=40", "--profile-steps=10:12", "--no-export"]
    with at.job("fsdp", [at.python, "-m", PROGRAM], args) as run:
        run.ended()
        row.hold("accuracy", run.metrics("test")[-1]["accuracy"], at_least=SMALL_ACCURACY)
        yield row
        traces = [*(run.root / "tensorboard/profile").glob("*.trace.json")]
        events = json.loads(traces[0].read_text())["traceEvents"] if traces else []
    if not at.gpu and events:
        yield needs_gpu("trace with kernels")
        return
    row = Sheet("trace with kernels")
    kernels = sum(event.get("cat") == "kernel" for event in events)
    row.hold("kernels of 3 steps", kernels, at_least=1)
    yield row

"""Trains networks of users on one rank or two, all in the same processes.

    MASTER_ADDR=127.0.0.1 MASTER_PORT=… mpirun -n RANKS python -m tests.trainer.own_checks FOLDER KIND:STYLE…

KIND is `alone`, `ddp`, `horovod` or `fsdp`. Rank 0 prints what became of each cell, as a line of JSON. The
workspaces are below the folder.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import closing
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

from dtj_trainer.data.pictures import Pictures, PictureSet
from dtj_trainer.programs.torch_image_classification import model_of, saver_of
from dtj_trainer.torch.c10d_ranks import joined_ranks
from dtj_trainer.torch.horovod_ranks import TorchRanks
from dtj_trainer.torch.mesh_ranks import MeshRanks
from dtj_trainer.torch.model import TorchModel
from dtj_trainer.torch.ranks import TensorRanks
from dtj_trainer.train.options import parse
from dtj_trainer.train.picture_training import train

CPU = torch.device("cpu")
EXAMPLES = 17
"""Two steps of 8 and a last one of a single example, of which the second rank has none."""


def data() -> PictureSet:
    chance = np.random.default_rng(1)
    pictures = Pictures(chance.integers(0, 256, (EXAMPLES, 1, 8, 8)).astype("u1"), np.arange(EXAMPLES) % 10)
    return PictureSet(pictures, pictures, 10)


def trained(root: Path, ranks: TensorRanks, style: str, *options: str) -> dict[str, Any]:
    """Train a network; what became of it."""
    os.environ["DTJ_ROOT"] = str(root)
    model = f"--model=tests.trainer.own_networks:{style}"
    fixed = ("--data=none", "--global-batch-size=8", "--epochs=1", "--no-export", "--lr=0.01")
    flags = {"grad_accumulation": True, "pytorch": True, "division": True}
    chosen = parse([*fixed, model, *options], "program", "", ("cnn", "resnet18"), **flags)
    try:
        if chosen.divided:
            ranks = MeshRanks(chosen, CPU)
        pictures = data()
        with closing(model_of(chosen, pictures, CPU, ranks)) as made:
            train(chosen, pictures, made, ranks, saver_of(chosen, pictures, made, ranks))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - what became of the cell
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    if ranks.rank:
        return {}
    folder = root / "model"
    described = json.loads((folder / "model.json").read_text())
    state = torch.load(folder / "model.pt", weights_only=True)
    lines = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    return {
        "steps": described["steps"],
        "finite": all(value.isfinite().all().item() for value in state.values()),
        "exported": (folder / "model.pt2").exists(),
        "export": described.get("export"),
        "state": {name: value.tolist() for name, value in state.items() if value.numel() <= 64},
        "losses": [line["loss"] for line in lines if line["kind"] == "train"],
    }


def main() -> None:
    os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
    os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
    torch.set_num_threads(1)
    hvd.init()
    TorchModel.try_export = lambda _: None  # type: ignore[method-assign]  # A process for each cell takes seconds.
    folder, *cells = sys.argv[1:]
    with joined_ranks(CPU) as together:
        kinds = {"alone": TensorRanks(), "ddp": together, "horovod": TorchRanks(), "fsdp": together}
        for cell in cells:
            kind, style, *options = cell.split(":")
            root = Path(folder) / cell / str(together.rank)
            root.mkdir(parents=True)
            options += ["--fsdp"] * (kind == "fsdp")
            found = trained(root, kinds[kind], style, *options)
            failed = together.gather(found.get("error"), "cell")
            if together.rank == 0:
                print(json.dumps({"cell": cell, **found, "errors": failed}), flush=True)


if __name__ == "__main__":
    main()

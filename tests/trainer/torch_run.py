"""A PyTorch training with real ranks on this machine, without torchrun."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, Self

import torch
from tests import warm
from tests.patience import PATIENCE
from tests.trainer.conftest import until

from dtj.local.store_keeper import free_ports

PROGRAM = "dtj_trainer.programs.torch_image_classification"


def rank_variables(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The variables of a rank; all ranks are on one host."""
    return {
        **{"RANK": str(rank), "LOCAL_RANK": str(rank)},
        **{"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
    }


class Run:
    """One run of the program. Rank r has the workspace `root/r`. One rank gets none of the variables.

    The model is not exported, which takes seconds, unless an option says so.
    """

    def __init__(self, root: Path, data: Path, ranks: int, *options: str, **environment: str) -> None:
        self.root, self._roots = root / "0", [root / str(rank) for rank in range(ranks)]
        (port,) = free_ports(1)
        self.processes = []
        for rank, workspace in enumerate(self._roots):
            workspace.mkdir(parents=True, exist_ok=True)
            ours = {"DTJ_ROOT": str(workspace), "OMP_NUM_THREADS": "1", "DTJ_ARTIFACTS_URI": ""}
            variables = rank_variables(rank, ranks, port) if ranks > 1 else {}
            with (workspace / "out").open("wb") as output:
                self.processes.append(
                    subprocess.Popen(
                        [warm.python("torch"), "-m", PROGRAM, f"--data={data}", "--no-export", *options],
                        env={**os.environ, **ours, **variables, **environment},
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )

    @property
    def outputs(self) -> list[str]:
        return [(workspace / "out").read_text() for workspace in self._roots]

    def ended(self, code: int = 0) -> Self:
        codes = [process.wait(200 * PATIENCE) for process in self.processes]
        assert codes == [code] * len(codes), "\n".join(self.outputs)
        return self

    def says(self, pattern: str) -> re.Match[str]:
        """Wait until rank 0 writes a text."""
        return until(lambda: re.search(pattern, self.outputs[0]), pattern, 120, lambda: self.outputs[0])  # type: ignore[no-any-return]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.root / "metrics.jsonl").read_text().splitlines()]

    @property
    def sha256(self) -> str:
        return str(self.metrics[-1]["weightsSha256"])

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = torch.load(self.root / "model/model.pt", weights_only=True)
        return state

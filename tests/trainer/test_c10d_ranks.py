"""The end of a process group: no thread of gloo outlives it, which could abort the process at the exit of Python."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.patience import PATIENCE

pytestmark = pytest.mark.torch
PROGRAM = """
from pathlib import Path
import torch
from dtj_trainer.torch.c10d_ranks import C10dRanks, joined_ranks

def gloo():
    return {name for file in Path("/proc/self/task").glob("*/comm") if "gloo" in (name := file.read_text().strip())}

with joined_ranks(torch.device("cpu"), C10dRanks) as ranks:
    averaging = ranks.averaging(torch.nn.Linear(2, 1), None, 1)
    averaging.network(torch.ones(1, 2)).sum().backward()
    print(gloo())
print(gloo())
"""


def test_no_thread_of_gloo_outlives_the_group() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={name: value for name, value in os.environ.items() if name != "RANK"},
        capture_output=True,
        text=True,
        timeout=100 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.splitlines()
    assert "pt_gloo_runloop" in before
    assert after == "set()"

"""The check of docs/performance-gpu.md, on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.advisories import PINS, pins_of
from tests.gpu import kit, rows, sheet
from tests.trainer import local_runs
from tests.trainer.conftest import REPOSITORY

pytestmark = pytest.mark.torch
warm_torch = local_runs.warm_torch

TRAININGS = {"ddp", "own_script", "resume", "fsdp"}
"""Rows that train. Other tests cover their subjects in less time, and `make gpu-kit` runs these rows."""
GPU_ONLY = {
    *("fp16 beside a loop by hand", "channels-last beside a loop by hand", "compile beside a loop by hand"),
    *("two ranks on one GPU", "utilisation beside nvidia-smi", "idle GPU"),
    *("out of GPU memory", "illegal access", "a GPU that another process has filled", "waiting interpreter"),
}
ON_CPU = {
    *("fp32 beside a loop by hand", "bf16 beside a loop by hand", "data from S3 and from the cache"),
    *("saves beside a training", "CUDA_VISIBLE_DEVICES empty", "fewer GPUs than asked for"),
}


def verdicts(python: Path, out: Path, *words: str) -> dict[str, str]:
    """Run the check; return the verdict of each row."""
    command = [sys.executable, "tests/gpu/run.py", "--python", str(python), "--kit", str(out / "none")]
    result = subprocess.run(
        [*command, "--out", str(out), "--seconds", "100000", *words],
        cwd=REPOSITORY,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return {row["name"]: row["verdict"] for row in json.loads((out / "gpu.json").read_text())["rows"]}


def test_rows_pass_or_need_a_gpu(warm_torch: Path, tmp_path: Path) -> None:
    found = verdicts(
        warm_torch / "python", tmp_path, "--rows", *(row for row in rows.ROWS if row not in TRAININGS)
    )
    assert found == dict.fromkeys(ON_CPU, sheet.PASSED) | dict.fromkeys(GPU_ONLY, sheet.NEEDS_GPU)
    table = (tmp_path / "gpu.md").read_text()
    assert "- PyTorch: 2.13.0+cpu, and dtj pins 2.13.0" in table
    assert "| illegal access | needs a GPU | 0.0 |  |" in table


@pytest.mark.whole
def test_all_rows_pass_or_need_a_gpu(tmp_path: Path) -> None:
    assert set(verdicts(Path(sys.executable), tmp_path).values()) == {sheet.PASSED, sheet.NEEDS_GPU}


def test_a_row_fails_at_its_bound_and_a_row_that_breaks_is_told(tmp_path: Path) -> None:
    row = sheet.Sheet("row")
    row.hold("ratio", 0.961, at_least=0.97)
    row.names("words", "others")
    assert row.verdict == sheet.FAILED
    sheet.write(tmp_path, {"card": "none"}, [row, sheet.needs_gpu("other")])
    lines = (tmp_path / "gpu.md").read_text().splitlines()
    assert "ratio is 0.961, and must be at least 0.97; nothing says 'words'" in lines[-2]
    assert not sheet.good(row)


def test_each_package_of_the_kit_is_pinned() -> None:
    assert set(kit.PACKAGES) <= pins_of(PINS.read_text()).keys()

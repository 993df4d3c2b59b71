"""`dtj run SCRIPT`: the ranks run a copy of the script's folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE

SCRIPT = """
import os, pathlib, sys
import words

def never_called():
    import torch.distributed

attempt, origin = os.environ["DTJ_ATTEMPT"], pathlib.Path(sys.argv[1])
print(f"attempt {attempt} has {words.TEXT} in {os.getcwd()}")
if attempt == "1":
    for folder in (origin, pathlib.Path()):
        (folder / "words.py").write_text("TEXT = 'new words'")
    sys.exit(3)
"""


def test_each_attempt_runs_the_folder_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "my-training"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "words.py").write_text("TEXT = 'old words'")
    run = subprocess.run(
        [
            *(sys.executable, "-c", "from dtj.cli.main import main; main()"),
            *("run", str(folder / "train.py"), "--workers", "1", "--", str(folder)),
        ],
        env={**os.environ, "DTJ_HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=100 * PATIENCE,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "train.py:6: import torch.distributed → strategy TorchDistributed" in run.stderr
    for attempt in (1, 2):
        assert f"[worker-0] attempt {attempt} has old words in " in run.stdout
    assert (tmp_path / "home/runs/default/train/code.tar.gz").exists()

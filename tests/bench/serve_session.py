"""The in-process loop over a session: `python -m tests.bench.serve_session FOLDER THREADS BATCH SECONDS`.

Prints the examples a second, of which no server of the same model and threads can answer more.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime

from tests.bench.serve_models import MODELS, pixels

ROOT = Path(__file__).parents[2]
WARM_SECONDS = 0.3


def session_rate(folder: Path, threads: int, batch: int, seconds: float) -> float:
    """Examples a second, in a process of its own. Raises RuntimeError."""
    words = [str(folder), str(threads), str(batch), str(seconds)]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.bench.serve_session", *words], cwd=ROOT, capture_output=True, text=True
    )
    if ended.returncode:
        raise RuntimeError((ended.stderr.strip() or "no output").splitlines()[-1])
    return float(ended.stdout)


def run(folder: Path, threads: int, batch: int, seconds: float) -> float:
    """Examples a second, with onnxruntime's own settings for the threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(folder / "model.onnx", options)
    (model,) = [each for each in MODELS if each.name == folder.name]
    inputs = np.ascontiguousarray(pixels(model)[:batch])
    begun = time.perf_counter() + WARM_SECONDS
    while time.perf_counter() < begun:
        session.run(None, {"pixels": inputs})
    begun, count = time.perf_counter(), 0
    while time.perf_counter() < begun + seconds:
        session.run(None, {"pixels": inputs})
        count += batch
    return count / (time.perf_counter() - begun)


if __name__ == "__main__":
    print(run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))

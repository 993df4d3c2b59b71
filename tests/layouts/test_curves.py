"""Eight programs that know nothing of dtj, by `dtj run`: their progress, curves and stall, as a table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dtj.api.errors import NotFound
from dtj.api.status import ConditionStatus
from tests.layouts.test_kills import HERE, python
from tests.trainer.conftest import until
from tests.trainer.local_runs import DtjRun, write_job
from tests.trainer.local_runs import start as start  # a fixture

pytestmark = [pytest.mark.layouts, pytest.mark.timeout(1800)]
# Each hangs after some of its steps: the step, all steps, and what says so.
PROGRAMS = {
    "tqdm_loop": (300, 600, "Output"),
    "keras_fit": (72, 108, "Output"),
    "hf_trainer": (59, 96, "Output"),
    "lightning_fit": (59, None, "Output"),
    "accelerate_example": (None, None, "Output"),
    "nanogpt_prints": (150, None, "Output"),
    "summary_writer": (249, None, "TensorBoard"),
    "tf_summary": (249, None, "TensorBoard"),
}


def is_stalled(run: DtjRun, job: str, step: int | None) -> bool:
    try:
        status = run.status(job)
    except NotFound:  # It begins.
        return False
    progress = status.progress
    if progress is None or (progress.epoch is None if step is None else (progress.step or 0) < step / 2):
        return (
            False  # A bar in a log is up to ten seconds old, and a busy machine may tell a stall too early.
        )
    held = {each.type: each.status for each in status.conditions}
    return held.get("Stalled") is ConditionStatus.TRUE and held.get("Failed") is None


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_progress_and_curves_and_its_stall_is_found(
    name: str,
    start: Callable[..., DtjRun],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # Two of the programs log below their working directory.
    step, total, source = PROGRAMS[name]
    job = name.replace("_", "-")
    file = write_job(
        tmp_path,
        job,
        [str(python()), str(HERE / "curves" / f"{name}.py")],
        strategy="TorchDistributed",
        # A stall that the output alone tells must not restart the job.
        runPolicy={"stallTimeoutSeconds": 30, "stallPolicy": "Restart" if source == "Output" else "Report"},
    )
    run = start(file)
    until(
        lambda: run.process.poll() is not None or is_stalled(run, job, step),
        "the stall is found", 600, lambda: run.output,
    )  # fmt: skip
    status = run.status(job)
    progress = status.progress
    assert run.process.poll() is None, run.output
    assert progress is not None
    assert progress.source == source
    assert status.attempt == 1
    if step is not None:
        assert (progress.step or 0) <= step + 1
        assert progress.steps_per_second
    assert progress.total_steps == total
    assert (progress.eta_seconds is not None) == (total is not None)
    os.kill(run.process.pid, signal.SIGINT)
    run.process.wait(90)
    read = subprocess.run(
        [Path(sys.executable).with_name("dtj"), "artifacts", "cp", job, "metrics.jsonl", "-", "--local"],
        env={**os.environ, "DTJ_HOME": str(run.home)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = [json.loads(line) for line in read.stdout.splitlines()]
    losses = [row for row in rows if row["kind"] == "train" and "loss" in row]
    assert len(losses) >= 2
    with capsys.disabled():
        print(
            f"\n{name}: step {progress.step}/{progress.total_steps}, epoch {progress.epoch}, "
            f"{progress.steps_per_second} step/s, ETA {progress.eta_seconds} s, loss {progress.loss}, "
            f"by {progress.source}, {len(losses)} rows with a loss; Stalled"
        )

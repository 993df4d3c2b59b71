"""A training by `dtj run` with one hanging rank: the stacks are kept, and the next attempt succeeds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.patience import PATIENCE
from tests.trainer.conftest import kill_with_descendants

from dtj.local.runs import Runs

STEPS, HANGS_AT = 20, 12
# Two that need each other for each step, and a ps that listens, as the operator waits for.
PROGRAM = f"""
import json, os, pathlib, socket, threading, time
from dtj_trainer import progress
from dtj_trainer.artifacts import checkpoints

def waits_for_an_answer_that_never_comes():
    threading.Event().wait()

if "TF_CONFIG" in os.environ:
    config = json.loads(os.environ["TF_CONFIG"])
    role, index = config["task"]["type"], config["task"]["index"]
    if role in ("ps", "worker"):
        host, port = config["cluster"][role][index].split(":")
        listener = socket.create_server((host, int(port)))
    if role == "ps":
        time.sleep(600)
    me = "chief worker".split().index(role)
else:
    me = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["HOROVOD_RANK"])
attempt, marks = int(os.environ["DTJ_ATTEMPT"]), pathlib.Path(os.environ["MARKS"])
newest = checkpoints.newest() if me == 0 else None
begin = marks / f"begin-{{attempt}}"
if me == 0:
    begin.with_suffix(".new").write_text(str(newest.step if newest else 0))
    begin.with_suffix(".new").rename(begin)
while not begin.exists():
    time.sleep(0.02)
for step in range(int(begin.read_text()) + 1, {STEPS} + 1):
    if me == 1 and attempt == 1 and step == {HANGS_AT}:
        waits_for_an_answer_that_never_comes()
    (marks / f"{{attempt}}-{{step}}-{{me}}").touch()
    while not (marks / f"{{attempt}}-{{step}}-{{1 - me}}").exists():
        time.sleep(0.02)
    if me == 0:
        if step % 5 == 0:
            checkpoints.save(step, lambda folder: (folder / "state").write_text(str(step)))
        progress.report(step=step, total_steps={STEPS}, final=True)
"""
HOROVOD: dict[str, Any] = {"strategy": "Horovod", "replicaSpecs": {"worker": {"replicas": 2}}}
PARAMETER_SERVER: dict[str, Any] = {
    "strategy": "ParameterServer",
    "replicaSpecs": {"worker": {"replicas": 1}, "ps": {"replicas": 1}},
}


def dtj(home: Path, *words: str) -> str:
    """Standard output of a `dtj` command that succeeds."""
    process = subprocess.Popen(
        [sys.executable, "-c", "from dtj.cli.main import main; main()", *words],
        env={**os.environ, "DTJ_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output = process.communicate(timeout=240 * PATIENCE)[0]
    finally:
        kill_with_descendants(process.pid)
    assert process.returncode == 0, output
    return output


@pytest.mark.parametrize(
    ("spec", "hangs"), [(HOROVOD, "1"), (PARAMETER_SERVER, "worker-0")], ids=["Horovod", "ParameterServer"]
)
def test_a_rank_that_hangs_is_shown_and_the_next_attempt_succeeds(
    tmp_path: Path, spec: dict[str, Any], hangs: str
) -> None:
    home, marks, file = tmp_path / "home", tmp_path / "marks", tmp_path / "job.yaml"
    marks.mkdir()
    job = {
        "apiVersion": "dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": "hangs"},
        "spec": {
            **spec,
            "image": "none",
            "command": [sys.executable, "-c", PROGRAM],
            "env": [{"name": "MARKS", "value": str(marks)}],
            "artifacts": {"uri": "s3://training/jobs"},
            "runPolicy": {"stallTimeoutSeconds": 20, "stallPolicy": "Restart", "backoffLimit": 1},
        },
    }
    file.write_text(yaml.safe_dump(job))

    output = dtj(home, "run", str(file))

    status = Runs(home).find("hangs").job.status
    assert status.phase == "Succeeded", output
    assert (status.attempt, status.restarts.application, status.restarts.infrastructure) == (2, 1, 0)
    assert status.failure is not None
    assert status.failure.failure_class == "Stalled"
    assert f"the step has stayed at {HANGS_AT - 1} for" in (status.failure.message or "")
    assert (marks / "begin-2").read_text() == "10"
    kept = re.findall(
        r"logs/attempt-1/stacks-(\S+)-(\d)\.txt", dtj(home, "artifacts", "ls", "hangs", "--local")
    )
    last = max(dump for _, dump in kept)  # On a busy machine, the start counts as a stall too.
    of_the_last = [name for name, dump in kept if dump == last]
    assert len(of_the_last) == len({*of_the_last}) == (2 if spec is HOROVOD else 3)
    text = dtj(home, "artifacts", "cp", "hangs", f"logs/attempt-1/stacks-{hangs}-{last}.txt", "-", "--local")
    assert "waits_for_an_answer_that_never_comes (<string>:" in text

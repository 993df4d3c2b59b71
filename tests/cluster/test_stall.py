"""A training with one hanging rank: detection, stacks in the bucket, and the restart."""

from __future__ import annotations

import pytest

from tests.cluster.jobs import Manifest, Namespace, example

pytestmark = [pytest.mark.cluster, pytest.mark.alone]
STEPS, HANGS_AT = 20, 12
# One program for both: ranks that reduce together, of which rank 1 hangs; a chief that hangs, with servers that only
# listen, as the operator waits for.
PROGRAM = f"""
import json, os, socket, threading, time
from dtj_trainer import progress
from dtj_trainer.artifacts import checkpoints

def waits_for_an_answer_that_never_comes():
    threading.Event().wait()

if "TF_CONFIG" in os.environ:
    if json.loads(os.environ["TF_CONFIG"])["task"]["type"] in ("ps", "worker"):
        listener = socket.create_server(("", 2222))
        time.sleep(3600)
    hangs, together = True, lambda: time.sleep(0.05)
else:
    import torch
    import horovod.torch as hvd
    hvd.init()
    hangs, together = hvd.rank() == 1, lambda: hvd.allreduce(torch.zeros(1))
newest = checkpoints.newest()
for step in range(newest.step + 1 if newest else 1, {STEPS} + 1):
    if hangs and os.environ["DTJ_ATTEMPT"] == "1" and step == {HANGS_AT}:
        waits_for_an_answer_that_never_comes()
    together()
    if step % 5 == 0 and os.environ.get("OMPI_COMM_WORLD_RANK", "0") == "0":
        checkpoints.save(step, lambda folder: (folder / "state").write_text(str(step)))
    progress.report(step=step, total_steps={STEPS}, final=True)
"""
JOBS = {
    "Horovod": ({"worker": {"replicas": 2}}, "stacks-1-1.txt", {"stacks-0-1.txt", "stacks-1-1.txt"}),
    "ParameterServer": (
        {"worker": {"replicas": 1}, "ps": {"replicas": 1}},
        "stacks-chief-0-1.txt",
        {"stacks-chief-0-1.txt", "stacks-worker-0-1.txt", "stacks-ps-0-1.txt"},
    ),
}


# On one machine, in `make test`: tests/trainer/test_stalled_run.py.
@pytest.mark.chaos
@pytest.mark.parametrize("strategy", JOBS)
def test_a_rank_that_hangs_is_shown_and_the_next_attempt_succeeds(
    namespace: Namespace, strategy: str
) -> None:
    roles, of_the_hung_rank, of_all = JOBS[strategy]
    manifest: Manifest = example(
        f"hangs-{strategy.lower()}",
        strategy=strategy,
        command=["python", "-c", PROGRAM],
        args=[],
        replicaSpecs=roles,
        runPolicy={"stallTimeoutSeconds": 60, "stallPolicy": "Restart", "backoffLimit": 1},
    )
    job = namespace.apply(manifest)

    status = job.wait(420)

    assert status["restarts"] == {"application": 1, "infrastructure": 0}
    assert status["failure"]["class"] == "Stalled"
    assert f"the step has stayed at {HANGS_AT - 1} for" in status["failure"]["message"]
    assert job.condition("Stalled")["status"] == "False"
    assert [e["type"] for e in job.wait_for_event("NoProgress")] == ["Warning"]
    keys = job.artifacts().sizes()
    assert {f"logs/attempt-1/{name}" for name in of_all} <= keys.keys()
    text = job.artifacts().read(f"logs/attempt-1/{of_the_hung_rank}").decode()
    assert "waits_for_an_answer_that_never_comes (<string>:" in text
    assert f"checkpoints/{STEPS}-2/manifest.json" in keys

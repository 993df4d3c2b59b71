"""A training that is suspended twice and goes on with three workers and with one, beside a training on one worker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.jobs import EXAMPLE, TORCH_EXAMPLE, Job, Namespace, example

pytestmark = [pytest.mark.cluster, pytest.mark.chaos]
STEPS = 60
# A step of this size takes long enough to be interrupted. An epoch has 12 steps and a half.
ARGS = [
    *("--model=cnn", "--epochs=9", f"--max-steps={STEPS}", "--global-batch-size=4800", "--batch-size=1600"),
    *("--optimizer=sgd", "--lr=0.02", "--schedule=constant", "--log-steps=1", "--checkpoint-seconds=3600"),
]


@pytest.mark.parametrize("file", [EXAMPLE, TORCH_EXAMPLE], ids=["Horovod", "TorchDistributed"])
def test_two_workers_then_three_then_one_have_the_losses_of_one(namespace: Namespace, file: Path) -> None:
    job = namespace.apply(example("changing", file, args=ARGS))
    for workers, after in ((3, 10), (1, 30)):
        step = job.wait_for_step(after)
        _patch(job, runPolicy={"suspend": True})
        job.wait(180, "Suspended")
        assert step < STEPS, "too late to be suspended"
        _patch(job, replicaSpecs={"worker": {"replicas": workers}}, runPolicy={"suspend": False})
    assert job.wait(600)["attempt"] == 3
    alone = namespace.apply(example("alone", file, args=ARGS, replicaSpecs={"worker": {"replicas": 1}}))
    alone.wait(600)

    rows = _rows(job)
    assert [rows[step]["worldSize"] for step in (1, STEPS)] == [2, 1]
    assert {row["worldSize"] for row in rows.values()} == {1, 2, 3}
    straight = _rows(alone)
    assert rows.keys() == straight.keys() == set(range(1, STEPS + 1))
    differences = {step: abs(rows[step]["loss"] - straight[step]["loss"]) for step in rows}
    print(f"{file.stem}: the losses of {STEPS} steps differ by {max(differences.values()):.1e}")
    assert max(differences.values()) <= 1e-5, differences
    assert straight[STEPS]["loss"] < 0.7 * straight[1]["loss"], "nothing was learnt"


def _rows(job: Job) -> dict[int, dict[str, float]]:
    """The reports of the training, by step: each step once, as none was lost."""
    rows = [row for row in job.artifacts().metrics() if row["kind"] == "train"]
    found = {row["step"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def _patch(job: Job, **spec: object) -> None:
    job.namespace.kubectl("patch", "dtj", job.name, "--type=merge", f"--patch={json.dumps({'spec': spec})}")

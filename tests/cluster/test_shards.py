"""A program that knows nothing of dtj saves the shard of each rank on that rank's own pod, and goes on from them.

The program has a folder of its own choice, relative to its working directory.
"""

from __future__ import annotations

import json

import pytest

from dtj_trainer.artifacts.manifest import Manifest as Snapshot
from tests.cluster.jobs import TORCH_EXAMPLE, Job, Namespace, example, until

pytestmark = pytest.mark.cluster
STEPS, RANKS = 4, 2
PROGRAM = """
import os, pathlib, sys, time
rank, attempt = os.environ["RANK"], os.environ["DTJ_ATTEMPT"]
root = pathlib.Path("outputs")
steps = sorted(int(path.name[5:]) for path in root.glob("step-*"))
if steps:
    shards = sorted(path.name for path in (root / f"step-{steps[-1]}").iterdir())
    print("goes on from", steps[-1], shards, flush=True)
    if len(shards) != RANKS:
        sys.exit("a shard is missing")
for step in range(steps[-1] + 1 if steps else 1, STEPS + 1):
    folder = root / f"step-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"__{rank}_0.distcp").write_text(f"{step} of {rank}")
    time.sleep(3)
    while attempt == "1" and step == 2:
        time.sleep(1)
""".replace("RANKS", str(RANKS)).replace("STEPS", str(STEPS))


def newest(job: Job) -> Snapshot | None:
    """The newest checkpoint in the job's status."""
    uri = job.status.get("artifacts", {}).get("checkpoint", {}).get("uri")
    if uri is None:
        return None
    folder = uri.rpartition("/")[2]
    return Snapshot.from_json(job.artifacts().read(f"checkpoints/{folder}/manifest.json"))


def shards(*steps: int) -> set[str]:
    return {f"step-{step}/__{rank}_0.distcp" for step in steps for rank in range(RANKS)}


def test_the_shards_of_all_pods_are_restored_after_the_loss_of_one(namespace: Namespace) -> None:
    manifest = example("shards", TORCH_EXAMPLE, command=["python", "-c", PROGRAM], args=[])
    manifest["spec"]["env"] += [
        {"name": "DTJ_CHECKPOINT_SETTLE_SECONDS", "value": "1"},
        {"name": "DTJ_CHECKPOINTS_DIR", "value": "outputs"},
    ]
    job = namespace.apply(manifest)

    def is_whole() -> bool:
        snapshot = newest(job)
        return snapshot is not None and shards(1, 2) <= {file.path for file in snapshot.files}

    until("the shards of two steps", is_whole, 180)
    namespace.kubectl("delete", "pod", "shards-worker-1", "--wait=false")
    status = job.wait()
    assert status["restarts"]["infrastructure"] == 1
    last = newest(job)
    assert last is not None
    assert {file.path for file in last.files} == shards(1, 2, 3, 4)
    log = job.artifacts().read("logs/attempt-2/rank-1.log").decode()
    assert "goes on from 2 ['__0_0.distcp', '__1_0.distcp']" in log
    claim = json.loads(job.artifacts().read("attempt.json"))
    assert claim["restored"]
    assert claim["restores"].startswith(f"{status['artifacts']['uri']}/checkpoints/")

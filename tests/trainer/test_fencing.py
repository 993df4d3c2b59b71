"""A pod that returns after its replacement, with the real dtj-launch and a real store: does no harm, and ends.

* a chief in the middle of an upload
* a Horovod worker beside its successor
* a chief and an evaluator that come too late
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable

import pytest
from tests.trainer.conftest import Launched, Workspace, descendants, has, until

from dtj_trainer import contract
from dtj_trainer.artifacts.manifest import number_and_claim
from dtj_trainer.artifacts.restore import restore
from dtj_trainer.artifacts.snapshot import read_index
from dtj_trainer.artifacts.store import Store

# Checkpoints of many files, so that one is often on its way; each of them, each line and the model tell the attempt.
TRAINING = (
    "-c",
    """
import json, os, pathlib, sys, time
from dtj_trainer import progress
from dtj_trainer.artifacts import checkpoints

root, attempt = pathlib.Path(os.environ["DTJ_ROOT"]), os.environ["DTJ_ATTEMPT"]
newest = checkpoints.newest()
start = newest.step if newest else 0
print("starts from", start, flush=True)

def write(folder):
    for number in range(40):
        (folder / f"part-{number:02}").write_text(f"{step} of attempt {attempt}")

for step in range(start + 1, int(sys.argv[1]) + 1):
    with (root / "metrics.jsonl").open("a") as metrics:
        metrics.write(json.dumps({"step": step, "attempt": attempt}) + "\\n")
    (root / "model" / "model.pt").write_text(f"{step} of attempt {attempt}")
    checkpoints.save(step, write)
    progress.report(step=step, final=True)
    time.sleep(0.2)
""",
)
MANY = 100_000


def send(launched: Launched, number: int) -> None:
    """To dtj-launch and all below it, as the freezer or a node without a network does."""
    for process in descendants(launched.process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def is_on_its_way(store: Store) -> bool:
    """Whether a checkpoint is being uploaded, after one that is complete."""
    index = read_index(store.below("checkpoints"))
    return bool(index.bare and index.manifests)


def newest_step(store: Store) -> int:
    return read_index(store.below("checkpoints")).newest_first()[0].step


def newest_attempt(store: Store) -> int:
    return read_index(store.below("checkpoints")).newest_first()[0].attempt


def snapshot(store: Store) -> dict[str, str]:
    """ETags by keys."""
    return {item.key: item.etag for item in store.objects()}


def unchanged(before: dict[str, str], after: dict[str, str]) -> None:
    """But for the old attempt's own log and utilisation, and what lies in its own folders of checkpoints."""

    def is_of_the_old_one(key: str) -> bool:
        top, name, *_ = [*key.split("/"), ""]
        if top == "checkpoints":
            return (number_and_claim(name) or (0, 0))[1] == 1
        return key.startswith(
            ("logs/attempt-1/", "utilisation/attempt-1/", "tensorboard/utilisation/attempt-1/")
        )

    kept = {key: etag for key, etag in before.items() if not is_of_the_old_one(key)}
    assert {key: etag for key, etag in after.items() if not is_of_the_old_one(key)} == kept
    assert any(key.startswith("checkpoints/") for key in kept)


@pytest.fixture
def make_chief(make_workspace: Callable[..., Workspace], job_uri: str) -> Callable[..., Workspace]:
    def make(attempt: int, role: str = "chief") -> Workspace:
        return make_workspace(
            f"{role}-{attempt}",
            DTJ_STRATEGY="ParameterServer",
            DTJ_ROLE=role,
            DTJ_ATTEMPT=str(attempt),
            DTJ_ARTIFACTS_URI=job_uri,
            DTJ_CHECKPOINTS_KEEP="2",
        )

    return make


def superseded(attempt: int, uri: str) -> str:
    return f"attempt {attempt} has taken over {uri}: this pod of attempt 1 is a leftover"


def test_a_chief_that_comes_back_in_the_midst_of_an_upload(make_chief, job_uri, job_store, tmp_path):
    dead, heir = make_chief(1), make_chief(2)
    old = dead.launch("replica", "python", *TRAINING, str(MANY))
    until(lambda: is_on_its_way(job_store), "a checkpoint on its way")
    send(old, signal.SIGSTOP)
    try:
        last = newest_step(job_store) + 3
        new = heir.launch("replica", "python", *TRAINING, str(last))
        assert new.ended() == 0, new.output
        before = snapshot(job_store)
    finally:
        send(old, signal.SIGCONT)
    assert old.ended() == 69, old.output
    assert dead.termination["class"] == "Superseded"
    assert dead.termination["message"].startswith(superseded(2, job_uri))
    assert old.output.count(superseded(2, job_uri)) == 1
    assert "Traceback" not in old.output
    unchanged(before, snapshot(job_store))
    restored = tmp_path / "restored"
    restored.mkdir()
    found = restore(job_store.below("checkpoints"), restored, "Auto")
    assert found is not None
    assert (found.manifest.attempt, found.manifest.step) == (2, last)
    assert (restored / str(last) / "part-39").read_text() == f"{last} of attempt 2"
    assert job_store.get_bytes("model/model.pt").decode() == f"{last} of attempt 2"
    rows = [json.loads(line) for line in job_store.get_bytes("metrics.jsonl").splitlines()]
    assert (rows[-1]["step"], rows[-1]["attempt"]) == (last, "2")
    assert has(job_store, "logs/attempt-1/chief-0.log")


def test_a_worker_of_horovod_that_comes_back_while_the_new_one_trains(make_workspace, job_uri, job_store):
    def start(attempt: int) -> tuple[Workspace, Launched, Launched]:
        workspace = make_workspace(
            f"attempt-{attempt}",
            DTJ_ROLE="worker",
            DTJ_ATTEMPT=str(attempt),
            DTJ_ARTIFACTS_URI=job_uri,
            DTJ_CHECKPOINTS_KEEP="2",
            DTJ_LOCAL_WORKERS="started without ssh",
        )
        worker = workspace.launch("worker")
        worker.says("is ready for ranks of this machine")
        rank = workspace.launch(
            "rank", "python", *TRAINING, str(MANY), OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="1"
        )
        return workspace, worker, rank

    dead, old, old_rank = start(1)
    until(lambda: is_on_its_way(job_store), "a checkpoint on its way")
    for launched in (old, old_rank):
        send(launched, signal.SIGSTOP)
    try:
        _, new, new_rank = start(2)
        first = newest_step(job_store)
        until(lambda: newest_attempt(job_store) == 2, "a checkpoint of attempt 2")
    finally:
        for launched in (old, old_rank):
            send(launched, signal.SIGCONT)
    assert old.ended() == 69, old.output
    assert dead.termination["class"] == "Superseded"
    assert dead.termination["message"].startswith(superseded(2, job_uri))
    assert old.output.count(superseded(2, job_uri)) == 1
    assert old_rank.ended() != 0
    assert '"stopped":true' in old_rank.output
    assert newest_attempt(job_store) == 2
    reached = newest_step(job_store)
    until(lambda: newest_step(job_store) > max(first, reached), "the new attempt goes on")
    new.terminate()
    # A very busy machine does not upload the last checkpoint within the grace period of a pod.
    assert new.ended() in (0, contract.EXIT_UNAVAILABLE), new.output
    assert new_rank.ended() != 0
    rows = [json.loads(line) for line in job_store.get_bytes("metrics.jsonl").splitlines()]
    assert rows[-1]["attempt"] == "2"


def test_a_chief_that_starts_after_the_next_attempt_ends_at_once(make_chief, job_uri, job_store):
    assert make_chief(2).launch("replica", "python", *TRAINING, "2").ended() == 0
    before = snapshot(job_store)
    late = make_chief(1)
    run = late.launch("replica", "python", "-c", "print('has run')")
    assert run.ended() == 69
    assert "has run\n" not in run.output
    assert late.termination["class"] == "Superseded"
    assert late.termination["message"].startswith(superseded(2, job_uri))
    assert run.output.count(superseded(2, job_uri)) == 1
    assert snapshot(job_store) == before


def test_an_evaluator_that_was_replaced_supersedes_evaluators_only(make_chief, job_uri):
    done = ("python", "-c", "print('has run')")
    assert make_chief(4, "evaluator").launch("replica", *done).ended() == 0
    assert make_chief(1).launch("replica", *done).ended() == 0
    late = make_chief(1, "evaluator")
    assert late.launch("replica", *done).ended() == 69
    assert late.termination["message"].startswith(superseded(4, job_uri))

"""TensorFlow parameter servers in real pods: training, losses, the end, and what the job says of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.cluster.jobs import ROOT, Artifacts, Job, KubectlError, Manifest, Namespace, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
EXAMPLE = ROOT / "manifests/examples/fashion-mnist-ps.yaml"
TFJOB = ROOT / "manifests/examples/tfjob-script"
MODES = ("Asynchronous", "Synchronous")
# Who is killed, and who starts again then.
KILLS = {"worker-1": {"worker-1"}, "ps-0": {"ps-0", "chief-0"}, "chief-0": {"ps-0", "chief-0"}}
# Ends, from within a container, the process that trains there: not dtj-launch, which has its words as arguments too.
KILL = """
import os, signal
for pid in filter(str.isdecimal, os.listdir("/proc")):
    words = open(f"/proc/{pid}/cmdline").read().split("\\0")
    if words[0].endswith("python") and "dtj_trainer.programs.ps_image_classification" in words[1:3]:
        os.kill(int(pid), signal.SIGKILL)
        print("killed", pid)
"""
# The same with a Ctrl-C, in an image of others.
INTERRUPT = """
for process in /proc/[0-9]*; do
    case $(tr "\\0" " " < $process/cmdline) in python*train.py*) kill -INT ${process#/proc/};; esac
done
"""


def example(name: str, updates: str = "Asynchronous", *args: str, **spec: Any) -> Manifest:
    """The example under another name, on the local object store."""
    job = yaml.safe_load(EXAMPLE.read_text())
    job["metadata"]["name"] = name
    job["spec"]["artifacts"]["endpoint"] = os.environ["DTJ_TEST_S3_ENDPOINT"]
    job["spec"]["parameterServer"]["updates"] = updates
    job["spec"]["args"] += args
    job["spec"].update(spec)
    return dict(job)


@pytest.fixture(scope="module")
def runs(shared_namespace: Namespace) -> dict[str, Job]:
    """The runs of this module that came to their end, by kind of updates."""
    return {}


@pytest.mark.parametrize("updates", MODES)
def test_the_example_trains_and_ends(
    shared_namespace: Namespace, runs: dict[str, Job], updates: str, tmp_path: Path
) -> None:
    job = shared_namespace.apply(example(f"mnist-{updates.lower()}", updates))
    until("the chief to succeed", lambda: phase_of(job, "chief-0") == "Succeeded", 300)
    ended = time.monotonic()
    until("the servers to be gone", lambda: names(job) <= {"chief-0", "evaluator-0"}, 30)
    print(f"servers gone {time.monotonic() - ended:.1f} s after the chief was seen to have succeeded")
    status = job.wait(120)
    runs[updates] = job

    assert status["restarts"] == {"application": 0, "infrastructure": 0}
    assert status["progress"]["percent"] == 100
    assert status["progress"]["accuracy"] >= 0.85
    tests = lines(job.artifacts(), "metrics-evaluator.jsonl")
    assert tests[-1]["accuracy"] == pytest.approx(status["progress"]["accuracy"], abs=1e-4)
    assert tests[-1]["step"] == status["artifacts"]["checkpoint"]["step"]
    keys = job.artifacts().sizes()
    assert {"metrics.jsonl", "job.yaml", "model/model.keras"} <= keys.keys()
    replicas = ("chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0")
    assert {f"logs/attempt-1/{replica}.log" for replica in replicas} <= keys.keys()
    step = status["artifacts"]["checkpoint"]["step"]
    manifest = json.loads(job.artifacts().read(f"checkpoints/{step}/manifest.json"))
    for file in manifest["files"]:
        assert keys[f"checkpoints/{step}/{file['key']}"] == file["size"]
    end = job.artifacts().metrics()[-1]
    assert (end["kind"], end["updates"]) == ("end", updates)
    # 60,000 pictures twice: each once an epoch, over all workers.
    assert end["examples"] == 120_000
    assert losses_fall(job.artifacts().download(tmp_path, "tensorboard/"))
    assert phase_of(job, "evaluator-0") != "Running", "it has seen the last checkpoint"


@pytest.mark.parametrize("updates", MODES)
def test_whatever_is_killed_comes_back_and_nothing_is_lost(namespace: Namespace, updates: str) -> None:
    job = namespace.apply(
        example(f"hit-{updates[:5].lower()}", updates, "--epochs=3", "--checkpoint-seconds=3")
    )
    attempts: dict[str, int] = {}
    saved = 0
    for number, (victim, again) in enumerate(KILLS.items(), 1):
        saved = checkpoint_after(job, saved)
        before = uids(job)
        kill(job, victim)
        status = attempt(job, number + 1)
        attempts |= dict.fromkeys(again, number + 1)
        assert status["replicaAttempts"] == attempts
        assert status["failure"]["pod"] == f"{job.name}-{victim}"
        assert (status["failure"]["class"], status["failure"]["signal"]) == ("Signal", 9)
        back(job, before, again)
        saved = job.status["artifacts"]["checkpoint"]["step"]
    status = job.wait(420)

    assert status["restarts"] == {"application": 3, "infrastructure": 0}
    assert status["progress"]["accuracy"] >= 0.85
    rows = [row for row in job.artifacts().metrics() if row["kind"] == "train"]
    first = {
        attempt: min(r["step"] for r in rows if r["attempt"] == attempt)
        for attempt in {r["attempt"] for r in rows}
    }
    # The chief ran as attempts 1, 3 and 4: it began each time where a checkpoint was.
    assert sorted(first) == [1, 3, 4]
    assert first[1] < first[3] <= first[4]
    told = [event["message"] for event in job.events() if event["reason"] == "JobRestarting"]
    for victim in KILLS:
        assert any(f"{job.name}-{victim}: " in m and "SIGKILL" in m and "again" in m for m in told), told


def test_a_weak_ps_is_told_with_its_figures(namespace: Namespace) -> None:
    manifest = example("weak", "Asynchronous", "--epochs=100")
    manifest["spec"]["replicaSpecs"]["ps"]["resources"] = {"limits": {"cpu": "100m"}}
    del manifest["spec"]["replicaSpecs"]["evaluator"]
    job = namespace.apply(manifest)

    found = until(
        "the bottleneck to be told",
        lambda: (c := job.condition("Bottleneck")).get("status") == "True" and c,
        240,
    )

    assert found["reason"] == "ParameterServersSlow"
    assert "replicaSpecs.ps" in found["message"]
    assert "%" in found["message"]
    assert any(e["reason"] == "ParameterServersSlow" and e["type"] == "Warning" for e in job.events())
    assert job.status["phase"] == "Running"


def test_a_script_of_a_tfjob_runs_unchanged(namespace: Namespace) -> None:
    namespace.kubectl("create", "configmap", "tfjob-script", f"--from-file={TFJOB / 'train.py'}")
    kept = yaml.safe_load((TFJOB / "job.yaml").read_text())
    kept["spec"]["artifacts"]["endpoint"] = os.environ["DTJ_TEST_S3_ENDPOINT"]
    # The other one in an image without dtj_trainer: TF_CONFIG is all it gets. And with synchronous updates.
    bare = yaml.safe_load((TFJOB / "job.yaml").read_text())
    del bare["spec"]["artifacts"]
    bare["metadata"]["name"] = "bare"
    bare["spec"] |= {"image": "dtj-tensorflow-base:0.1.0"}
    bare["spec"]["args"] += ["--sync", "--steps=2500"]
    jobs = [namespace.apply(kept), namespace.apply(bare)]
    # A chief that ends by an error closes the queues that it made on the ps: its successor needs new ones.
    jobs[1].wait(120, "Running")
    until("the chief to train", lambda: "step " in namespace.kubectl("logs", "bare-chief-0"), 120)
    until("the chief to end by a Ctrl-C", lambda: interrupted(jobs[1]), 90, every=5)
    status, again = [job.wait(480) for job in jobs]

    assert again["restarts"]["application"] >= 1

    for job in jobs:
        log = namespace.kubectl("logs", f"{job.name}-chief-0")
        accuracies = [float(found) for found in re.findall(r"accuracy ([0-9.]+)", log)]
        assert accuracies, log
        assert accuracies[-1] > 0.95, log
    keys = jobs[0].artifacts().sizes()
    step = status["artifacts"]["checkpoint"]["step"]
    assert step >= 4000
    assert {f"checkpoints/{step}/model.ckpt-{step}.index", f"checkpoints/{step}/checkpoint"} <= keys.keys()


def test_the_runs_are_compared_by_one_command(runs: dict[str, Job]) -> None:
    if len(runs) < 2:
        pytest.skip("the runs to compare are those of this module")
    uris = [job.artifacts().uri for job in runs.values()]
    printed = subprocess.run(
        [Path(sys.executable).with_name("dtj"), "report", *uris, "--group-by=updates", "--output=json"],
        env=os.environ | {"AWS_ENDPOINT_URL_S3": os.environ["DTJ_TEST_S3_ENDPOINT"]},
        stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    print(printed)

    groups = json.loads(printed)["groups"]
    assert [group["group"] for group in groups] == ["Asynchronous", "Synchronous"]
    for group in groups:
        facts = group["facts"]
        assert (facts["workers"], facts["ps"], len(group["runs"])) == (2, 1, 1)
        assert group["examplesPerSecond"]["mean"] > 0
        assert group["accuracy"]["mean"] > 0.5


def interrupted(bare: Job) -> bool:
    """Press Ctrl-C at the chief, which may not heed the first; whether it has led to another attempt."""
    with suppress(KubectlError):
        bare.namespace.kubectl("exec", f"{bare.name}-chief-0", "--", "/bin/sh", "-c", INTERRUPT)
    return bool(bare.status["attempt"] > 1)


def by_name(job: Job) -> dict[str, Manifest]:
    """The job's pods by role and index."""
    return {pod["metadata"]["name"].removeprefix(f"{job.name}-"): pod for pod in job.pods()}


def names(job: Job) -> set[str]:
    return set(by_name(job))


def phase_of(job: Job, name: str) -> str:
    pod = by_name(job).get(name)
    assert job.status.get("phase") != "Failed", job.story()
    return pod["status"]["phase"] if pod else ""


def checkpoint_after(job: Job, step: int) -> int:
    """Step of a checkpoint later than that, once it is in the bucket and all replicas run."""

    def there() -> int | None:
        status = job.status
        assert status.get("phase") not in ("Succeeded", "Failed"), job.story()
        saved = int((status.get("artifacts") or {}).get("checkpoint", {}).get("step", 0))
        restarting = job.condition("Restarting").get("status") == "True"
        return saved if saved > step and status["phase"] == "Running" and not restarting else None

    return until(f"{job.name} to have a checkpoint after step {step}", there, 180)


def kill(job: Job, replica: str) -> None:
    said = job.namespace.kubectl("exec", f"{job.name}-{replica}", "--", "python", "-c", KILL)
    assert said.startswith("killed"), said


def uids(job: Job) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in by_name(job).items()}


def attempt(job: Job, number: int) -> Manifest:
    """The status once that attempt has begun."""

    def begun() -> Manifest | None:
        status = job.status
        return status if status["attempt"] == number else None

    return until(f"attempt {number}", begun, 60)


def back(job: Job, before: dict[str, str], again: set[str]) -> None:
    """Wait until all replicas run, these and only these other ones than before."""

    def all_run() -> bool:
        pods = by_name(job).values()
        return len(pods) == len(before) and all(pod["status"]["phase"] == "Running" for pod in pods)

    until(f"{', '.join(again)} to be back", all_run, 120)
    now = uids(job)
    assert {name for name in before if now[name] != before[name]} == again


def lines(artifacts: Artifacts, key: str) -> list[Manifest]:
    return [json.loads(line) for line in artifacts.read(key).splitlines()]


def losses_fall(folder: Path) -> bool:
    """Whether the event files of the chief have a falling loss, and those of the evaluator an accuracy."""
    losses: dict[int, float] = {}
    tested = False
    for part in sorted(folder.rglob("events.out.tfevents.*")):
        accumulator = EventAccumulator(str(part)).Reload()
        for tag in accumulator.Tags()["scalars"]:
            if "/eval/" in str(part):
                tested |= "accuracy" in tag
            elif "loss" in tag:
                losses |= {event.step: event.value for event in accumulator.Scalars(tag)}
    ordered = [losses[step] for step in sorted(losses)]
    fifth = len(ordered) // 5
    return tested and fifth > 0 and sum(ordered[-fifth:]) < 0.7 * sum(ordered[:fifth])

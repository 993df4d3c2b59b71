"""TensorFlow parameter servers in real pods: training, losses, the end, and the status of the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dtj_trainer.artifacts import manifest as snapshots
from dtj_trainer.serving.description import Preprocessing
from dtj_trainer.serving.loaded_model import load
from dtj_trainer.serving.places import FolderPlace
from tests.cluster.jobs import Artifacts, Job, Manifest, Namespace, until
from tests.cluster.parameter_server import MODES, by_name, example

pytestmark = pytest.mark.cluster
TRAININGS = [
    (MODES[0], 1, 0.8),
    *(pytest.param(updates, 2, 0.85, marks=pytest.mark.chaos) for updates in MODES),
]
"""Kind of updates, epochs, and the least test accuracy. `make test` runs the first, `make test-chaos` the rest."""


@pytest.fixture(scope="module")
def runs(shared_namespace: Namespace) -> dict[str, Job]:
    """The runs of this module that came to their end, by kind of updates."""
    return {}


@pytest.mark.parametrize(("updates", "epochs", "accuracy"), TRAININGS)
def test_the_example_trains_and_ends(
    shared_namespace: Namespace,
    runs: dict[str, Job],
    updates: str,
    epochs: int,
    accuracy: float,
    tmp_path: Path,
) -> None:
    name = f"mnist-{updates.lower()}-{epochs}"
    job = shared_namespace.apply(example(name, updates, f"--epochs={epochs}", exports=True))
    until("the chief to succeed", lambda: phase_of(job, "chief-0") == "Succeeded", 300)
    ended = time.monotonic()
    until("the servers to be told to end", lambda: staying(job) <= {"chief-0", "evaluator-0"}, 30)
    # The kubelet takes its time until it lets go of them.
    until("the servers to be gone", lambda: names(job) <= {"chief-0", "evaluator-0"}, 120)
    print(f"servers gone {time.monotonic() - ended:.1f} s after the chief was seen to have succeeded")
    status = job.wait(120)
    runs[updates] = job

    assert status["restarts"] == {"application": 0, "infrastructure": 0}
    assert status["progress"]["percent"] == 100
    assert status["progress"]["accuracy"] >= accuracy
    tests = lines(job.artifacts(), "metrics-evaluator.jsonl")
    assert tests[-1]["accuracy"] == pytest.approx(status["progress"]["accuracy"], abs=1e-4)
    assert tests[-1]["step"] == status["artifacts"]["checkpoint"]["step"]
    keys = job.artifacts().sizes()
    assert {"metrics.jsonl", "job.yaml", "model/model.keras"} <= keys.keys()
    assert "exportError" not in status["progress"]
    answers_as_served(job.artifacts().download(tmp_path / "served", "model/") / "model")
    replicas = ("chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0")
    assert {f"logs/attempt-1/{replica}.log" for replica in replicas} <= keys.keys()
    step = status["artifacts"]["checkpoint"]["step"]
    for file in snapshots.Manifest.from_json(job.artifacts().read(f"checkpoints/{step}/manifest.json")).files:
        assert keys[f"checkpoints/{file.key}"] == file.size
    end = job.artifacts().metrics()[-1]
    assert (end["kind"], end["updates"]) == ("end", updates)
    # 60,000 pictures, each once an epoch, over all workers.
    assert end["examples"] == epochs * 60_000
    assert losses_fall(job.artifacts().download(tmp_path, "tensorboard/"))
    assert phase_of(job, "evaluator-0") != "Running", "it has seen the last checkpoint"


@pytest.mark.chaos
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
    assert "Warning" in [e["type"] for e in job.wait_for_event("ParameterServersSlow")]
    assert job.status["phase"] == "Running"


@pytest.mark.chaos
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


def answers_as_served(folder: Path) -> None:
    """The exported model answers pictures, as `dtj serve` loads it: by its manifest and with its description."""
    model = load(FolderPlace(folder), 1)
    assert model.classes == 10
    assert model.description.preprocessing == Preprocessing(28, 1, "NHWC")
    (pixels,) = model.inputs
    assert model.run({pixels.name: np.zeros((7, *pixels.shape), pixels.dtype)})[0].shape == (7, 10)


def names(job: Job) -> set[str]:
    return set(by_name(job))


def staying(job: Job) -> set[str]:
    """Those that nobody has told to end."""
    return {name for name, pod in by_name(job).items() if "deletionTimestamp" not in pod["metadata"]}


def phase_of(job: Job, name: str) -> str:
    pod = by_name(job).get(name)
    assert job.status.get("phase") != "Failed", job.story()
    return pod["status"]["phase"] if pod else ""


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

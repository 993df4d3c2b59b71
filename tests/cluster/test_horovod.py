"""The main job: Horovod over MPI trains Fashion-MNIST in real pods and leaves correct artifacts in the bucket.

* the status and the model of the example
* artifacts and event files
* ranks of workers, compared with one process
* TensorFlow by Horovod
* ranks on wrong hosts and with unknown users
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dtj_trainer.artifacts import manifest as snapshots
from tests import fashion_mnist
from tests.cluster.jobs import Artifacts, Job, Manifest, Namespace, example, s3_client, stub
from tests.cluster.trained import Trained
from tests.patience import PATIENCE

pytestmark = pytest.mark.cluster


def test_the_example_succeeds_and_its_status_says_so(trained: Trained) -> None:
    job, status = trained.job, trained.status
    assert job.condition("Succeeded")["status"] == "True"
    assert job.condition("Running")["status"] == "False"
    assert status["completionTime"] >= status["allRunningTime"] >= status["startTime"]
    assert status["restarts"] == {"application": 0, "infrastructure": 0}
    assert status["progress"]["percent"] == 100
    assert "failure" not in status
    assert job.wait_for_event("JobRunning")
    assert job.wait_for_event("JobSucceeded")
    job.namespace.kubectl("wait", "--for=condition=Succeeded", "dtj/fashion-mnist", "--timeout=1s")


def test_the_model_is_good(trained: Trained) -> None:
    job, status = trained.job, trained.status
    tested = [row["accuracy"] for row in job.artifacts().metrics() if row.get("accuracy") is not None]
    assert tested[-1] >= 0.85
    assert status["progress"]["accuracy"] == pytest.approx(tested[-1], abs=1e-4)


def test_the_artifacts_are_complete(trained: Trained) -> None:
    job, status = trained.job, trained.status
    keys = job.artifacts().sizes()
    assert {"metrics.jsonl", "job.yaml", "model/model.pt", "logs/attempt-1/launcher-0.log"} <= keys.keys()
    assert {"model/model.onnx", "model/manifest.json"} <= keys.keys()
    assert {f"logs/attempt-1/rank-{rank}.log" for rank in (0, 1)} <= keys.keys()
    step = status["artifacts"]["checkpoint"]["step"]
    for file in snapshots.Manifest.from_json(job.artifacts().read(f"checkpoints/{step}/manifest.json")).files:
        assert keys[f"checkpoints/{file.key}"] == file.size
    assert status["artifacts"]["model"].startswith(status["artifacts"]["uri"])


def test_the_model_in_the_bucket_is_as_accurate_in_a_fresh_process(trained: Trained, tmp_path: Path) -> None:
    job, status = trained.job, trained.status
    job.artifacts().download(tmp_path, "model/")
    client = s3_client()
    for entry in client.list_objects_v2(Bucket="datasets", Prefix="fashion-mnist/")["Contents"]:
        client.download_file("datasets", entry["Key"], str(tmp_path / Path(entry["Key"]).name))
    done = subprocess.run(
        [sys.executable, "-m", "dtj_trainer.programs.evaluate",
         "--model-dir", str(tmp_path / "model"), "--data", str(tmp_path)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["accuracy"] == pytest.approx(status["progress"]["accuracy"], abs=1e-3)


def test_the_loss_in_the_event_files_falls(trained: Trained, tmp_path: Path) -> None:
    job = trained.job
    folder = job.artifacts().download(tmp_path, "tensorboard/") / "tensorboard"
    losses: dict[int, float] = {}
    for part in sorted(folder.rglob("events.out.tfevents.*")):
        accumulator = EventAccumulator(str(part)).Reload()
        for tag in accumulator.Tags()["scalars"]:
            if "loss" in tag and "test" not in tag:
                losses |= {event.step: event.value for event in accumulator.Scalars(tag)}
    ordered = [losses[step] for step in sorted(losses)]
    assert len(ordered) >= 10
    fifth = len(ordered) // 5
    assert sum(ordered[-fifth:]) / fifth < 0.6 * sum(ordered[:fifth]) / fifth


def test_every_worker_has_one_rank_of_its_own(trained: Trained) -> None:
    job = trained.job
    assert hosts_by_rank(job) == {0: "fashion-mnist-worker-0", 1: "fashion-mnist-worker-1"}
    assert {row["worldSize"] for row in job.artifacts().metrics()} == {2}


def test_four_ranks_of_two_workers_train_what_one_process_of_this_machine_does(
    namespace: Namespace, tmp_path: Path
) -> None:
    import torch

    def manifest(workers: int, slots: int) -> Manifest:
        # The batch of all ranks and its rate are the same, whatever the number of ranks.
        args = [f"--batch-size={64 // (workers * slots)}", "--lr=0.05", "--no-scale-lr", "--warmup-epochs=0"]
        return example(
            "alike",
            args=["--model=cnn", "--max-steps=40", "--seed=7", *args],
            replicaSpecs={"worker": {"replicas": workers}},
            horovod={"slotsPerWorker": slots},
        )

    applied = namespace.apply(manifest(workers=2, slots=2))
    here, weights_here = trained_here(manifest(workers=1, slots=1), tmp_path)
    there = applied.wait(300)

    hosts = hosts_by_rank(applied)
    assert sorted(hosts) == [0, 1, 2, 3]
    assert sorted(hosts.values()) == ["alike-worker-0"] * 2 + ["alike-worker-1"] * 2
    assert {row["worldSize"] for row in applied.artifacts().metrics()} == {4}
    digests = weights_by_rank(applied.artifacts())
    assert len(digests) == 4
    assert len(set(digests.values())) == 1, digests

    file = applied.artifacts().download(tmp_path, "model/model.pt") / "model/model.pt"
    weights_there = torch.load(file, weights_only=True)
    assert weights_here.keys() == weights_there.keys()
    for name in weights_here:
        torch.testing.assert_close(weights_there[name], weights_here[name], atol=1e-5, rtol=0)
    assert here["progress"]["step"] == there["progress"]["step"] == 40
    assert here["progress"]["accuracy"] == pytest.approx(there["progress"]["accuracy"], abs=1e-3)


def trained_here(job: Manifest, folder: Path) -> tuple[Manifest, dict[str, Any]]:
    """Status and weights of a job that `dtj run` carried out; without the cluster's keys, in a store of its own."""
    import torch

    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment["DTJ_HOME"] = str(folder / "home")

    def dtj(*words: str | Path) -> str:
        done = subprocess.run(
            [Path(sys.executable).with_name("dtj"), *words],
            env=environment, capture_output=True, text=True, timeout=400 * PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    status = json.loads(dtj("run", file, "--data", fashion_mnist.folder(), "--output=json"))["status"]
    weights = folder / "here.pt"
    dtj("artifacts", "cp", job["metadata"]["name"], "model/model.pt", weights, "--local")
    return dict(status), torch.load(weights, weights_only=True)


@pytest.mark.parametrize(
    ("limit", "accuracy"), [(["--max-steps=40"], 0.6), pytest.param([], 0.85, marks=pytest.mark.chaos)]
)
def test_tensorflow_trains_by_horovod_too(namespace: Namespace, limit: list[str], accuracy: float) -> None:
    job = namespace.apply(
        example(
            "keras",
            image="dtj-trainer-tensorflow-horovod:0.1.0",
            command=["python", "-m", "dtj_trainer.programs.horovod_tf_image_classification"],
            args=["--model=cnn", "--epochs=1", "--batch-size=64", *limit],
        )
    )
    status = job.wait(300)
    assert status["progress"]["accuracy"] >= accuracy
    assert {"model/model.keras", "metrics.jsonl"} <= job.artifacts().sizes().keys()
    digests = weights_by_rank(job.artifacts())
    assert len(digests) == 2
    assert len(set(digests.values())) == 1, digests


def hosts_by_rank(job: Job) -> dict[int, str]:
    """Where each rank ran, as its own log says."""
    artifacts = job.artifacts()
    found = {}
    for key in artifacts.sizes():
        if match := re.fullmatch(r"logs/attempt-1/rank-(\d+)\.log", key):
            text = artifacts.read(key).decode()
            said = re.search(r"one of \d+ ranks, \d+ of them on ([^,]+),", text)
            assert said is not None, text
            found[int(match[1])] = said[1]
    return found


def weights_by_rank(artifacts: Artifacts) -> dict[int, str]:
    """The digest of each rank's final weights, as its log says."""
    found = {}
    for key in artifacts.sizes():
        if match := re.fullmatch(r"logs/attempt-1/rank-(\d+)\.log", key):
            said = re.search(r"their sha256: ([0-9a-f]{64})", artifacts.read(key).decode())
            assert said is not None, key
            found[int(match[1])] = said[1]
    return found


def test_ranks_that_mpirun_starts_elsewhere_than_asked_for_end_the_job(namespace: Namespace) -> None:
    # What Open MPI 5 does with the settings of version 4: no hosts, so all ranks where mpirun runs.
    astray = [
        {"name": "OMPI_MCA_orte_default_hostfile", "value": "/dev/null"},
        {"name": "DTJ_MPI_ARGS", "value": "--oversubscribe"},
    ]
    template = {"spec": {"containers": [{"name": "trainer", "env": astray}]}}
    manifest = stub("astray", runPolicy={"backoffLimit": 0})
    manifest["spec"]["replicaSpecs"]["launcher"] = {"template": template}
    status = namespace.apply(manifest).wait(90, "Failed")
    assert status["failure"]["class"] == "WorldSizeMismatch"
    assert "astray-launcher-0" in status["failure"]["message"]


# As OpenShift's SCC restricted-v2 gives them: a uid of the namespace, which no image knows, and group 0.
UNKNOWN = {"runAsUser": 1000670000, "runAsGroup": 0, "fsGroup": 1000670000}


def test_ranks_run_as_a_user_that_no_image_knows(namespace: Namespace) -> None:
    manifest = stub("unknown", "--steps=5")
    applied = namespace.apply(_as_unknown(manifest))
    applied.wait(120)
    assert applied.artifacts().stub_steps_are_complete(5)


def test_ranks_of_an_image_without_dtj_trainer_run_as_such_a_user_too(namespace: Namespace) -> None:
    manifest = stub("unknown", image="dtj-horovod-base:0.1.0", command=["id", "-un"], args=[])
    del manifest["spec"]["artifacts"]
    namespace.apply(_as_unknown(manifest)).wait(120)
    # A slow mpirun warns, because ssh has begun before mpirun gave it a process group: "plm:rsh: Warning: setpgid".
    lines = namespace.kubectl("logs", "unknown-launcher-0").splitlines()
    assert [line for line in lines if "setpgid" not in line] == ["dtj-1000670000"] * 2


def _as_unknown(manifest: Manifest) -> Manifest:
    template = {"spec": {"securityContext": UNKNOWN}}
    roles = manifest["spec"]["replicaSpecs"]
    manifest["spec"]["replicaSpecs"] = {
        role: {**roles.get(role, {}), "template": template} for role in ("worker", "launcher")
    }
    return manifest

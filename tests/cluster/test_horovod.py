"""The main job: Horovod over MPI trains Fashion-MNIST in real pods, and what it leaves in the bucket is right."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.cluster.jobs import Artifacts, Job, Manifest, Namespace, example, s3_client

pytestmark = pytest.mark.cluster
PROGRAM = ["python", "-m", "dtj_trainer.programs.horovod_image_classification"]


@pytest.fixture(scope="module")
def trained(shared_namespace: Namespace) -> tuple[Job, Manifest]:
    """The example as it stands, on two workers."""
    job = shared_namespace.apply(example("fashion-mnist"))
    return job, job.wait(300)


def test_the_example_succeeds_and_its_status_says_so(trained: tuple[Job, Manifest]) -> None:
    job, status = trained
    assert job.condition("Succeeded")["status"] == "True"
    assert job.condition("Running")["status"] == "False"
    assert status["completionTime"] >= status["allRunningTime"] >= status["startTime"]
    assert status["restarts"] == {"application": 0, "infrastructure": 0}
    assert status["progress"]["percent"] == 100
    assert "failure" not in status
    reasons = [event["reason"] for event in job.events()]
    assert {"JobRunning", "JobSucceeded"} <= set(reasons)
    job.namespace.kubectl("wait", "--for=condition=Succeeded", "dtj/fashion-mnist", "--timeout=1s")


def test_the_model_is_good(trained: tuple[Job, Manifest]) -> None:
    job, status = trained
    tested = [row["accuracy"] for row in job.artifacts().metrics() if row.get("accuracy") is not None]
    assert tested[-1] >= 0.85
    assert status["progress"]["accuracy"] == pytest.approx(tested[-1], abs=1e-4)


def test_the_artifacts_are_complete(trained: tuple[Job, Manifest]) -> None:
    job, status = trained
    keys = job.artifacts().sizes()
    assert {"metrics.jsonl", "job.yaml", "model/model.pt", "logs/attempt-1/launcher-0.log"} <= keys.keys()
    assert {f"logs/attempt-1/rank-{rank}.log" for rank in (0, 1)} <= keys.keys()
    step = status["artifacts"]["checkpoint"]["step"]
    manifest = json.loads(job.artifacts().read(f"checkpoints/{step}/manifest.json"))
    for file in manifest["files"]:
        assert keys[f"checkpoints/{step}/{file['key']}"] == file["size"]
    assert status["artifacts"]["model"].startswith(status["artifacts"]["uri"])


def test_the_model_in_the_bucket_is_as_accurate_in_a_fresh_process(
    trained: tuple[Job, Manifest], tmp_path: Path
) -> None:
    job, status = trained
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


def test_the_loss_in_the_event_files_falls(trained: tuple[Job, Manifest], tmp_path: Path) -> None:
    job, _ = trained
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


def test_every_worker_has_one_rank_of_its_own(trained: tuple[Job, Manifest]) -> None:
    job, _ = trained
    assert hosts_by_rank(job) == {0: "fashion-mnist-worker-0", 1: "fashion-mnist-worker-1"}
    assert {row["worldSize"] for row in job.artifacts().metrics()} == {2}


def test_two_workers_with_two_slots_are_four_ranks(namespace: Namespace) -> None:
    job = namespace.apply(
        example(
            "slots",
            args=["--model=cnn", "--max-steps=40", "--batch-size=32"],
            horovod={"slotsPerWorker": 2},
            env=[{"name": "OMP_NUM_THREADS", "value": "1"}],
        )
    )
    job.wait(300)
    hosts = hosts_by_rank(job)
    assert sorted(hosts) == [0, 1, 2, 3]
    assert sorted(hosts.values()) == ["slots-worker-0"] * 2 + ["slots-worker-1"] * 2
    assert {row["worldSize"] for row in job.artifacts().metrics()} == {4}
    digests = weights_by_rank(job.artifacts())
    assert len(digests) == 4
    assert len(set(digests.values())) == 1, digests


def test_tensorflow_trains_by_horovod_too(namespace: Namespace) -> None:
    job = namespace.apply(
        example(
            "keras",
            image="dtj-trainer-tensorflow-horovod:0.1.0",
            command=["python", "-m", "dtj_trainer.programs.horovod_tf_image_classification"],
        )
    )
    status = job.wait(300)
    assert status["progress"]["accuracy"] >= 0.85
    assert {"model/model.keras", "metrics.jsonl"} <= job.artifacts().sizes().keys()
    digests = weights_by_rank(job.artifacts())
    assert len(digests) == 2
    assert len(set(digests.values())) == 1, digests


def test_two_ranks_train_what_one_process_trains_on_the_whole_batch(
    namespace: Namespace, tmp_path: Path
) -> None:
    import torch

    models: dict[str, dict[str, Any]] = {}
    for name, workers, batch in (("alone", 1, 64), ("pair", 2, 32)):
        job = namespace.apply(
            example(
                name,
                # The rate of the whole batch, whatever the number of ranks.
                args=["--max-steps=20", f"--batch-size={batch}", "--seed=7", "--lr=0.05", "--no-scale-lr",
                      "--warmup-epochs=0"],
                replicaSpecs={"worker": {"replicas": workers}},
            )
        )  # fmt: skip
        job.wait(300)
        file = job.artifacts().download(tmp_path / name, "model/model.pt") / "model/model.pt"
        models[name] = torch.load(file, weights_only=True)
        assert {row["step"] for row in job.artifacts().metrics()} >= {20}
    alone, pair = models["alone"], models["pair"]
    assert alone.keys() == pair.keys()
    for name in alone:
        torch.testing.assert_close(pair[name], alone[name], atol=1e-5, rtol=0)


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
            said = re.search(r"sha256 of this one's: ([0-9a-f]{64})", artifacts.read(key).decode())
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
    manifest = example("astray", runPolicy={"backoffLimit": 0})
    manifest["spec"]["replicaSpecs"]["launcher"] = {"template": template}
    status = namespace.apply(manifest).wait(90, "Failed")
    assert status["failure"]["class"] == "WorldSizeMismatch"
    assert "astray-launcher-0" in status["failure"]["message"]

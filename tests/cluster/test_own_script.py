"""A user's own Horovod script as in docs/own-script.md: in a separate image, without dtj_trainer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dtj_trainer.artifacts import manifest as snapshots
from tests.cluster import kind
from tests.cluster.jobs import ROOT, Manifest, Namespace, with_script, yielding
from tests.cluster.local import containerd
from tests.cluster.local.layout import NODES

pytestmark = pytest.mark.cluster
EXAMPLE = ROOT / "manifests/examples/own-script"


@pytest.fixture(scope="module")
def image() -> str:
    """The example's image, built by its Dockerfile and loaded onto the nodes."""
    tag = "my-own-script:1"
    built = subprocess.run(
        [sys.executable, ROOT / "docker/build.py", "--context", EXAMPLE, "--tag", tag, "--print-archives"],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    archive = Path(built.stdout.strip())
    if Path(os.environ["KUBECONFIG"]) == kind.KUBECONFIG:
        kind.load(archive)
    else:
        for node in NODES:
            containerd.import_image(node, archive)
    return tag


def test_a_script_in_an_own_image_trains_and_its_files_are_kept(namespace: Namespace, image: str) -> None:
    manifest = job()
    manifest["spec"]["artifacts"]["endpoint"] = os.environ["DTJ_TEST_S3_ENDPOINT"]
    assert manifest["spec"]["image"] == image
    applied = namespace.apply(manifest)
    status = applied.wait(180)
    keys = applied.artifacts().sizes()
    assert "model/spirals.pt" in keys
    assert any(re.fullmatch(r"checkpoints/\d+/epoch-5.pt", key) for key in keys)
    newest = status["artifacts"]["checkpoint"]
    assert newest["new"][0] == "epoch-5.pt"
    folder = newest["uri"].rpartition("/")[2]
    whole = snapshots.Manifest.from_json(applied.artifacts().read(f"checkpoints/{folder}/manifest.json"))
    assert {f"epoch-{epoch}.pt" for epoch in range(1, 6)} <= whole.paths
    assert "epoch 5: loss" in applied.artifacts().read("logs/attempt-1/rank-0.log").decode()
    # The script reports nothing: its progress and its curves are read from what it prints.
    assert (status["progress"]["epoch"], status["progress"]["source"]) == (5, "Output")
    rows = applied.artifacts().metrics()
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4, 5]
    assert {row["source"] for row in rows} == {"Output"}
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_an_image_without_dtj_trainer_trains_too(namespace: Namespace) -> None:
    script = (EXAMPLE / "train.py").read_text()
    namespace.kubectl("create", "configmap", "script", f"--from-literal=train.py={script}")
    manifest = job()
    del manifest["spec"]["artifacts"]
    manifest["spec"] |= {
        "image": "dtj-horovod-base:0.1.0",
        "replicaSpecs": {"worker": {"replicas": 2, "template": with_script()}},
    }
    applied = namespace.apply(manifest)
    applied.wait(180)
    log = namespace.kubectl("logs", "spirals-launcher-0")
    assert "epoch 5: loss" in log


def test_a_launcher_with_a_command_of_its_own_runs_it_as_written(namespace: Namespace) -> None:
    manifest = job()
    del manifest["spec"]["artifacts"], manifest["spec"]["command"], manifest["spec"]["args"]
    # As written for mpi-operator.
    command = ["mpirun", "--hostfile", "/etc/mpi/hostfile", "-n", "2", "hostname"]
    manifest["spec"] |= {
        "image": "dtj-horovod-base:0.1.0",
        "replicaSpecs": {
            "worker": {"replicas": 2},
            "launcher": {"template": {"spec": {"containers": [{"name": "trainer", "command": command}]}}},
        },
    }
    applied = namespace.apply(manifest)
    applied.wait(120)
    assert set(namespace.kubectl("logs", "spirals-launcher-0").split()) == {
        "spirals-worker-0",
        "spirals-worker-1",
    }


def job() -> Manifest:
    return yielding(yaml.safe_load((EXAMPLE / "job.yaml").read_text()))

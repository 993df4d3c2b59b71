"""One job file on this machine (`dtj run`) and on the cluster: equal results of the training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests import fashion_mnist
from tests.cluster import parameter_server
from tests.cluster.jobs import Manifest, Namespace, example
from tests.patience import PATIENCE

pytestmark = [pytest.mark.cluster, pytest.mark.chaos]
DTJ = Path(sys.executable).with_name("dtj")
# What two runs of the asynchronous example differ by is more than what is compared here.
JOBS = {
    "Horovod": example,
    "ParameterServer": lambda name: parameter_server.example(name, "Synchronous"),
}


@pytest.mark.parametrize("strategy", ["Horovod", "ParameterServer"])
def test_the_accuracy_is_the_same(strategy: str, namespace: Namespace, tmp_path: Path) -> None:
    job = JOBS[strategy]("alike")
    here = _run_here(job, tmp_path)
    assert here["phase"] == "Succeeded"

    there = namespace.apply(job).wait(300)
    assert here["progress"]["accuracy"] == pytest.approx(there["progress"]["accuracy"], abs=0.01)
    assert here["progress"]["step"] == there["progress"]["step"]


def _run_here(job: Manifest, folder: Path) -> Manifest:
    """The status of a job that `dtj run` carried out. Without the cluster's keys it takes a store of its own."""
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    words = [DTJ, "run", file, "--data", fashion_mnist.folder(), "--output=json"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment["DTJ_HOME"] = str(folder / "home")
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=300 * PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout)["status"])

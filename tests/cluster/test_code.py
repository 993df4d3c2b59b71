"""Jobs that bring their program as an archive (`spec.code`), and a ConfigMap that is made anew.

`test_submit_code.py` has the ranks and replicas that dtj starts itself, and `test_mpijob.py` those of an MPIJob.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cluster.code import stored_code
from tests.cluster.jobs import TORCH_EXAMPLE, Namespace, example
from tests.cluster.said import DTJ

pytestmark = pytest.mark.cluster
FILES = {
    "train.py": "import os, steps\nprint(steps.told(), 'from', os.getcwd(), 'of', os.environ['DTJ_WORLD_SIZE'])\n",
    "steps/__init__.py": "def told():\n    return open('data/words.txt').read().strip()\n",
    "data/words.txt": "read from the second module\n",
}


def test_each_rank_runs_the_archive_of_a_config_map(namespace: Namespace, tmp_path: Path) -> None:
    code = stored_code(namespace, "my-training", FILES, tmp_path)
    by_mpirun = example("by-mpirun")
    by_mpirun["spec"] |= {"command": [], "args": [], "code": {**code, "entrypoint": "train.py"}}
    by_torchrun = example("by-torchrun", TORCH_EXAMPLE)
    by_torchrun["spec"] |= {"command": ["torchrun", "train.py"], "args": [], "code": code}
    by_torchrun["metadata"]["annotations"] = {"dtj.dev/git-commit": "1a" * 20}
    jobs = [namespace.apply(manifest) for manifest in (by_mpirun, by_torchrun)]
    for job in jobs:
        job.wait()
    said = "read from the second module from /dtj/code of 2"
    for rank in range(2):
        assert said in jobs[0].artifacts().read(f"logs/attempt-1/rank-{rank}.log").decode()
        assert said in jobs[1].artifacts().read(f"logs/attempt-1/worker-{rank}.log").decode()
    kept = jobs[1].artifacts()
    assert kept.read("code.tar.gz") == (tmp_path / "code.tar.gz").read_bytes()
    assert json.loads(kept.read("run.json"))["code"]["git"]["commit"] == "1a" * 20

    without_keys = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    words = ("artifacts", "get", "by-torchrun", "code", str(tmp_path / "back"), "-n", namespace.name)
    subprocess.run([DTJ, *words], env=without_keys, check=True)
    assert {name: (tmp_path / "back/code" / name).read_text() for name in FILES} == FILES


def test_a_config_map_that_was_made_anew_is_refused(namespace: Namespace, tmp_path: Path) -> None:
    asked = stored_code(namespace, "code", FILES, tmp_path)
    namespace.kubectl("delete", "configmap", "code")
    found = stored_code(namespace, "code", {"train.py": "print('other')"}, tmp_path)
    manifest = example("anew")
    manifest["spec"] |= {"command": [], "args": [], "code": {**asked, "entrypoint": "train.py"}}
    status = namespace.apply(manifest).wait(phase="Failed")
    assert (status["failure"]["class"], status["attempt"]) == ("CodeUnusable", 1)
    assert asked["digest"] in status["failure"]["message"]
    assert found["digest"] in status["failure"]["message"]

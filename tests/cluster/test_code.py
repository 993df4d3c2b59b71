"""Jobs that bring their program as an archive (`spec.code`), and a ConfigMap that is made anew.

`test_submit_code.py` has the ranks and replicas that dtj starts itself, and `test_mpijob.py` those of an MPIJob.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from dtj_trainer import contract
from dtj_trainer.contract.package_set import PackageSet
from tests.cluster.code import stored_code
from tests.cluster.jobs import TORCH_EXAMPLE, Namespace, example
from tests.cluster.said import DTJ
from tests.wheels import packed, wheel

pytestmark = pytest.mark.cluster
FILES = {
    "train.py": (
        "import os, steps\nprint(steps.told(), 'from', os.getcwd(), 'of', os.environ['DTJ_WORLD_SIZE'])\n"
        "if 'DTJ_PACKAGES_ARCHIVE' in os.environ:\n    import tiny\n    print('tiny', tiny.version, tiny.__file__)\n"
    ),
    "steps/__init__.py": "def told():\n    return open('data/words.txt').read().strip()\n",
    "data/words.txt": "read from the second module\n",
}


def test_each_rank_runs_the_archive_of_a_config_map(namespace: Namespace, tmp_path: Path) -> None:
    packages = tmp_path / contract.PACKAGES_FILE
    digest = packed(packages, PackageSet("3.11", {"torch": "2.13.0"}), [wheel(tmp_path, "tiny", "0.4")])
    namespace.kubectl("create", "configmap", "my-packages", f"--from-file={packages}")
    code = stored_code(namespace, "my-training", FILES, tmp_path)
    code["packages"] = {"configMap": "my-packages", "digest": digest}
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
        for job, log in zip(jobs, (f"rank-{rank}", f"worker-{rank}"), strict=True):
            text = job.artifacts().read(f"logs/attempt-1/{log}.log").decode()
            assert said in text
            assert "tiny 0.4 /dtj/packages/tiny.py" in text
    kept = jobs[1].artifacts()
    for archive in (contract.CODE_FILE, contract.PACKAGES_FILE):
        assert kept.read(archive) == (tmp_path / archive).read_bytes()
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

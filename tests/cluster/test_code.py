"""A job that brings its program as an archive (`spec.code`), by ranks that mpirun starts over ssh."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtj.client import code_folder
from dtj_trainer import contract
from tests.cluster.jobs import Namespace, example

pytestmark = pytest.mark.cluster
FILES = {
    "train.py": "import os, steps\nprint(steps.told(), 'from', os.getcwd(), 'of', os.environ['DTJ_WORLD_SIZE'])\n",
    "steps/__init__.py": "def told():\n    return open('data/words.txt').read().strip()\n",
    "data/words.txt": "read from the second module\n",
}


def test_each_rank_runs_the_archive_of_a_config_map(namespace: Namespace, tmp_path: Path) -> None:
    folder, archive = tmp_path / "my-training", tmp_path / contract.CODE_FILE
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with archive.open("wb") as file:
        packed = code_folder.pack(code_folder.select(folder), file)
    namespace.kubectl("create", "configmap", "my-training", f"--from-file={archive}")
    code = {"configMap": "my-training", "digest": packed.digest, "entrypoint": "train.py"}
    manifest = example("brings-code")
    manifest["spec"] |= {"command": [], "args": [], "code": code}
    job = namespace.apply(manifest)
    job.wait()
    for rank in range(2):
        log = job.artifacts().read(f"logs/attempt-1/rank-{rank}.log").decode()
        assert "read from the second module from /dtj/code of 2" in log

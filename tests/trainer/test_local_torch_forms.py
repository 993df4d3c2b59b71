"""`dtj convert` and `dtj run` of the forms of PyTorchJob, TrainJob and torchx: the ranks of a script find each other.

Each job of tests/convert_jobs that converts runs here. The script is torch_forms/all_reduce.py.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from tests.trainer import local_runs
from tests.trainer.local_runs import DtjRun

from dtj.api.job import Manifest
from dtj.convert.job import convert, is_job

pytest.importorskip("torch", reason="needs the torch extra")

start = local_runs.start
warm_torch = local_runs.warm_torch
JOBS = Path(__file__).parents[1] / "convert_jobs"
SCRIPT = Path(__file__).parent / "torch_forms" / "all_reduce.py"
# Nodes, and ranks in each, as the other operator starts them; and the arguments of the script.
FORMS: dict[str, tuple[int, int, list[str]]] = {
    "torch-accelerate": (2, 1, []),
    "torch-arguments": (2, 1, ["--master_ip=127.0.0.1", "--num_nodes=2", "--rank=*"]),
    "torch-c10d": (2, 1, []),
    "torch-cpu": (2, 2, []),
    "torch-dist-url": (2, 1, ["--dist-url=tcp://127.0.0.1:23456"]),
    "torch-gpus": (2, 2, ["--checkpoint_dir", "/data/checkpoints"]),
    "torch-kueue": (2, 1, []),
    "torch-master-alone": (1, 1, []),
    "torch-script": (2, 2, ["--from=script"]),
    "torch-sendrecv": (4, 1, ["--backend", "gloo"]),
    "torch-shell": (2, 2, ["--epochs", "1"]),
    "torch-simple": (2, 1, []),
    "torch-volcano": (3, 1, []),
    "torchx-ddp": (2, 2, ["--epochs", "3"]),
    "torchx-gpus": (1, 4, ["--root", "/da ta", "$HOME"]),
    "trainjob-kueue": (2, 1, []),
    "trainjob-nodes": (2, 2, ["--epochs", "3"]),
    "trainjob-patches": (2, 1, []),
    "trainjob-runtime": (2, 2, ["--epochs", "1"]),
    "trainjob-volcano": (2, 1, []),
}
_LINE = re.compile(r"rank (\d+) of (\d+) on node (\d+): sum (\d+), arguments (\[[^]]*\])")


def converted(name: str, folder: Path, programs: Path) -> Manifest | None:
    """Convert a job whose programs are those in the folder `programs`."""
    train = folder / "train.sh"
    train.write_text(f"{programs}/torchrun {SCRIPT} --from=script\n")
    text = (JOBS / f"{name}.yaml").read_text()
    for before, now in {
        "-m app.digits": str(SCRIPT),
        r"(/app/digits|\bdemo)\.py": str(SCRIPT),
        "/app/train.sh": str(train),
        "python3": f"{programs}/python",
        r"\b(torchrun|accelerate)(?=[ ,])": rf"{programs}/\1",
    }.items():
        text = "\n".join(
            line if line.startswith("#") else re.sub(before, now, line) for line in text.splitlines()
        )
    documents = list(yaml.safe_load_all(text))
    (job,) = [each for each in documents if is_job(each)]
    made = convert(job, others=documents).manifest
    if made is not None and made["spec"]["replicaSpecs"]["worker"].pop("gpus", None):
        # The machine of the tests has no GPUs, and torchrun finds none.
        made["spec"]["torch"] = {**made["spec"].get("torch", {}), "procsPerWorker": FORMS[name][1]}
    return made


def test_every_job_that_converts_runs_here(tmp_path: Path) -> None:
    names = {file.stem for file in JOBS.glob("t*.yaml") if not file.stem.startswith("tf-")}
    assert {name for name in names if converted(name, tmp_path, Path(sys.executable).parent)} == set(FORMS)


@pytest.mark.parametrize("name", sorted(FORMS))
def test_the_ranks_of_a_converted_job_are_one_world(
    start: Callable[..., DtjRun], warm_torch: Path, tmp_path: Path, name: str
) -> None:
    if name == "torch-accelerate" and find_spec("accelerate") is None:
        pytest.skip("needs accelerate")
    file = tmp_path / f"{name}.yaml"
    file.write_text(json.dumps(converted(name, tmp_path, warm_torch)))

    output = start(file).ended()

    nodes, procs, arguments = FORMS[name]
    world = nodes * procs
    found = {int(match[1]): match for match in _LINE.finditer(output)}
    assert sorted(found) == list(range(world)), output
    for rank, match in found.items():
        assert (int(match[2]), int(match[4])) == (world, sum(range(world)))
        assert int(match[3]) == rank // procs
        assert match[5] == str([argument.replace("*", str(rank)) for argument in arguments])

"""Programs that know nothing of dtj: their step, rate and curves come from what they print or log."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
import tqdm

from dtj.client import code_folder
from dtj_trainer import contract
from tests.cluster.jobs import ROOT, TORCH_EXAMPLE, Job, Manifest, Namespace, example, until

pytestmark = pytest.mark.cluster
PROGRAMS = ROOT / "tests/layouts/curves"
# The step at which each hangs, all steps, and what says so.
STEPS = {
    "tqdm_loop": (300, 600, "Output"),
    "summary_writer": (250, None, "TensorBoard"),
    "nanogpt_prints": (150, None, "Output"),
}


@pytest.fixture
def jobs(namespace: Namespace, tmp_path: Path) -> dict[str, Job]:
    """The programs, which run at once; their archive brings tqdm, which the image does not have."""
    folder, archive = tmp_path / "code", tmp_path / contract.CODE_FILE
    folder.mkdir()
    shutil.copytree(Path(tqdm.__file__).parent, folder / "tqdm")
    for name in STEPS:
        shutil.copy(PROGRAMS / f"{name}.py", folder)
    with archive.open("wb") as file:
        packed = code_folder.pack(code_folder.select(folder), file)
    namespace.kubectl("create", "configmap", "programs", f"--from-file={archive}")

    def job(name: str) -> Manifest:
        code = {"configMap": "programs", "digest": packed.digest, "entrypoint": f"{name}.py"}
        manifest = example(name.replace("_", "-"), TORCH_EXAMPLE)
        manifest["spec"] |= {"command": [], "args": [], "code": code}
        manifest["spec"]["replicaSpecs"]["worker"]["replicas"] = 1
        del manifest["spec"]["data"]
        return manifest

    return {name: namespace.apply(job(name)) for name in STEPS}


def test_step_rate_and_curves_of_programs_that_know_nothing_of_dtj(jobs: dict[str, Job]) -> None:
    for name, (step, total, source) in STEPS.items():
        job = jobs[name]

        def told(job: Job = job, step: int = step) -> Manifest | None:
            assert job.status.get("phase") != "Failed", job.story()
            progress: Manifest = job.status.get("progress") or {}
            # A bar in a log is up to ten seconds old.
            return progress if progress.get("step", 0) >= step / 2 and "stepsPerSecond" in progress else None

        progress = until(f"{name} to have a step and a rate", told, 180)
        assert (progress["source"], progress.get("totalSteps")) == (source, total)
        assert progress["step"] <= step
        losses = until(f"{name} to have a curve", partial(losses_of, job), 180)
        assert all(0 <= loss < 100 for loss in losses)


def losses_of(job: Job) -> list[float]:
    """Those that are in the bucket, from the second on."""
    artifacts = job.artifacts()
    rows = artifacts.metrics() if "metrics.jsonl" in artifacts.sizes() else []
    return [row["loss"] for row in rows if "loss" in row][1:]

"""A bucket that the release before version 2 of the manifest filled, and the same by this release.

bucket_v1.json is what commit 93ec95e8 wrote: two checkpoints of `save`, and one of a script.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.unit.support.jobs import manifest
from typer.testing import CliRunner

from dtj.cli.main import app
from dtj_trainer import contract
from dtj_trainer.artifacts import checkpoints
from dtj_trainer.artifacts.checkpoint_upload import CheckpointUploader
from dtj_trainer.artifacts.fence import Fence
from dtj_trainer.artifacts.restore import CheckpointMirror, restore
from dtj_trainer.artifacts.snapshot import read_index
from dtj_trainer.artifacts.store import Store

OBJECTS: dict[str, str] = json.loads(Path(__file__).with_name("bucket_v1.json").read_text())
METRICS = '{"kind": "train", "step": 30, "loss": 0.5, "time": "2026-11-28T03:07:36Z"}\n'
SCRIPTS = {"checkpoint-30/model.safetensors": "model of 30", "checkpoint-30/trainer_state.json": "{}"}
LAST = {1: "30", 2: "21"}
"""The folder of the newest checkpoint. In version 2, its step is that of `save`'s folder, and its number the next."""
SAVED = {"20/weights.pt": "weights of 20", "20/optimizer.pt": "optimizer of 20"}


def uploader(folder: Path, job: Store, attempt: int) -> CheckpointUploader:
    fence = Fence(job, contract.CLAIM_FILE, attempt)
    fence.hold()
    return CheckpointUploader(
        folder,
        job.below(contract.CHECKPOINTS),
        fence=fence,
        keep=3,
        settle_seconds=0,
        step_at=lambda _: 30 * attempt,
    )


def by_this_release(job: Store, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what bucket_v1.json came from."""
    monkeypatch.setenv(contract.ENV_ROOT, str(root))
    monkeypatch.setenv(contract.ENV_ARTIFACTS_URI, job.location.uri)
    folder = root / contract.CHECKPOINTS
    folder.mkdir(parents=True)
    upload = uploader(folder, job, 1)

    def writes(step: int) -> Callable[[Path], None]:
        def write(directory: Path) -> None:
            (directory / "weights.pt").write_text(f"weights of {step}")
            (directory / "optimizer.pt").write_text(f"optimizer of {step}")

        return write

    for step in (10, 20):
        checkpoints.save(step, writes(step), metric=step / 100)
        assert upload.upload_pass(ended=True, died_ns=None)
    write(folder, SCRIPTS)
    assert upload.upload_pass(ended=True, died_ns=None)
    job.put_bytes("model/model.pt", b"model")


def write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


@pytest.fixture(params=[1, 2])
def version(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def job(version: int, job_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The prefix of a job whose checkpoints have manifests of this version."""
    if version == 1:
        for key, content in OBJECTS.items():
            job_store.put_bytes(key, content.encode())
    else:
        by_this_release(job_store, tmp_path / "written", monkeypatch)
    job_store.put_bytes("metrics.jsonl", METRICS.encode())
    job_store.put_bytes("job.yaml", yaml.safe_dump(manifest()).encode())
    found = json.loads(job_store.get_bytes(f"checkpoints/{LAST[version]}/manifest.json"))
    assert found["version"] == version
    return job_store


def newest(version: int) -> dict[str, str]:
    """Version 1 had the entry alone that was new; version 2 has the folder, with the newest checkpoint of `save`."""
    return SCRIPTS if version == 1 else SCRIPTS | SAVED


def test_the_newest_is_restored_mirrored_and_resumed_from_by_another_job(
    job: Store, version: int, tmp_path: Path
) -> None:
    below, expected = job.below(contract.CHECKPOINTS), newest(version)
    for name, store, resume in (
        ("own", below, "Auto"),
        ("other", job.at(job.location._replace(prefix="none")), job.location.uri),
        (
            "exactly",
            job.at(job.location._replace(prefix="none")),
            f"{job.location.uri}/checkpoints/{LAST[version]}",
        ),
    ):
        restored = restore(store, tmp_path / name, resume)
        assert restored is not None
        assert restored.uri == below.uri(LAST[version])
        assert contents(tmp_path / name) == expected
    mirror = CheckpointMirror(tmp_path / "mirror", below, keep=3)
    mirror.mirror_pass(ended=False, died_ns=None)
    assert contents(tmp_path / "mirror") == expected


def test_the_commands_read_it(job: Store, version: int, tmp_path: Path) -> None:
    def said(*words: str) -> str:
        found = CliRunner().invoke(app, [*words])
        assert found.exit_code == 0, found.output
        return found.stdout

    uri = job.location.uri
    assert json.loads(said("status", uri, "-o", "json"))["status"]["artifacts"]["checkpoint"]["uri"] == (
        f"{uri}/checkpoints/{LAST[version]}"
    )
    said("artifacts", "get", uri, "--checkpoint", "10", str(tmp_path / "10"))
    assert contents(tmp_path / "10") == {
        "10/weights.pt": "weights of 10",
        "10/optimizer.pt": "optimizer of 10",
    }
    listed = json.loads(said("artifacts", "ls", uri, "checkpoints", "-o", "json"))
    assert "checkpoints/10/weights.pt" in [item["key"] for item in listed]
    assert "2026-11-28 03:07:36" in said("report", uri)


def test_the_next_attempt_goes_on_and_keeps_what_it_names(job: Store, version: int, tmp_path: Path) -> None:
    folder, below = tmp_path / "second", job.below(contract.CHECKPOINTS)
    restored = restore(below, folder, "Auto")
    assert restored is not None
    upload = uploader(folder, job, 2)
    upload.note_restored(restored.manifest, own=True)
    upload.start()
    for epoch in range(40, 46):
        write(folder, {f"epoch-{epoch}.pt": f"epoch {epoch}"})
        assert upload.upload_pass(ended=True, died_ns=None)
    upload.close()
    last = read_index(below).newest_first()[0]
    kept = {file.path: file.key for file in last.files}
    assert kept["checkpoint-30/model.safetensors"].startswith(f"{LAST[version]}/"), (
        "sent once, by the first attempt"
    )
    assert restore(below, tmp_path / "third", "Auto")
    epochs = {f"epoch-{epoch}.pt": f"epoch {epoch}" for epoch in range(40, 46)}
    assert contents(tmp_path / "third") == newest(version) | epochs

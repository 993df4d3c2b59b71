"""The last sync: every upload loop runs, and the sync waits while the bucket takes bytes."""

from __future__ import annotations

import threading
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from dtj_trainer import contract
from dtj_trainer.artifacts import checkpoints, file_fetch, s3, sync_loop
from dtj_trainer.artifacts.manifest import Manifest, StoredFile
from dtj_trainer.artifacts.s3 import Deadline, RefusedKey, S3Error
from dtj_trainer.artifacts.snapshot import read_index
from dtj_trainer.artifacts.store import Store
from dtj_trainer.artifacts.sync import PodSync, SyncSettings
from dtj_trainer.artifacts.sync_loop import SyncLoop


def test_patience_begins_anew_with_each_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    now, sent = [0.0], [5]
    monkeypatch.setattr(s3.time, "monotonic", lambda: now[0])
    patience, strict = Deadline(10, lambda: sent[0]), Deadline(10, None)
    now[0], sent[0] = 8.0, 6
    assert (patience.left(), strict.left()) == (10, 2)
    now[0], sent[0] = 15.0, 4  # a part is sent again
    assert patience.left() == 3


def test_an_error_of_one_upload_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_loop, "LASTING_SECONDS", 0.0)
    failed, arrived = threading.Event(), threading.Event()

    def files(*, ended: bool, died_ns: int | None) -> bool:
        failed.set()
        raise S3Error("no", transient=False)

    def checkpoints(*, ended: bool, died_ns: int | None) -> bool:
        if ended and failed.wait(60):
            arrived.set()
        return ended

    settings = SyncSettings(tmp_path, tmp_path, None, "primary", 1, "Auto", 3, 1.0)
    sync = PodSync(settings, lambda _: None)
    sync._loops = [SyncLoop("files", files), SyncLoop("checkpoints", checkpoints)]
    for loop in sync._loops:
        loop.start()
    with pytest.raises(S3Error, match="no"):
        sync.finish(60, ended=True)
    assert arrived.is_set()


@pytest.mark.parametrize("by_mistake", [False, True])
def test_a_refused_key_ends_the_last_sync_at_once_and_one_mistake_does_not(
    monkeypatch: pytest.MonkeyPatch, by_mistake: bool
) -> None:
    monkeypatch.setattr(sync_loop, "LASTING_SECONDS", 1e9)
    passes: list[bool] = []

    def refused(*, ended: bool, died_ns: int | None) -> bool:
        passes.append(ended)
        if ended and passes.count(True) <= (1 if by_mistake else 100):
            raise RefusedKey("access to model/model.pt is denied")
        return ended

    loop = SyncLoop("uploading files", refused, interval=0.0)
    loop.start()
    asked = loop.ask(ended=True)

    def seconds_left() -> float:
        return 60.0 * (passes.count(True) < 5)

    if by_mistake:
        loop.wait(asked, lambda: 60.0)
    else:
        with pytest.raises(RefusedKey, match=r"access to model/model\.pt is denied"):
            loop.wait(asked, seconds_left)
        assert passes.count(True) < 5
    loop.stop()
    loop.join(60)


def test_pods_upload_their_parts_of_a_checkpoint_until_the_end(
    job_uri: str,
    job_store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    syncs = []
    for part in ("primary", "other"):
        root = tmp_path / part
        settings = SyncSettings(root, tmp_path, job_uri, part, 1, "Auto", 3, 1.0)
        sync = PodSync(settings, lambda _: None)
        sync.make_folders()
        sync.restore(20)
        sync.start()
        monkeypatch.setenv(contract.ENV_ROOT, str(root))
        monkeypatch.setenv(contract.ENV_ARTIFACTS_URI, job_uri)
        checkpoints.save(7, lambda folder, part=part: (folder / part).write_text(part) and None, parts=2)
        syncs.append(sync)
    for sync in reversed(syncs):
        sync.finish(60, ended=True)
        sync.warn_of_unuploaded()
        sync.close()
    (manifest,) = read_index(job_store.below("checkpoints")).manifests.values()
    assert {file.path for file in manifest.files} == {"7/primary", "7/other", "7/.dtj-checkpoint.json"}
    assert "is not uploaded" not in caplog.text


@pytest.mark.parametrize("other", [False, True])
def test_a_restore_that_brings_bytes_outlasts_the_timeout(
    job_store: Store, job_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: bool
) -> None:
    """Each file takes longer than the timeout, and after each the connection breaks."""
    now = [0.0]
    monkeypatch.setattr(s3, "time", SimpleNamespace(monotonic=lambda: now[0]))
    files = tuple(StoredFile(f"1/{name}", f"1/{name}", 1, sha256(b"x").hexdigest()) for name in "abc")
    source = job_store.below("checkpoints")
    for file in files:
        source.put_bytes(file.key, b"x")
    source.put_bytes("1/manifest.json", Manifest(1, 1, "t", 1, files).to_json())
    fetch, fetched = Store.get_with_sha256, []

    def slowly(store: Store, key: str, path: Path, **small: bool) -> str:
        if len(fetched) % 2:
            fetched.append("")
            raise S3Error("connection reset", transient=True)
        now[0] += 100
        fetched.append(key)
        return fetch(store, key, path, **small)

    monkeypatch.setattr(Store, "get_with_sha256", slowly)
    monkeypatch.setattr(file_fetch, "SMALL_BYTES", 0)  # One after the other.
    uri, resume = (f"{job_uri}/new", job_uri) if other else (job_uri, "Auto")
    settings = SyncSettings(tmp_path, tmp_path, uri, "primary", 1, resume, 3, 1.0)
    sync = PodSync(settings, lambda _: None)
    sync.make_folders()
    assert sync.restore(60, sleep=lambda _: None) is not None
    assert fetched == ["1/a", "", "1/b", "", "1/c"]


def test_a_restore_that_brings_nothing_ends(
    job_store: Store, job_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(s3, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def away(_: Store) -> list[str]:
        now[0] += 25
        raise S3Error("away", transient=True)

    monkeypatch.setattr(Store, "folders", away)
    sync = PodSync(SyncSettings(tmp_path, tmp_path, job_uri, "primary", 1, "Auto", 3, 1.0), lambda _: None)
    sync.make_folders()
    with pytest.raises(S3Error, match="away"):
        sync.restore(60, sleep=lambda _: None)
    assert now == [75.0]


@pytest.mark.parametrize(("resume", "local"), [("Auto", b"1\n2\n3\n"), ("Never", None)])
def test_a_retry_goes_on_with_metrics_in_segments(
    job_store: Store, job_uri: str, tmp_path: Path, resume: str, local: bytes | None
) -> None:
    for name, content in (("metrics.jsonl", b"1\n"), ("metrics.jsonl.00002", b"2\n3\n")):
        job_store.put_bytes(name, content)
    metrics = tmp_path / "metrics.jsonl"
    sync = PodSync(
        SyncSettings(tmp_path, tmp_path, job_uri, "primary", 2, resume, 3, 1.0, log_names=()), lambda _: None
    )
    sync.make_folders()
    sync.restore(60)
    assert (metrics.read_bytes() if metrics.exists() else None) == local
    sync.start()
    with metrics.open("ab") as file:
        file.write(b"4\n")
    sync.finish(60, ended=True)
    keys = {item.key: job_store.get_bytes(item.key) for item in job_store.named("metrics")}
    assert b"".join(keys.values()) == b"1\n2\n3\n4\n"
    if local:
        assert keys["metrics.jsonl.00002"] == b"2\n3\n4\n"

"""Programs that write their checkpoints into a folder of their own choice: DTJ_CHECKPOINTS_DIR.

* where the folder is, and which folders are refused
* programs whose pod restores and uploads the folder, without a file of the machine's own folder
* the names of large files outside
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.trainer.conftest import Workspace, keys, until

from dtj_trainer import contract
from dtj_trainer.artifacts import checkpoints
from dtj_trainer.artifacts.manifest import Manifest
from dtj_trainer.artifacts.store import Store
from dtj_trainer.launch import main, pod
from dtj_trainer.launch.pod import FilesOutside, new_files
from dtj_trainer.launch.settings import Settings, SettingsError, read_settings

POD = contract.PodInfo(role="worker", index=0, slots=1, part="primary", restores=True)
PROGRAM = """
import os, pathlib
logs = pathlib.Path("lightning_logs")
print("found", sorted(str(path) for path in logs.rglob("*.ckpt")), os.environ["DTJ_CHECKPOINTS_DIR"])
number = len(list(logs.glob("version_*")))
folder = logs / f"version_{number}" / "checkpoints"
folder.mkdir(parents=True)
(folder / "epoch=1.ckpt").write_text(f"run {number}")
(logs / "last.ckpt").unlink(missing_ok=True)
(logs / "last.ckpt").symlink_to((folder / "epoch=1.ckpt").absolute())
"""


def settings(text: str, **more: str) -> Settings:
    return read_settings({contract.ENV_POD: POD.to_json(), contract.ENV_CHECKPOINTS_DIR: text} | more)


def test_the_folder_is_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("elsewhere")
    assert settings("").checkpoints == Path("/dtj/checkpoints")
    assert settings("/dtj/checkpoints/").checkpoints == Path("/dtj/checkpoints")
    assert settings("/dtj/outputs").checkpoints == Path("/dtj/outputs")
    assert settings("out/logs").checkpoints == tmp_path / "out/logs"
    assert settings("link/a").checkpoints == tmp_path / "elsewhere/a"
    # Under `dtj run`, dtj-launch has the workspace, and the program has the folder by its own path.
    local = settings("out", DTJ_ROOT=str(tmp_path / "root"))
    assert (local.checkpoints, local.checkpoints_dir) == (tmp_path / "root/checkpoints", tmp_path / "out")


@pytest.mark.parametrize("text", [".", "..", "/", "/etc", "/dtj", sys.prefix])
def test_a_folder_with_other_things_is_refused(text: str) -> None:
    with pytest.raises(
        SettingsError, match="DTJ_CHECKPOINTS_DIR must be a folder for checkpoints alone, and"
    ):
        settings(text)


@pytest.mark.parametrize("text", ["/dtj/checkpoints/run-1", "/dtj/model", "/dtj/run/x"])
def test_a_folder_of_dtj_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=f"must not be {text}, because dtj itself uses this folder"):
        settings(text)


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a file of an earlier run on this machine."""
    folder = tmp_path / "project"
    (folder / "lightning_logs/version_7").mkdir(parents=True)
    (folder / "lightning_logs/version_7/mine.ckpt").write_text("of this machine")
    monkeypatch.chdir(folder)
    return folder


def test_a_program_finds_what_an_earlier_attempt_wrote(
    make_workspace: Callable[..., Workspace], job_uri: str, job_store: Store, machines: Path
) -> None:
    for attempt in ("1", "2"):
        pod = make_workspace(
            f"pod-{attempt}",
            DTJ_ARTIFACTS_URI=job_uri,
            DTJ_POD=POD.to_json(),
            DTJ_ATTEMPT=attempt,
            DTJ_CHECKPOINTS_DIR="lightning_logs",
        )
        run = pod.python(PROGRAM)
        assert run.ended() == 0, run.output
        files = ["lightning_logs/last.ckpt", "lightning_logs/version_0/checkpoints/epoch=1.ckpt"]
        assert f"found {files if attempt == '2' else []} {machines}/lightning_logs\n" in run.output
    (newest,) = [key for key in keys(job_store) if key.startswith("checkpoints/2-") and "manifest" in key]
    manifest = Manifest.from_json(job_store.get_bytes(newest))
    assert {file.path for file in manifest.files} == {
        f"version_{number}/checkpoints/epoch=1.ckpt" for number in (0, 1)
    }
    (link,) = manifest.links
    assert (link.path, link.target) == ("last.ckpt", "version_1/checkpoints/epoch=1.ckpt")
    assert sorted(path.name for path in machines.rglob("*")) == ["lightning_logs", "mine.ckpt", "version_7"]


@pytest.mark.parametrize("kind", ["worker", "ranks", "replica"])
def test_a_folder_that_cant_be_made_is_told(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(contract.ENV_POD, POD.to_json())
    monkeypatch.setenv(contract.ENV_CHECKPOINTS_DIR, str(tmp_path / "file"))
    monkeypatch.delenv(contract.ENV_ROOT, raising=False)
    assert main.run([kind, "--", "true"]) == contract.EXIT_CONFIG
    assert (
        f"dtj-launch: DTJ_CHECKPOINTS_DIR={tmp_path}/file: can't make the folder: File exists"
        in capfd.readouterr().err
    )


def test_save_writes_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(contract.ENV_CHECKPOINTS_DIR, str(tmp_path / "out"))
    assert checkpoints.save(3, lambda folder: (folder / "a").touch() or None) == tmp_path / "out/3"  # type: ignore[func-returns-value]
    assert checkpoints.newest() == (3, tmp_path / "out/3")


def test_without_a_namespace_the_program_does_not_start(
    make_workspace: Callable[..., Workspace], job_uri: str, machines: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    pod = make_workspace(
        DTJ_ARTIFACTS_URI=job_uri, DTJ_POD=POD.to_json(), DTJ_CHECKPOINTS_DIR=str(tmp_path / "file/below")
    )
    run = pod.python("print('runs')")
    assert run.ended() == contract.EXIT_CONFIG
    assert f"DTJ_CHECKPOINTS_DIR={tmp_path}/file/below can't be mounted: Not a directory" in run.output
    assert "runs" not in run.output


# --- files outside -----------------------------------------------------------------------------


def test_new_large_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(name: str, size: int = 2_000_000) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)

    write("old")
    begun = (tmp_path / "old").stat().st_ctime_ns + 1
    for name in ("runs/a/b.pt", "kept/c.pt", ".cache/d.pt", "metrics"):
        write(name)
    write("small", 10)
    (tmp_path / "link").symlink_to("runs/a/b.pt")
    kept = {f"{tmp_path}/kept", f"{tmp_path}/metrics"}
    assert list(new_files(tmp_path, kept, begun)) == [(Path("runs/a/b.pt"), 2_000_000)]
    assert list(new_files(tmp_path / "not-there", kept, begun)) == []
    # Of more entries than the limit, those near the top are looked at.
    write("top.pt")
    for number in range(50):
        write(f"a/{number}", 1)
    monkeypatch.setattr(pod, "MOST_ENTRIES", 20)
    assert (Path("top.pt"), 2_000_000) in list(new_files(tmp_path, kept, begun))


def test_each_folder_is_named_once_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    outside = FilesOutside(lambda: [os.getpid(), 2**22 + 1], [tmp_path / "dtj"])
    for name in ("runs/1.pt", "dtj/2.pt", "3.pt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * 3_000_000)
        outside.look()
        outside.look()
    remedy = "If the program needs the file after a restart, write checkpoints below /dtj/checkpoints"
    assert [record.getMessage() for record in caplog.records] == [
        f"dtj does not keep '{tmp_path}/runs/1.pt' (3 MB). {remedy}, or set DTJ_CHECKPOINTS_DIR to 'runs'",
        f"dtj does not keep '{tmp_path}/3.pt' (3 MB). {remedy}",
    ]


def test_a_program_in_another_directory_gets_the_whole_path(tmp_path: Path) -> None:
    told = pod.sentence(Path("ckpt/a\n.pt"), 2_000_000, tmp_path)
    assert f"'{tmp_path}/ckpt/a\\n.pt'" in told
    assert told.endswith(f"or set DTJ_CHECKPOINTS_DIR to '{tmp_path}/ckpt'")


def test_what_dtj_keeps_and_what_it_can_t_see_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.chdir(tmp_path / "checkpoints")
    kept = FilesOutside(lambda: [os.getpid()], [tmp_path / "checkpoints"])
    elsewhere = FilesOutside(lambda: [os.getpid()], [], tmp_path)
    Path("large.pt").write_bytes(b"x" * 3_000_000)
    kept.look()
    elsewhere.look()
    assert caplog.text == ""


def test_many_files_make_few_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pod, "LEAST_BYTES", 1)
    outside = FilesOutside(lambda: [os.getpid()], [])
    for number in range(50):
        Path(f"{number}.pt").write_text("x")
        Path(f"run-{number}").mkdir()
        Path(f"run-{number}/a.pt").write_text("x")
    outside.look()
    assert len(caplog.records) == pod.MOST_NAMED


def test_a_pod_names_the_files_of_its_program(
    make_workspace: Callable[..., Workspace], job_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sitecustomize.py").write_text(
        "from dtj_trainer.launch import pod as f\nf.FIRST_SECONDS = f.EVERY_SECONDS = 0.1\n"
    )
    pod = make_workspace(
        DTJ_ARTIFACTS_URI=job_uri,
        DTJ_POD=POD.to_json(),
        PYTHONPATH=f"{tmp_path}:{Path(contract.__file__).parents[2]}",
    )
    run = pod.python(
        "import pathlib, time\npathlib.Path('w.pt').write_bytes(b'x' * 1500000)\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.01)"
    )
    run.says(
        f"dtj does not keep '{tmp_path}/w.pt' (2 MB). If the program needs the file after a restart, write "
    )
    (tmp_path / "go").touch()
    assert run.ended() == 0
    until(lambda: run.output.count("does not keep") == 1, "one line")

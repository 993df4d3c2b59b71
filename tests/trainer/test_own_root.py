"""The workspace at `/dtj` for programs whose workspace lies elsewhere, for root and for other users.

* programs with and without a mount namespace
* reasons against a namespace, and file systems that hang
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dtj_trainer.launch import own_root

NOBODY = 65534
PR_SET_DUMPABLE = 4


def in_child(act: Callable[[], object], user: int = 0) -> str:
    """What `act` returns in a process of its own, of that user, or the error that it raises."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(user)
            os.setuid(user)
            # As in a process that this user started: one that changed its user may not be looked at in /proc.
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1)
            said = str(act())
        except BaseException as error:  # noqa: BLE001 - told to the parent
            said = repr(error)
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as told:  # noqa: PTH123 - a descriptor
        said = told.read().decode()
    os.waitpid(child, 0)
    return said


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "checkpoints").mkdir()
    for folder in (tmp_path, *tmp_path.iterdir()):
        folder.chmod(0o777)
    # pytest's folders are its own, and with several workers there is one level more of them.
    for folder in tmp_path.parents:
        if folder.stat().st_mode & 0o005 != 0o005:
            folder.chmod(0o755)
    return tmp_path


@pytest.fixture(params=[0, NOBODY], ids=["root", "nobody"])
def user(request: pytest.FixtureRequest, workspace: Path) -> int:
    if fault := in_child(lambda: own_root.fault_of_a_trial(workspace) or "", request.param):
        pytest.skip(f"this kernel gives user {request.param} no mount namespace: {fault}")
    return int(request.param)


def test_dtj_is_the_workspace_and_all_else_is_the_machines(workspace: Path, user: int) -> None:
    def act() -> object:
        os.chdir(workspace)
        command, _ = own_root.enter(workspace, ["train", "--checkpoints=/dtj/checkpoints"], {})
        Path("/dtj/checkpoints/ckpt-1.pt").write_text("state")
        # A program started there finds it too.
        code = os.waitstatus_to_exitcode(
            os.system("test -f /dtj/checkpoints/ckpt-1.pt -a -x /bin/sh -a -d /proc/1")
        )
        others = {path.name for path in Path("/").iterdir() if path.name != "dtj"}
        with pytest.raises(OSError, match="Read-only file system: '/results'"):
            Path("/results").mkdir()
        return command, os.getuid(), Path.cwd() == workspace, code, others == before

    before = {path.name for path in Path("/").iterdir() if path.name != "dtj"}
    machines = sorted(Path("/dtj").rglob("*")) if Path("/dtj").exists() else None
    assert in_child(act, user) == str((["train", "--checkpoints=/dtj/checkpoints"], user, True, 0, True))
    assert (workspace / "checkpoints/ckpt-1.pt").read_text() == "state"
    assert (sorted(Path("/dtj").rglob("*")) if Path("/dtj").exists() else None) == machines


def test_without_a_namespace_words_and_variables_name_the_workspace(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(own_root, "fault_of_a_trial", lambda *_: "Operation not permitted (unshare)")
    given = {"OUT": "/dtj/model", "VIRTUAL_ENV": "/dtj/venv", "DTJ_ROOT_VARIABLES": "OUT NOT_THERE"}
    words = [
        "t.py",
        "--checkpoints=/dtj/checkpoints",
        "/dtj",
        "/dtjx/y",
        "a/dtj/b",
        "t --out='/dtj/model'; s3://dtj",
    ]
    command, environment = own_root.enter(workspace, words, given)
    assert command == [
        *("t.py", f"--checkpoints={workspace}/checkpoints", str(workspace), "/dtjx/y", "a/dtj/b"),
        f"t --out='{workspace}/model'; s3://dtj",
    ]
    assert environment == {**given, "OUT": f"{workspace}/model"}
    assert "OUT" not in os.environ
    assert "Operation not permitted (unshare)" in caplog.text


def test_a_namespace_that_fails_half_way_leaves_a_program_that_runs(workspace: Path, user: int) -> None:
    def act() -> object:
        real = own_root._call
        calls: list[str] = []

        def fails(name: str, *arguments: bytes | int | None) -> None:
            calls.append(name)
            if name == "pivot_root":
                raise OSError(22, "Invalid argument", name)
            real(name, *arguments)

        own_root.fault_of_a_trial = lambda *_: None
        own_root._call = fails
        os.chdir(workspace)
        command, _ = own_root.enter(workspace, ["/dtj/model"], {})
        (workspace / "checkpoints/ckpt-1.pt").write_text("state")
        return command, calls[-1], os.system("test -f checkpoints/ckpt-1.pt -a -x /bin/sh"), str(Path.cwd())

    expected = ([f"{workspace}/model"], "pivot_root", 0, str(workspace))
    assert in_child(act, user) == str(expected)
    assert (workspace / "checkpoints/ckpt-1.pt").read_text() == "state"


@pytest.mark.parametrize("hidden", ["root", "prefix"])
def test_what_the_workspace_would_hide_is_a_reason_against_it(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    if hidden == "prefix":
        monkeypatch.setattr(sys, "prefix", "/dtj/venv")
    root = Path("/dtj/home/runs/default/a/worker-0") if hidden == "root" else workspace
    fault = own_root.fault_of_a_trial(root)
    assert fault is not None
    assert "which the workspace would hide" in fault


def test_a_file_system_that_hangs_does_not_hold_the_program_up(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_root, "_mount", lambda *_: signal.pause())
    monkeypatch.setattr(own_root, "TRIAL_SECONDS", 0.1)
    assert own_root.enter(workspace, ["--out=/dtj/model"], {}) == ([f"--out={workspace}/model"], {})
    os.wait()


def test_the_trial_of_a_machine_leaves_nothing_behind(workspace: Path) -> None:
    words = [sys.executable, "-P", "-m", "dtj_trainer.launch.own_root", str(workspace)]
    before = sorted(workspace.rglob("*"))
    told = subprocess.run(words, capture_output=True, text=True, check=True)
    assert sorted(workspace.rglob("*")) == before
    assert told.stdout == in_child(lambda: own_root.fault_of_a_trial(workspace) or "")

"""The supervisor of a worker and the wrappers of its ranks, without mpirun.

* ssh and ranks during the restore
* data of built-in programs
* the final sync: all ranks, errors, the grace period
* memory of either cgroup version
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.trainer.conftest import (
    PATIENT,
    Launched,
    Workspace,
    free_ports,
    get_json,
    has,
    keys,
    pod_variable,
    put_checkpoint,
    until,
)
from tests.trainer.idx_files import NAMES

from dtj_trainer.launch import pod as data_ahead
from dtj_trainer.launch.cgroups import oom_kills
from dtj_trainer.launch.settings import control_socket, read_settings
from dtj_trainer.launch.supervisor_socket import Answer, Attached, ControlClient, ControlServer, connect
from dtj_trainer.launch.worker import POLL_SECONDS, Worker


def start(workspace: Workspace, **environment: str) -> Launched:
    worker = workspace.launch("worker", **environment)
    worker.says("is ready for ssh")
    return worker


def rank(workspace: Workspace, number: int, program: str, **environment: str) -> Launched:
    return workspace.python(
        "import os, pathlib, time\nroot = pathlib.Path(os.environ['DTJ_ROOT'])\n" + program,
        role="rank",
        OMPI_COMM_WORLD_RANK=str(number),
        OMPI_COMM_WORLD_SIZE="2",
        **environment,
    )


WAITS = "print('waits', os.getpid())\nwhile not (root / 'go').exists(): time.sleep(0.02)\n"


def test_a_rank_needs_its_pods_supervisor(workspace):
    run = rank(workspace, 1, "print('ran')")
    assert run.ended() == 69
    assert "no worker's supervisor answers" in run.output
    assert '"class":"ArtifactsUnavailable"' in run.output
    assert "ran\n" not in run.output


def test_ssh_is_let_in_during_the_restore_and_programs_wait_for_its_end(
    worker_sshd, tmp_path, object_store, job_uri, job_store
):
    put_checkpoint(job_store, tmp_path, 120)
    object_store.kill()
    worker = worker_sshd.launch("worker", DTJ_ARTIFACTS_URI=job_uri, **PATIENT)
    worker.says("is ready for ssh")
    worker.says("restore waits")
    wrapper = rank(worker_sshd, 0, "print('restored', *os.listdir(root / 'checkpoints'))")
    assert "rank 0 runs" not in worker.output
    object_store.start()
    assert wrapper.ended() == 0, wrapper.output
    assert "ckpt-120.index" in wrapper.output
    worker.terminate()
    assert worker.ended() == 0


def test_pictures_are_in_the_workspace_before_a_rank_asks_for_them(worker_sshd, job_uri, job_store):
    program = "[python, -m, dtj_trainer.programs.horovod_image_classification, --data-workers=2]"
    (worker_sshd.config / "job.yaml").write_text(f"spec: {{command: {program}}}\n")
    for name in NAMES:
        job_store.put_bytes(f"pictures/{name}", name.encode())
    worker = start(worker_sshd, DTJ_DATA_URI=f"{job_uri}/pictures", DTJ_UID="8c2f", DTJ_ATTEMPT="1")
    worker.says("staged t10k-labels-idx1-ubyte")
    for name in NAMES:
        (staged,) = worker_sshd.root.glob(f"data/pictures-*/{name}")
        assert staged.read_bytes() == name.encode()
    worker.terminate()
    assert worker.ended() == 0


@pytest.mark.parametrize(
    ("job", "reads"),
    [
        ("command: [python, -m, dtj_trainer.programs.horovod_image_classification]", True),
        ("args: [-m, dtj_trainer.programs.ps_image_classification, --data=s3://other/set]", False),
        ("command: [python, train.py]", False),
        (None, False),
    ],
)
def test_data_are_brought_for_built_in_programs_alone(tmp_path, monkeypatch, job, reads):
    began = []
    monkeypatch.setattr(data_ahead, "stage_ahead", lambda uri, _: began.append(uri))
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.run)
    if job:
        (tmp_path / "job.yaml").write_text(f"spec:\n  {job}\n")
    environment = {"DTJ_DATA_URI": "s3://datasets/x", "DTJ_CONFIG_DIR": str(tmp_path)}
    for pod in ({"DTJ_ROLE": "worker"}, {"DTJ_STRATEGY": "ParameterServer", "DTJ_ROLE": "ps"}):
        # A ps reads no data.
        data_ahead.begin_staging(read_settings(environment | pod_variable(pod)))
    assert began == ["s3://datasets/x"] * reads


def test_ranks_that_do_not_wait_are_let_in_after_the_restore(
    worker_sshd, tmp_path, object_store, job_uri, job_store
):
    """As a launcher's own command starts them: by ssh alone."""
    put_checkpoint(job_store, tmp_path, 120)
    object_store.kill()
    worker = worker_sshd.launch("worker", DTJ_ARTIFACTS_URI=job_uri, DTJ_SSH_AFTER_RESTORE="yes", **PATIENT)
    worker.says("restore waits")
    assert "is ready for ssh" not in worker.output
    object_store.start()
    worker.says("is ready for ssh")
    assert (worker_sshd.root / "checkpoints" / "ckpt-120.index").exists()
    worker.terminate()
    assert worker.ended() == 0


def test_programs_of_a_pod_that_can_not_restore_never_start(worker_sshd, object_store, job_uri):
    object_store.kill()
    worker = worker_sshd.launch("worker", DTJ_ARTIFACTS_URI=job_uri, DTJ_SYNC_TIMEOUT_SECONDS="2")
    worker.says("is ready for ssh")
    wrapper = rank(worker_sshd, 0, "print('ran')")
    assert wrapper.ended() == 69
    assert '"class":"ArtifactsUnavailable"' in wrapper.output
    assert "ran\n" not in wrapper.output
    assert worker.ended() == 69
    assert worker_sshd.termination["class"] == "ArtifactsUnavailable"


def test_final_sync_waits_for_all_ranks_of_the_pod(worker_sshd, job_uri, job_store):
    worker = start(worker_sshd, DTJ_ARTIFACTS_URI=job_uri)
    second = rank(worker_sshd, 1, WAITS + "(root / 'model' / 'late.pt').write_text('late')")
    second.says("waits")
    first = rank(worker_sshd, 0, "print('first ends')")
    first.says("first ends")
    assert first.process.poll() is None
    (worker_sshd.root / "go").touch()
    assert second.ended() == 0
    assert first.ended() == 0
    assert "[rank 0] first ends\n" in first.output
    assert 'dtj-rank-exit: {"role":"worker","index":0,' in first.output
    assert '"model":"s3://' in first.output
    assert '"model"' not in second.output
    assert job_store.get_bytes("model/late.pt") == b"late"
    assert job_store.get_bytes("logs/attempt-1/rank-1.log").startswith(b"waits")
    worker.terminate()
    assert worker.ended() == 0


def test_program_of_a_killed_wrapper_ends_too(worker_sshd):
    worker = start(worker_sshd)
    # A child that would outlive the wrapper: not it, but its parent dies with the wrapper.
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
        "print('runs', os.getpid(), child.pid)\n"
        "time.sleep(300)"
    )
    wrapper = rank(worker_sshd, 0, program)
    wrapper.says("runs")
    until(lambda: "rank 0 runs" in worker.output, "the wrapper attached")
    pids = [int(word) for word in wrapper.output.split("runs ")[1].split()]
    wrapper.process.kill()
    worker.says("the wrapper of rank 0 is gone")
    until(lambda: not any(alive(pid) for pid in pids), "its processes are gone")
    worker.terminate()
    assert worker.ended() == 0


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


def test_stopped_worker_lets_its_rank_save_a_checkpoint(worker_sshd, job_uri, job_store):
    worker = start(worker_sshd, DTJ_ARTIFACTS_URI=job_uri)
    program = (
        "import signal, sys\n"
        "from dtj_trainer.artifacts import checkpoints\n"
        "def leave(*_):\n"
        "    checkpoints.save(8, lambda d: (d / 'w').write_text('w'))\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, leave)\n" + WAITS
    )
    wrapper = rank(worker_sshd, 0, program)
    wrapper.says("waits")
    until(lambda: "rank 0 runs" in worker.output, "the wrapper attached")
    worker.terminate()
    assert worker.ended() == 0
    assert wrapper.ended() == 143
    assert '"stopped":true' in wrapper.output
    assert has(job_store, "checkpoints/8/manifest.json")


@pytest.mark.parametrize("starts", [True, False])
def test_a_rank_that_is_just_starting_is_awaited_and_asked_to_end(worker_sshd, starts):
    worker = start(worker_sshd)
    client = connected(worker_sshd)
    assert client.ready(0).fault is None
    worker.terminate()
    until(lambda: _is_refused(worker_sshd), "the worker lets no more ranks start")
    assert worker.process.poll() is None
    if starts:
        with subprocess.Popen(["sleep", "300"], start_new_session=True) as wrapper:
            client.attach(Attached(0, wrapper.pid, wrapper.pid))
            assert wrapper.wait(60) == -signal.SIGTERM
        client.ended(failed=False, cut_off=False, torn=[])
    client.close()
    assert worker.ended() == 0
    assert ("rank 0 runs" in worker.output) == starts


def test_a_signal_ends_the_wait_for_something_to_do_whenever_it_comes():
    """See `EventQueue`."""
    worker = Worker(read_settings({"DTJ_ROLE": "worker", **pod_variable({"DTJ_ROLE": "worker"})}))
    given_up = threading.Event()

    def stop(*_: object) -> None:
        worker._stop()
        time.sleep(2 * POLL_SECONDS)

    def give_up() -> None:
        given_up.set()
        worker._actions.put(None)

    before = signal.signal(signal.SIGUSR1, stop)
    limit = threading.Timer(60, give_up)
    try:
        limit.start()
        threading.Timer(POLL_SECONDS / 2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        worker._follow(SimpleNamespace(superseded=None), None, None)
    finally:
        limit.cancel()
        signal.signal(signal.SIGUSR1, before)
    assert not given_up.is_set()


def connected(workspace: Workspace) -> ControlClient:
    client = connect(control_socket(workspace.root))
    assert client is not None
    return client


def _is_refused(workspace: Workspace) -> bool:
    with contextlib.closing(connected(workspace)) as client:
        return client.ready(0).fault is not None


def test_other_pods_upload_only_logs_and_say_so(worker_sshd, job_uri, job_store, monkeypatch):
    worker = start(worker_sshd, DTJ_ARTIFACTS_URI=job_uri, DTJ_INDEX="1")
    program = (
        "print('hello')\n(root / 'model' / 'm.pt').write_text('m')\n(root / 'metrics.jsonl').write_text('{}')"
    )
    assert rank(worker_sshd, 1, program, DTJ_INDEX="1").ended() == 0
    assert keys(job_store) == ["logs/attempt-1/rank-1.log"]
    worker.says("is not uploaded: only the pod of rank 0 or of the chief uploads artifacts")
    worker.terminate()
    assert worker.ended() == 0
    assert worker.output.count("is not uploaded") == 1


def test_other_pods_whose_program_removes_a_folder(worker_sshd, job_uri):
    worker = start(worker_sshd, DTJ_ARTIFACTS_URI=job_uri, DTJ_INDEX="1")
    wrapper = rank(worker_sshd, 1, "(root / 'model').rmdir()", DTJ_INDEX="1")
    assert wrapper.ended() == 0, wrapper.output
    worker.terminate()
    assert worker.ended() == 0


class _Broken:
    """A supervision whose final sync fails in a way that nobody thought of."""

    def ready(self, number: int) -> Answer:
        return Answer(None, {})

    def attached(self, rank: Attached) -> None: ...

    def died(self, at_ns: int) -> None: ...

    def ended(self, rank: Attached, *, failed: bool, cut_off: bool) -> None: ...

    def lost(self, rank: Attached) -> None: ...

    def finish(self, number: int) -> Answer:
        raise FileNotFoundError("gone")


def test_any_error_of_the_final_sync_is_told(tmp_path):
    ControlServer(tmp_path / "socket", _Broken()).start()
    client = connect(tmp_path / "socket")
    assert client is not None
    message = "the last upload of the pod's artifacts failed: FileNotFoundError('gone')"
    assert client.finish(0) == Answer(message, {})


def test_sync_that_fails_fails_the_rank(worker_sshd, object_store, job_uri):
    worker = start(worker_sshd, DTJ_ARTIFACTS_URI=job_uri, DTJ_SYNC_TIMEOUT_SECONDS="2")
    wrapper = rank(worker_sshd, 0, WAITS + "(root / 'model' / 'm.pt').write_text('m')")
    wrapper.says("waits")
    object_store.kill()
    (worker_sshd.root / "go").touch()
    assert wrapper.ended() == 69
    assert (
        '"class":"ArtifactsUnavailable","message":"not all artifacts could be uploaded within 2 s'
        in wrapper.output
    )
    worker.terminate()
    assert worker.ended() == 69
    assert worker_sshd.termination["class"] == "ArtifactsUnavailable"


def test_report_of_the_supervisor(worker_sshd):
    port = free_ports(1)[0]
    worker = start(worker_sshd, DTJ_PROGRESS_PORT=str(port))
    program = "from dtj_trainer import progress\nprogress.report(step=3, total_steps=4)\n" + WAITS
    wrapper = rank(worker_sshd, 0, program)
    wrapper.says("waits")
    report = until(
        lambda: (r := get_json(f"http://127.0.0.1:{port}/progress")).get("progress") and r,
        "progress is served",
    )
    assert (report["progress"]["step"], report["progress"]["percent"]) == (3, 75.0)
    assert set(report["phases"]) == {"started", "restored", "programStarted", "firstStep"}
    (worker_sshd.root / "go").touch()
    assert wrapper.ended() == 0
    worker.terminate()
    assert worker.ended() == 0


# --- memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "content", "own"),
    [
        ("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "4:memory:/\n"),
        ("memory/kubepods/x/memory.oom_control", "oom_kill 3\n", "4:memory:/kubepods/x\n"),
        ("memory.events", "low 0\noom 5\noom_kill 3\n", "0::/\n"),
        ("kubepods/x/memory.events", "oom 5\noom_kill 3\n", "0::/kubepods/x\n"),
    ],
)
def test_counter_of_either_cgroup_version(tmp_path, file, content, own):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(content)
    (tmp_path / "own").write_text(own)
    assert oom_kills(tmp_path, tmp_path / "own") == 3


def test_no_counter(tmp_path):
    assert oom_kills(tmp_path, tmp_path / "none") is None


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A memory cgroup (v1) with 96 MiB, where this machine lets us make one."""
    group = Path("/sys/fs/cgroup/memory") / f"dtj-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(96 * 1024 * 1024))
        (group / "memory.swappiness").write_text("0")
    except OSError:
        if group.exists():
            group.rmdir()
        pytest.skip("needs root and a memory cgroup (v1)")
    yield group
    until(lambda: not (group / "cgroup.procs").read_text(), "the cgroup is empty")
    group.rmdir()


def test_out_of_memory(workspace, small_cgroup):
    run = workspace.run(
        "/bin/sh",
        "-c",
        f'echo $$ > {small_cgroup}/cgroup.procs && exec "$@"',
        "sh",
        *(sys.executable, "-m", "dtj_trainer.launch.main", "replica", "--"),
        *(sys.executable, "-c", "x = b'x' * (400 * 1024 * 1024); print(len(x))"),
        DTJ_STRATEGY="ParameterServer",
        DTJ_ROLE="worker",
    )
    assert run.ended() == 128 + signal.SIGKILL
    assert workspace.termination["class"] == "OOMKilled"
    assert "memory limit" in workspace.termination["message"]

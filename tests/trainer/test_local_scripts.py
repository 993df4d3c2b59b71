"""`dtj run` with scripts that do not use dtj: where scripts save, and which checkpoints count after each kind of end.

* paths of a container
* checkpoints by how the program ends
* missing modules and full disks
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.trainer import local_runs
from tests.trainer.conftest import BUCKET, ObjectStore, until
from tests.trainer.local_runs import DtjRun, kept, write_job

from dtj_trainer.artifacts.snapshot import read_index
from dtj_trainer.artifacts.store import open_store

start = local_runs.start
KNOWS_NOTHING = """
import os, pathlib, sys
rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("HOROVOD_RANK") or os.environ["DTJ_ROLE"]
checkpoints, model = pathlib.Path("/dtj/checkpoints"), pathlib.Path(sys.argv[1].partition("=")[2])
print("rank", rank, "found", sorted(path.name for path in checkpoints.iterdir()))
(checkpoints / ".new").write_text(rank)
(checkpoints / ".new").rename(checkpoints / "epoch-1.pt")
(model / f"of-{rank}.pt").write_text(rank)
(pathlib.Path(os.environ["OUT"]) / "by-env.pt").write_text(rank)
"""


@pytest.mark.parametrize(("strategy", "first"), [("Horovod", "0"), ("ParameterServer", "chief")])
def test_a_script_with_paths_of_a_container_writes_into_its_own_workspace(
    start: Callable[..., DtjRun],
    tmp_path: Path,
    strategy: str,
    first: str,
) -> None:
    """The default of an argument, an argument and a variable; a second job sees nothing of the first."""
    script = tmp_path / "script.py"
    script.write_text(KNOWS_NOTHING)
    servers = {"ps": {"replicas": 1}} if strategy == "ParameterServer" else {}
    file = write_job(
        tmp_path,
        "own",
        ["bash", "-c", f"python {script} --model=/dtj/model"],
        strategy=strategy,
        env=[{"name": "OUT", "value": "/dtj/model"}],
        replicaSpecs={"worker": {"replicas": 2}, **servers},
    )
    machines = sorted(Path("/dtj").rglob("*")) if Path("/dtj").exists() else None
    for name in ("own", "other"):
        run = start(file, "--name", name)
        assert f"rank {first} found []" in run.ended()
        listed = kept(run, name)
        assert "checkpoints/1/epoch-1.pt" in listed
        assert f"model/of-{first}.pt" in listed
        assert "model/by-env.pt" in listed
    assert (sorted(Path("/dtj").rglob("*")) if Path("/dtj").exists() else None) == machines


def test_a_job_that_leaves_nothing_in_its_bucket_says_so(
    start: Callable[..., DtjRun], tmp_path: Path
) -> None:
    outside = tmp_path / "model.pt"
    file = write_job(tmp_path, "nothing", ["python", "-c", f"open({str(outside)!r}, 'w').write('x')"])
    output = start(file, "-n", "team").ended()
    assert outside.exists()
    assert "nothing: Succeeded" in output
    assert "/jobs/team/nothing-" in output
    assert (
        "JobSucceeded: nothing-launcher-0 ended with exit code 0; the program left neither a checkpoint"
        in output
    )


# Step 1 is renamed into place, step 2 closed in place, step 3 still open when the program ends.
SAVES = """
import os, signal, sys, time
os.chdir("/dtj/checkpoints")
def save(step):
    with open(f".{step}.tmp", "w") as new:
        new.write("whole")
    os.rename(f".{step}.tmp", f"ckpt-{step}.pt")
def stop(*_):
    save(4)
    print("saved at SIGTERM", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
if os.path.exists("ckpt-4.pt"):
    print("going on from 4")
    sys.exit()
save(1)
with open("ckpt-2.pt", "w") as new:
    new.write("whole")
time.sleep(float(os.environ["PAUSE"]))
kept = open("ckpt-3.pt", "w")
kept.write("half")
kept.flush()
print("all written", flush=True)
"""
MEMORY = 1 << 30
SETTLES = {"name": "DTJ_CHECKPOINT_SETTLE_SECONDS", "value": "2"}


@pytest.fixture
def memory_group() -> Iterator[str]:
    """A memory cgroup (v1) in which 1 GiB is all there is; the file by which a process enters it."""
    group = Path("/sys/fs/cgroup/memory") / f"dtj-run-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(MEMORY))
        (group / "memory.swappiness").write_text("0")
    except OSError:
        if group.exists():
            group.rmdir()
        pytest.skip("needs root and a memory cgroup (v1)")
    yield str(group / "cgroup.procs")
    until(lambda: not (group / "cgroup.procs").read_text(), "the cgroup is empty")
    group.rmdir()


ENDS = {
    "well": ("pass", 0, None, [1, 2, 3]),
    "failure": ("sys.exit(3)", 1, "ApplicationError", [1, 2, 3]),
    "SIGTERM": ("signal.pause()", 130, None, [1, 2, 3, 4]),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", 1, "Signal", [1, 2]),
    "out of memory": (f"bytearray({2 * MEMORY})", 1, "OOMKilled", [1, 2]),
}
"""What the program does last, the exit code of `dtj run`, the failure's class, and the checkpoints that count."""


@pytest.mark.parametrize(
    ("strategy", "end"),
    [
        *(("Horovod", end) for end in ENDS),
        *(("ParameterServer", end) for end in ("failure", "SIGTERM", "SIGKILL")),
    ],
)
def test_what_counts_of_checkpoints_by_how_the_program_ends(
    start: Callable[..., DtjRun],
    tmp_path: Path,
    object_store: ObjectStore,
    request: pytest.FixtureRequest,
    strategy: str,
    end: str,
) -> None:
    """Renamed: always. Closed: if it was closed before a kill. Open at the end: if the program itself has ended."""
    last_words, code, cause, steps = ENDS[end]
    under: tuple[str, ...] = ()
    if cause == "OOMKilled":
        enter = f"echo $$ > {request.getfixturevalue('memory_group')}"
        under = ("sh", "-c", f'{enter} && exec "$@"', "sh")
    servers = {"ps": {"replicas": 1}} if strategy == "ParameterServer" else {}
    # What the kernel closes at a kill is told from what dtj-launch saw closed a while before.
    pause = "4" if cause in ("Signal", "OOMKilled") else "0"
    program = SAVES if strategy == "Horovod" else OTHERS + SAVES
    file = write_job(
        tmp_path,
        "ends",
        [sys.executable, "-c", program + last_words],
        strategy=strategy,
        artifacts={"uri": f"s3://{BUCKET}/{tmp_path.name}", "endpoint": object_store.endpoint},
        env=[{"name": "DTJ_CHECKPOINTS_KEEP", "value": "9"}, {"name": "PAUSE", "value": pause}, SETTLES],
        replicaSpecs={"worker": {"replicas": 1}, **servers},
        runPolicy={"backoffLimit": 0},
    )
    run = start(file, "--s3=job", under=under)
    if code == 130:
        run.says("all written")
        run.process.send_signal(signal.SIGINT)
    output = run.ended(code)
    failure = run.status("ends").failure
    assert (failure.failure_class if failure else None) == cause, output
    assert numbers_kept(run, "ends") == steps
    if code == 130:
        assert "saved at SIGTERM" in output
        assert "going on from 4" in start(file, "--s3=job", "--resume").ended()


def numbers_kept(run: DtjRun, name: str) -> list[int]:
    """The numbers in the names of the files that the newest snapshot has."""
    artifacts = run.status(name).artifacts
    assert artifacts is not None
    (newest, *_) = read_index(open_store(f"{artifacts.uri}/checkpoints")).newest_first()
    return sorted(int(path[5:-3]) for path in newest.paths)


OTHERS = """
import json, os, signal, socket
config = json.loads(os.environ["TF_CONFIG"])
role, index = config["task"]["type"], config["task"]["index"]
if role != "chief":
    host, port = config["cluster"][role][index].split(":")
    listener = socket.create_server((host, int(port)))
    signal.pause()
"""


@pytest.mark.parametrize(
    ("in_place", "strategy", "attempt"),
    [(False, "InPlaceRestart", 1), (True, "InPlaceRestart", 1), (True, "Recreate", 2)],
)
def test_a_script_that_fails_a_second_after_each_save_goes_on_from_it(
    start: Callable[..., DtjRun],
    tmp_path: Path,
    object_store: ObjectStore,
    in_place: bool,
    strategy: str,
    attempt: int,
) -> None:
    script = f"""
import os, sys, time
os.chdir("/dtj/checkpoints")
done = max([int(name[5:-3]) for name in os.listdir() if name.startswith("ckpt-")], default=0)
print("going on from", done)
name = f"ckpt-{{done + 1}}.pt"
with open(name if {in_place} else ".new", "w") as new:
    new.write("whole")
if not {in_place}:
    os.rename(".new", name)
time.sleep(1)
sys.exit(3 if done == 0 else 0)
"""
    artifacts = {"uri": f"s3://{BUCKET}/{tmp_path.name}", "endpoint": object_store.endpoint}
    policy = {"restartStrategy": strategy}
    job = write_job(tmp_path, "fails", ["python", "-c", script], artifacts=artifacts, runPolicy=policy)
    run = start(job, "--s3=job")
    output = run.ended()
    assert re.findall(r"\] going on from (\d)", output) == ["0", "1"]
    status = run.status("fails")
    assert (status.attempt, status.restarts.application) == (attempt, 1)
    assert numbers_kept(run, "fails") == [1, 2]


def test_a_module_that_is_missing_is_no_reason_for_a_retry(
    start: Callable[..., DtjRun], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torhc\n")
    run = start(write_job(tmp_path, "typo", ["python", str(script)]))
    output = run.ended(1)
    status = run.status("typo")
    assert (status.attempt, status.restarts.application) == (1, 0), output
    assert status.failure is not None
    assert status.failure.failure_class == "ModuleNotFound"
    assert "No module named 'torhc'; a retry would fail too: add the module to the image" in output


FILLS_THE_DISK = """
with open("/dtj/checkpoints/state.bin", "wb") as state:
    while True:
        state.write(bytes(1 << 20))
"""


def test_a_run_that_fills_the_disk_of_its_store_ends_and_says_why(
    start: Callable[..., DtjRun], tmp_path: Path
) -> None:
    file = write_job(
        tmp_path,
        "fills",
        [sys.executable, "-c", FILLS_THE_DISK],
        strategy="TorchDistributed",
        runPolicy={"backoffLimit": 0},
    )
    mounts = ("unshare", "--map-root-user", "--mount", "sh", "-c")
    mounted = f'mount -t tmpfs -o size=300m none {tmp_path / "home"} && exec "$@"'
    (tmp_path / "home").mkdir()
    if subprocess.run([*mounts, mounted, "sh", "true"], check=False).returncode != 0:
        pytest.skip("needs the right to mount")
    run = start(file, under=(*mounts, mounted, "sh"))
    output = run.ended(1)
    folder = tmp_path / "home/runs/default/fills"
    assert re.search(rf"the disk of {folder} is full, \d+ bytes are free: the run ends unless", output)
    # The store, whose disk is full too, refuses the last files at once, or does not answer: then the run is given up.
    error = output.replace("\n", " ")
    assert re.search(r"DiskFull: .*a disk is full: OSError: \[Errno 28\] No space left on device", error), (
        output
    )
    assert "set DTJ_HOME to a folder on another disk" in error


@pytest.mark.torch
def test_a_full_disk_is_called_one_where_torch_only_counts_its_bytes(
    start: Callable[..., DtjRun], tmp_path: Path, object_store: ObjectStore
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f"import torch; torch.save(torch.ones(4_000_000), {str(disk / 'state.pt')!r})"
    artifacts = {"uri": f"s3://{BUCKET}/{tmp_path.name}", "endpoint": object_store.endpoint}
    mounted = f"mount -t tmpfs -o size=4m none {disk} && exec python -c {shlex.quote(script)}"
    file = write_job(
        tmp_path,
        "full",
        ["unshare", "-m", "sh", "-c", mounted],
        artifacts=artifacts,
        runPolicy={"backoffLimit": 0},
    )
    if subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0:
        pytest.skip("needs the right to mount")
    run = start(file, "--s3=job")
    output = run.ended(1)
    failure = run.status("full").failure
    assert failure is not None
    assert failure.failure_class == "DiskFull", output

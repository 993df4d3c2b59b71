"""Benchmark of large checkpoints: the cost of saves beside a training, memory, bytes sent again, a killed upload,
refused deletions, folders that change a little, and many small files.

Prints one line for each figure: its name, its ratio to the bound, the bound, and whether it is met.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from dtj_trainer import contract
from dtj_trainer.artifacts import checkpoints, s3
from dtj_trainer.artifacts.manifest import sha256_of
from dtj_trainer.artifacts.restore import RESUME_AUTO, restore
from dtj_trainer.artifacts.store import Store
from tests import fashion_mnist
from tests.bench import folder_checkpoints, save_stalls
from tests.bench.checkpoint_processes import BLOCK_BYTES, FILES
from tests.bench.checkpoint_transfer import BUCKET, Transfers, object_store
from tests.bench.checkpoint_uploader import checkpoint_uploader
from tests.bench.machine import machine
from tests.bench.targets import Target, verdicts
from tests.cluster.progress import ClusterError, note

MEMORY_BYTES = 512 * 2**20
"""What a process may need besides the state that it holds."""
MOST_SENT = 1.3
POLL_SECONDS = 0.01
END_SECONDS = 1800.0
PROCESSES = ("save", "upload-killed", "upload", "restore")
PARTS = ("saves", "faults", "folders")
REFUSALS = ("deletion-refused-and-uploaded", "all-damaged-and-refused", "same-bytes-restored")


def targets(size: int) -> list[Target]:
    """For a state of so many bytes: only the process that saves has to hold the state."""
    memory = [
        Target(f"{name}-memory/bound", f"{name} memory", size * (name == "save") + MEMORY_BYTES)
        for name in PROCESSES
    ]
    sent = [Target("upload-sent/size", "sent", MOST_SENT, of_a_ratio=True)]
    return [*memory, *sent, *(Target(name, name, 1, at_least=True, of_a_ratio=True) for name in REFUSALS)]


class Job:
    """A job's prefix in the bucket and its folder, worked on by processes of their own."""

    def __init__(self, folder: Path, size: int) -> None:
        self._root = folder / "root"
        self.checkpoints = self._root / contract.CHECKPOINTS
        self.checkpoints.mkdir(parents=True)
        self._told = folder / "told.json"
        self._size = size
        self.uri = f"s3://{BUCKET}/large"

    def figures(self, what: str, *, attempt: int = 1, to: Path | None = None) -> dict[str, int]:
        """Run a process to its end; what it needed. Raises ClusterError when it fails."""
        process = self._start(what, attempt, to or self.checkpoints)
        if code := process.wait(END_SECONDS):
            raise ClusterError(f"the process for {what} ended with {code}")
        return self._read()

    def killed_upload(self) -> dict[str, int]:
        """Kill an upload when half of the bytes are sent; what it needed until then."""
        process = self._start("upload", 1, self.checkpoints)
        deadline = time.monotonic() + END_SECONDS
        while self._read().get("sent", 0) < self._size / 2:
            if process.poll() is not None or time.monotonic() > deadline:
                raise ClusterError("the upload ended before it was killed")
            time.sleep(POLL_SECONDS)
        process.kill()
        process.wait()
        return self._read()

    def _start(self, what: str, attempt: int, folder: Path) -> subprocess.Popen[bytes]:
        self._told.unlink(missing_ok=True)
        options = {"told": self._told, "uri": self.uri, "folder": folder, "bytes": self._size}
        command = [f"--{name}={value}" for name, value in (options | {"attempt": attempt}).items()]
        environment = os.environ | {contract.ENV_ROOT: str(self._root), contract.ENV_ARTIFACTS_URI: self.uri}
        return subprocess.Popen(
            [sys.executable, "-m", "tests.bench.checkpoint_processes", what, *command], env=environment
        )

    def _read(self) -> dict[str, int]:
        try:
            return dict(json.loads(self._told.read_text()))
        except FileNotFoundError:
            return {}


def large(folder: Path, size: int) -> dict[str, float]:
    """The figures of a state of so many bytes: saved, uploaded, killed meanwhile, uploaded again, restored."""
    job = Job(folder, size)
    back = folder / "back"
    back.mkdir()
    found: dict[str, float] = {"save memory": job.figures("save")["peak"]}
    note("saved")
    killed = job.killed_upload()
    found["upload-killed memory"] = killed["peak"]
    note(f"killed after {killed['sent']} bytes")
    again = job.figures("upload", attempt=2)
    found |= {"upload memory": again["peak"], "sent": again["sent"] / size}
    note("uploaded")
    found["restore memory"] = job.figures("restore", to=back)["peak"]
    found["same-bytes-restored"] = digests(job.checkpoints) == digests(back)
    return found


def digests(folder: Path) -> Mapping[str, str]:
    """The SHA-256 of each file that belongs to the state."""
    return {file.name: sha256_of(file) for file in folder.rglob("part-*")}


class Warnings(logging.Handler):
    """Keeps what was logged as a warning."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.messages.append(record.getMessage())


def refusals(folder: Path) -> dict[str, float]:
    """Whether what must be refused is refused, and what must go on goes on; 1 and 0."""
    os.environ[contract.ENV_ROOT] = str(folder)
    (folder / contract.CHECKPOINTS).mkdir(parents=True)
    client: Any = s3.make_client()
    denied = {"Code": "AccessDenied", "Message": "not here"}
    client.meta.events.register(
        "before-call.s3.DeleteObjects", lambda **_: (SimpleNamespace(status_code=403), {"Error": denied})
    )
    store = Store(s3.S3Location(BUCKET, "small"), client)
    below = store.below(contract.CHECKPOINTS)
    uploader = checkpoint_uploader(folder / contract.CHECKPOINTS, store, keep=1)
    warnings = Warnings()
    logging.getLogger("dtj_trainer").addHandler(warnings)
    passes = []
    for step in (1, 2):
        checkpoints.save(step, _write_small)
        passes.append(uploader.upload_pass(ended=True, died_ns=None))
    warned = [message for message in warnings.messages if "old checkpoints stay" in message]
    return {
        "deletion-refused-and-uploaded": all(passes) and len(warned) == 1,
        "all-damaged-and-refused": _refused(below, folder / "back"),
    }


def _write_small(directory: Path) -> None:
    (directory / "part-0").write_bytes(os.urandom(1024))


def _refused(store: Store, folder: Path) -> bool:
    """Whether a restore of damaged checkpoints is refused for good, with all objects left where they are."""
    folder.mkdir()
    for item in list(store.objects()):
        if not item.key.endswith(contract.MANIFEST_FILE):
            store.put_bytes(item.key, b"damaged")
    before = list(store.objects())
    try:
        restore(store, folder, RESUME_AUTO)
    except s3.S3Error as error:
        return not error.transient and before == list(store.objects()) and not list(folder.iterdir())
    return False


def main() -> int:
    """Measure and print; 1 where a bound is missed or nothing can be measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=3.0, help="of the state (default: %(default)s)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="which figures")
    parser.add_argument(
        "--saves-megabytes", type=int, default=500, help="of the state that is saved beside a training"
    )
    parser.add_argument(
        "--saves-minutes", type=float, default=5.0, help="of each training (default: %(default)s)"
    )
    parser.add_argument(
        "--saves-framework", choices=("torch", "tensorflow"), default="torch", help="of these trainings"
    )
    parser.add_argument("--saves-every", type=float, default=30.0, help="seconds (default: %(default)s)")
    given = parser.parse_args()
    unit = BLOCK_BYTES * FILES
    size = max(int(given.gigabytes * 1e9) // unit, 1) * unit
    found: dict[str, float] = {}
    try:
        with TemporaryDirectory(prefix="dtj-bench-") as name, object_store(Path(name)) as store:
            os.environ.update(store.environment)
            if "saves" in given.parts:
                transfers = Transfers(store, Path(name), given.saves_megabytes * 10**6)
                length, data = given.saves_minutes * 60, fashion_mnist.folder()
                found |= save_stalls.figures(
                    *(Path(name), data, transfers, given.saves_framework),
                    **{"seconds": length, "every": given.saves_every},
                )
            if "faults" in given.parts:
                found |= large(Path(name, "large"), size) | refusals(Path(name, "small"))
            if "folders" in given.parts:
                found |= folder_checkpoints.figures(Path(name, "folders"))
    except ClusterError as error:
        note(f"error: {error}")
        return 1
    lines = verdicts([*save_stalls.TARGETS, *targets(size), *folder_checkpoints.TARGETS], found)
    print(f"{machine()}\n\nSaves of {given.saves_megabytes} MB, faults with {size / 1e9:.2f} GB:\n")
    print("\n".join(lines))
    return int(any(line.endswith("missed") for line in lines))


if __name__ == "__main__":
    sys.exit(main())

"""The runs of this machine, stored below the home of dtj in `runs/<namespace>/<job>/`."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dtj.api.errors import NotFound, Unusable
from dtj.api.job import Job, Manifest, read_job
from dtj.api.names import is_dns_label, is_namespace
from dtj.local.processes import is_alive

JOB_FILE, EVENTS_FILE, OUTPUT_FILE = "job.json", "events.jsonl", "output.log"
OUTPUT_BEGIN_FILE = "output.begin"
"""Beside the output: the newest attempt of the replica, and where its output begins in bytes."""
ANNOTATION_S3 = "dtj.dev/local-s3"
"""Annotation with the object store of a run, a value of S3Store."""
# Seconds that the guard may need to end all processes of a run after dtj was killed.
_GUARD_SECONDS = 15.0


def home() -> Path:
    """Return the folder of runs and of the embedded store: $DTJ_HOME, or dtj in $XDG_DATA_HOME or ~/.local/share."""
    if folder := os.environ.get("DTJ_HOME"):
        return Path(folder).expanduser().absolute()
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser().absolute() / "dtj"


@dataclass(frozen=True)
class Run:
    """One run on the disk."""

    folder: Path

    @property
    def name(self) -> str:
        """Return the name of the job."""
        return self.folder.name

    @property
    def namespace(self) -> str:
        """Return the namespace of the job."""
        return self.folder.parent.name

    @property
    def manifest(self) -> Manifest:
        """Return the stored job with metadata, spec and status.

        Raises NotFound when no job is stored, and Unusable when the file is damaged.
        """
        try:
            manifest: Manifest = json.loads((self.folder / JOB_FILE).read_bytes())
        except FileNotFoundError:
            raise NotFound(
                f"{self.namespace}/{self.name} was not run on this machine", "dtj run FILE"
            ) from None
        except ValueError as error:
            raise Unusable(
                f"{self.folder / JOB_FILE} is damaged: {error}", "remove its folder; the artifacts stay"
            ) from None
        return manifest

    @property
    def job(self) -> Job:
        """Return the stored job as a model."""
        return read_job(self.manifest)

    @property
    def pid(self) -> int | None:
        """Return the pid of the dtj process of the run. None if no process runs, whatever phase is stored."""
        return _holder(self.lock_file)

    @property
    def lock_file(self) -> Path:
        """Return the lock file, which is locked during the run and contains the pid of the dtj process."""
        return self.folder.with_name(f".{self.name}.lock")

    @property
    def embedded_store(self) -> bool:
        """Return whether the artifacts are in the embedded store (`dtj.local.object_store`)."""
        annotations = self.manifest["metadata"].get("annotations") or {}
        return bool(annotations.get(ANNOTATION_S3) == "embedded")

    @property
    def events(self) -> list[Manifest]:
        """Return the Event objects of the run, the oldest first."""
        try:
            lines = (self.folder / EVENTS_FILE).read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    @property
    def outputs(self) -> dict[str, Path]:
        """Return the output files by replica, `<role>-<index>`. A file has the output of all attempts."""
        return {file.parent.name: file for file in sorted(self.folder.glob(f"*/{OUTPUT_FILE}"))}

    def output_begin(self, replica: str) -> tuple[int, int]:
        """Return the newest attempt of a replica, and where its output begins in bytes; zeros without a record."""
        with suppress(FileNotFoundError, ValueError):
            attempt, begin = (self.folder / replica / OUTPUT_BEGIN_FILE).read_text().split()
            return int(attempt), int(begin)
        return 0, 0

    def write(self, manifest: Manifest) -> None:
        """Store the job atomically: a reader sees the old version or the new version."""
        fresh = self.folder / f".{JOB_FILE}"
        fresh.write_text(json.dumps(manifest, indent=1, allow_nan=False))
        fresh.replace(self.folder / JOB_FILE)

    def add_event(self, event: Manifest) -> None:
        """Store an event."""
        with (self.folder / EVENTS_FILE).open("a") as file:
            file.write(json.dumps(event) + "\n")

    def remove(self) -> None:
        """Remove the files of the run. The artifacts stay in the bucket."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Lock the run and yield the descriptor of the lock. Raises Unusable while another process has the lock."""
        try:
            self.lock_file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise Unusable(
                f"dtj can't write to {self.lock_file.parent}: {error.strerror}",
                "set DTJ_HOME to a folder for the runs",
            ) from error
        try:
            self._take(descriptor)
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield descriptor
        finally:
            os.close(descriptor)

    def _take(self, descriptor: int) -> None:
        deadline = time.monotonic() + _GUARD_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                pid = _holder(self.lock_file)
                if pid is not None or time.monotonic() > deadline:
                    where = f" in process {pid}" if pid else ""
                    raise Unusable(
                        f"{self.namespace}/{self.name} is already running{where}",
                        "end that run first, or give this run another name with --name",
                    ) from None
            time.sleep(0.1)  # dtj was killed, and its guard holds the lock until it has ended all processes.


class Runs:
    """All runs of this machine."""

    def __init__(self, folder: Path) -> None:
        """folder: the home of dtj on this machine."""
        self._folder = folder / "runs"

    def run(self, name: str, namespace: str) -> Run:
        """Return the run of that name, which may not exist. Raises Unusable for an invalid name or namespace."""
        if not (is_namespace(namespace) and is_dns_label(name)):
            raise Unusable(
                f"{name!r} is not a valid name of a job"
                if is_namespace(namespace)
                else f"{namespace!r} is not a valid namespace"
            )
        return Run(self._folder / namespace / name)

    def find(self, name: str, namespace: str | None = None) -> Run:
        """Return the run of a job.

        Raises NotFound if no job of this name was run, and Unusable if several namespaces have a job of this name and
        `namespace` is None.
        """
        matches = [r for r in self.list() if r.name == name and namespace in (None, r.namespace)]
        if not matches:
            raise NotFound(
                f"no job {name} was run on this machine", "`dtj list --local` lists the runs of this machine"
            )
        if len(matches) > 1:
            namespaces = ", ".join(run.namespace for run in matches)
            raise Unusable(
                f"{name} was run in several namespaces: {namespaces}", "choose one with --namespace"
            )
        return matches[0]

    def at(self, uri: str) -> Run | None:
        """Return the run whose prefix in the embedded store is an `s3://` address, or contains the address."""
        for run in self.list():
            prefix = run.job.artifacts_uri
            if prefix and run.embedded_store and f"{uri.rstrip('/')}/".startswith(f"{prefix}/"):
                return run
        return None

    def list(self) -> list[Run]:
        """Return every run, sorted by namespace and name."""
        return [Run(file.parent) for file in sorted(self._folder.glob(f"*/*/{JOB_FILE}"))]


def _holder(lock_file: Path) -> int | None:
    """Return the dtj process that holds the lock; None if no process or only the guard of a killed dtj holds it."""
    try:
        descriptor = os.open(lock_file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        text = os.pread(descriptor, 32, 0).decode().strip()
        return int(text) if text.isdecimal() and is_alive(int(text)) else None
    finally:
        os.close(descriptor)

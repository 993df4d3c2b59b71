"""`dtj run` as a process, for tests of whole runs on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests import warm
from tests.trainer.conftest import REPOSITORY, until
from tests.unit.support.jobs import manifest

from dtj.api.status import JobStatus
from dtj.local.object_store import open_store
from dtj.local.runs import ANNOTATION_S3, Runs
from dtj_trainer.artifacts.store import open_store as open_prefix


class DtjRun:
    """One `dtj run` of an example, or of a job file given by its whole path."""

    def __init__(self, home: Path, example: str | Path, *options: str, under: Sequence[str] = ()) -> None:
        """under: words that stand before the command."""
        self.home = home
        self.log = home / f"{time.monotonic_ns()}.out"
        home.mkdir(exist_ok=True)
        file = REPOSITORY / "manifests/examples" / example
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [*under, Path(sys.executable).with_name("dtj"), "run", file, *options],
                env={**os.environ, "DTJ_HOME": str(home)},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def ended(self, code: int = 0) -> str:
        until(lambda: self.process.poll() is not None, "the run has ended", 90, lambda: self.output)
        assert self.process.returncode == code, self.output
        return self.output

    def status(self, name: str) -> JobStatus:
        return Runs(self.home).find(name).job.status

    def says(self, pattern: str) -> re.Match[str]:
        def found() -> re.Match[str] | None:
            assert self.process.poll() is None, self.output
            return re.search(pattern, self.output)

        match: re.Match[str] = until(found, f"{pattern!r} in the output", 120)
        return match


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., DtjRun]]:
    """What starts a run: assign the fixture in the module of the tests."""
    started: list[DtjRun] = []

    def make(example: str | Path, *options: str, under: Sequence[str] = ()) -> DtjRun:
        started.append(DtjRun(tmp_path / "home", example, *options, under=under))
        return started[-1]

    yield make
    for run in started:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()
    until(lambda: not processes_of(tmp_path), "nothing is left", 15)


@pytest.fixture
def warm_torch(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `python`, `torchrun` and `accelerate` whose processes have imported PyTorch; see `tests.warm`."""
    python = Path(warm.python("torch"))
    monkeypatch.setenv("PYTHON_EXEC", str(python))  # torchrun starts its workers by this one.
    for name in ("torchrun", "accelerate"):
        command = python.with_name(name)
        new = command.with_suffix(f".{os.getpid()}")
        new.write_text(f'#!/bin/sh\nexec {python} {Path(sys.executable).with_name(name)} "$@"\n')
        new.chmod(0o755)
        new.rename(command)
    return python.parent


def processes_of(folder: Path) -> list[str]:
    """Commands of processes that name a folder in their words or their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes()
                if str(folder).encode() in words + (entry / "environ").read_bytes():
                    found.append(words.replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
    return found


def write_job(folder: Path, name: str, command: Sequence[str], **spec: Any) -> Path:
    """The file of a Horovod job with one worker and artifacts, unless `spec` says otherwise."""
    job = {
        "apiVersion": "dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name},
        "spec": {
            "strategy": "Horovod",
            "image": "any",
            "command": [*command],
            "replicaSpecs": {"worker": {"replicas": 1}},
            "artifacts": {"uri": "s3://training/jobs"},
            **spec,
        },
    }
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(job))
    return file


def write_run(home: Path, name: str, model: Path) -> str:
    """A run of the past whose model is in the embedded store. The address that `dtj run` printed."""
    run = Runs(home).run(name, "default")
    run.folder.mkdir(parents=True)
    job = manifest(name, artifacts={"uri": "s3://training/jobs"})
    job["metadata"] |= {"namespace": "default", "annotations": {ANNOTATION_S3: "embedded"}}
    run.write(job)
    uri = run.job.artifacts_uri
    assert uri
    with open_store(home, ["training"]) as store:
        prefix = open_prefix(uri, store.environment)
        prefix.put_bytes("job.yaml", yaml.safe_dump(job).encode())
        for file in model.iterdir():
            prefix.put_file(f"model/{file.name}", file)
    return uri


def kept(run: DtjRun, name: str) -> str:
    """What `dtj artifacts ls` shows of a job."""
    return subprocess.run(
        [Path(sys.executable).with_name("dtj"), "artifacts", "ls", name, "--local"],
        env={**os.environ, "DTJ_HOME": str(run.home)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout

"""Runs chains of attempts of a real `dtj-launch replica`, kills all but the last, and says what is wrong then."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.trainer import saving_program
from tests.trainer.conftest import Launched, Workspace, until
from tests.trainer.kill_plans import (
    SETTLE,
    SHOWN_WHOLE,
    AtRequest,
    AtSave,
    Attempt,
    Kill,
    Plan,
    with_something_to_restore,
)
from tests.trainer.killing_proxy import proxied
from tests.trainer.saving_program import State, state_of

from dtj_trainer.artifacts.store import Store, open_store

ENV_CHAIN = "KILL_TEST_CHAIN"
"""In the environment of all processes of a chain, and of no others."""
STEPS_OF_THE_LAST = 3
LIMIT_SECONDS = 150.0
"""For an attempt on an idle machine; see tests.patience."""
BEFORE_ITS_PROGRAM = "the pod was told to stop (SIGTERM) before its program ran"


def processes_of(chain: str) -> list[int]:
    """The processes that have the chain's variable. A process that has ended and is not waited for has none."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{ENV_CHAIN}={chain}\0".encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
    return found


@dataclass
class Snapshot:
    """A snapshot of which the bucket has the manifest. lies: what the manifest names and the bucket does not have."""

    folder: str
    state: State
    lies: list[str]


def snapshots_in(job: Store, scratch: Path) -> Iterator[Snapshot]:
    """Read all snapshots as docs/contract.md describes them. scratch: a folder to use."""
    for item in list(job.objects("checkpoints")):
        folder, _, name = item.key.removeprefix("checkpoints/").rpartition("/")
        if name != "manifest.json" or "/" in folder:
            continue
        shutil.rmtree(scratch, ignore_errors=True)
        lies = []
        for path, kind, size, _, *rest in json.loads(job.get_bytes(item.key))["entries"]:
            place = scratch / path
            place.parent.mkdir(parents=True, exist_ok=True)
            if kind == "directory":
                place.mkdir(exist_ok=True)
            elif kind == "link":
                place.symlink_to(rest[0])
            elif fault := _bring(job, f"checkpoints/{rest[1]}", place, size, rest[0]):
                lies.append(fault)
        yield Snapshot(folder, state_of(scratch), lies)
    shutil.rmtree(scratch, ignore_errors=True)


def _bring(job: Store, key: str, place: Path, size: int, sha256: str) -> str | None:
    try:
        content = job.get_bytes(key)
    except Exception as error:  # noqa: BLE001 - whatever it is, the manifest names it
        return f"{key}: {error!r}"
    place.write_bytes(content)
    if (len(content), hashlib.sha256(content).hexdigest()) != (size, sha256):
        return f"{key} has {len(content)} bytes, and the manifest says {size}, or its sha256 differs"
    return None


@dataclass
class Diary:
    """What the program of an attempt noted."""

    started: Mapping[str, Any] | None = None
    lines: list[str] = field(default_factory=list)
    moment: str = ""

    @staticmethod
    def read(path: Path) -> Diary:
        diary = Diary()
        for line in path.read_text().splitlines() if path.exists() else ():
            what, content = json.loads(line)
            if what == "started":
                diary.started = content
            elif what == "line":
                diary.lines.append(content)
            else:
                diary.moment = content
        return diary


class Chain:
    """A chain that runs. `faults`: what is wrong, one sentence each. `told`: one line for each attempt."""

    def __init__(self, plan: Plan, uri: str, environment: Mapping[str, str], folder: Path) -> None:
        self.plan = plan
        self.faults: list[str] = []
        self.told: list[str] = []
        self.lost_saves = Counter[str]()
        """Saves that no snapshot has, by what was killed."""
        self._uri = uri
        self._name = uri.rpartition("/")[2]
        self._environment = environment
        self._folder = folder
        self._job = open_store(uri)
        self._newest = 0
        """The newest step of which a snapshot was in the bucket."""
        self._exists = False
        """Whether there is a snapshot."""
        self._first_torn = set[str]()
        """The snapshots of a program's first folder that may be torn."""
        self._agent: Launched | None = None
        self._launched = threading.Event()
        self._diary = Path()

    def run(self) -> None:
        """Run all attempts."""
        for number, attempt in enumerate(self.plan.attempts, 1):
            attempt = with_something_to_restore(attempt, exists=self._exists)
            self._launched.clear()
            self._diary = self._folder / f"diary-{number}"
            try:
                self._attempt(number, attempt)
            except pytest.fail.Exception as error:
                self.faults.append(f"{self._place(number, attempt)}: {error}")
                return
            finally:
                shutil.rmtree(self._folder / f"attempt-{number}", ignore_errors=True)

    def _place(self, number: int, attempt: Attempt) -> str:
        kill = attempt.kill
        what = f"{kill.killed} killed at {kill.at}" if kill else "to its end"
        return f"chain {self.plan.number}, {self.plan.way} form {self.plan.form}, attempt {number}, {what}"

    def _attempt(self, number: int, attempt: Attempt) -> None:
        workspace = Workspace(
            self._folder / f"attempt-{number}",
            {
                ENV_CHAIN: self._name,
                "DTJ_STRATEGY": "ParameterServer",
                "DTJ_ROLE": "chief",
                "DTJ_ATTEMPT": str(number),
                "DTJ_ARTIFACTS_URI": self._uri,
                "DTJ_CHECKPOINT_SETTLE_SECONDS": str(SETTLE),
                "DTJ_SYNC_TIMEOUT_SECONDS": "120",
                "DTJ_UPLOAD_MB_PER_SECOND": str(attempt.megabytes_per_second),
            },
        )
        kill = attempt.kill
        at_request = kill.at if kill and isinstance(kill.at, AtRequest) else None
        upstream = self._environment["AWS_ENDPOINT_URL_S3"]
        with proxied(upstream, at_request, lambda: self._strike(kill)) as endpoint:
            command = [sys.executable, "-S", saving_program.__file__, *self._options(attempt)]
            given = {**self._environment, "AWS_ENDPOINT_URL_S3": endpoint}
            self._agent = workspace.launch("replica", *command, **given)
            self._launched.set()
            try:
                code = self._agent.ended(LIMIT_SECONDS)
                until(lambda: not processes_of(self._name), "no process is left")
            finally:
                for left in processes_of(self._name):
                    with suppress(ProcessLookupError):
                        os.kill(left, signal.SIGKILL)
                workspace.end_all()
        diary = Diary.read(self._diary)
        found = [
            *self._faults_of_restore(diary),
            *self._faults_of_bucket(workspace, attempt, diary),
            *_faults_of_termination(workspace, attempt, code, diary),
        ]
        if diary.started and (kill is None or kill.killed in ("program", "term")):
            found += self._faults_of_log(number, diary)
        where = self._place(number, attempt)
        self.faults += [f"{where}: {fault}" for fault in found]
        if found:
            self.faults.append(self._agent.output[-3000:])
        self.told.append(
            f"{where}: exit {code}, restored {(diary.started or {}).get('step')}, {diary.moment}"
        )

    def _options(self, attempt: Attempt) -> list[str]:
        options = [
            *("--checkpoints", "/dtj/checkpoints", "--diary", str(self._diary)),
            *("--way", self.plan.way, "--form", str(self.plan.form)),
            *("--seed", str(attempt.seed), "--size", str(attempt.size), "--pause", str(attempt.pause)),
        ]
        kill = attempt.kill
        if kill is None:
            return [*options, "--steps", str(STEPS_OF_THE_LAST)]
        options += ["--on-term", attempt.on_term if kill.killed == "term" else "dies"]
        if isinstance(kill.at, AtSave):
            options += [
                "--kill",
                kill.killed,
                "--kill-at-save",
                str(kill.at.save),
                "--kill-at",
                kill.at.moment,
            ]
            options += ["--kill-after", str(kill.at.after)]
        return options

    def _strike(self, kill: Kill | None) -> bool:
        """Kill at a request; whether the agent is dead."""
        assert kill
        self._launched.wait()
        assert self._agent
        agent = self._agent.process
        if kill.killed in ("agent", "both"):
            agent.kill()
            agent.wait()
        started = Diary.read(self._diary).started
        if kill.killed in ("program", "both") and started:
            with suppress(ProcessLookupError):  # It dies with its agent.
                os.kill(started["pid"], signal.SIGKILL)
        if kill.killed == "term":
            agent.terminate()
        return kill.killed in ("agent", "both")

    def _faults_of_restore(self, diary: Diary) -> Iterator[str]:
        if diary.started is None:
            return
        step, torn = diary.started["step"], diary.started["torn"]
        if torn and not self._may_be_torn(torn):
            yield f"the restored folder is torn: {torn}"
        if step < self._newest:
            yield f"step {step} is restored, and a snapshot had step {self._newest}"

    def _may_be_torn(self, torn: list[str]) -> bool:
        """docs/checkpoints.md: a program's first folder has none before it, and may be incomplete."""
        return self.plan.way == "folder" and not self._newest and len(torn) == 1

    def _faults_of_bucket(self, workspace: Workspace, attempt: Attempt, diary: Diary) -> Iterator[str]:
        before = self._newest
        for snapshot in snapshots_in(self._job, self._folder / "scratch"):
            self._exists = True
            yield from (f"the manifest of {snapshot.folder} lies: {lie}" for lie in snapshot.lies)
            torn = snapshot.state.torn
            if torn and self._may_be_torn(torn):
                self._first_torn.add(snapshot.folder)
            elif torn and snapshot.folder not in self._first_torn:
                yield f"snapshot {snapshot.folder} is torn: {torn}"
            self._newest = max(self._newest, snapshot.state.step)
        if diary.started is None:
            return
        local = state_of(workspace.root / "checkpoints").step
        kill = attempt.kill
        by_itself = kill is None or (kill.killed == "term" and attempt.on_term != "dies")
        agent_lives = kill is not None and kill.killed in ("program", "term")
        if (by_itself or (agent_lives and self.plan.way in SHOWN_WHOLE)) and self._newest < local:
            yield f"step {local} was whole at the end, and the bucket has {self._newest} (before: {before})"
        if kill:
            self.lost_saves[kill.killed] += max(local - self._newest, 0)

    def _faults_of_log(self, number: int, diary: Diary) -> Iterator[str]:
        start = f"logs/attempt-{number}/chief-0.log"
        segments = sorted(item.key for item in self._job.named(start))
        lines = b"".join(map(self._job.get_bytes, segments)).decode().splitlines()
        # A kill may come between a line and its note.
        if lines[: len(diary.lines)] != diary.lines or len(lines) > len(diary.lines) + 1:
            yield f"the log has {len(lines)} lines {lines[-2:]}, and the program wrote {diary.lines[-2:]}"


def _faults_of_termination(workspace: Workspace, attempt: Attempt, code: int, diary: Diary) -> Iterator[str]:
    """Compare the exit code and the termination message with what was killed."""
    kill = attempt.kill
    if kill and kill.killed in ("agent", "both"):
        if code != -signal.SIGKILL or workspace.termination_log.exists():
            yield f"exit code {code} and a termination message of an agent that was killed"
        return
    message = workspace.termination if workspace.termination_log.exists() else {}
    said = (
        code,
        message.get("exitCode"),
        message.get("class"),
        message.get("signal"),
        message.get("message"),
    )
    name = ""
    if kill is None:
        expected: tuple[Any, ...] = (0, 0, None, None, None)
    elif kill.killed == "program":
        expected = (137, 137, "Signal", 9, "the program was killed by SIGKILL")
    else:
        name = BEFORE_ITS_PROGRAM
        if diary.started:
            name = {
                "dies": "the program was killed by SIGTERM",
                "ends with 0": "the program ended when it was told to stop (SIGTERM)",
                "ends with 143": "the program ended when it was told to stop (SIGTERM)",
            }[attempt.on_term]
        expected = (143, 143, "Signal", 15, name)
    if said != expected:
        yield f"the termination message says {said}, not {expected}"

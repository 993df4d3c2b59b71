"""Run a replica as a process of this machine, as a kubelet runs a pod."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from dtj.api.identity import LABEL_ATTEMPT, LABEL_INDEX, LABEL_ROLE
from dtj.api.job import Manifest
from dtj.local.output import limit_space
from dtj.local.plan import LOOPBACK
from dtj.local.processes import in_sessions, kill_session, send
from dtj.local.runs import OUTPUT_BEGIN_FILE, OUTPUT_FILE
from dtj.plan.pods import trainer_container
from dtj.reconcile.view import OwnedPod, controller_uid
from dtj.status.failure import read_termination
from dtj.status.pods import Exit, PodView, read_rounds
from dtj.status.times import written_time
from dtj_trainer import contract

# Maximum length of the end of the log that the kubelet uses as the termination message.
_FALLBACK_BYTES, _FALLBACK_LINES = 2048, 80
_CANNOT_START = 128
_PROBE_SECONDS = 0.2


class LocalPod:
    """One pod of the local plan. The constructor starts the process."""

    def __init__(
        self, manifest: Manifest, folder: Path, environment: Mapping[str, str], clock: Callable[[], datetime]
    ) -> None:
        """Empty the workspace and start the process.

        folder: the workspace. The output of earlier attempts stays in it. environment: variables of this machine. The
        variables of the manifest override them.
        """
        self.manifest = manifest
        self.name: str = manifest["metadata"]["name"]
        self.uid = str(uuid.uuid4())
        self._folder = folder
        self._clock = clock
        self._container = trainer_container(manifest)
        self._env = {variable["name"]: variable["value"] for variable in self._container["env"]}
        self._ready = False
        self._exit: Exit | None = None
        self._kill_at: float | None = None
        self._created = written_time(clock())
        _empty(folder)
        output = folder / OUTPUT_FILE
        self._output_begin = output.stat().st_size if output.exists() else 0
        attempt = manifest["metadata"]["labels"][LABEL_ATTEMPT]
        (folder / OUTPUT_BEGIN_FILE).write_text(f"{attempt} {self._output_begin}")
        # Reserve space for the termination message, so that dtj-launch can write it even if the disk is full.
        self._termination_log.write_bytes(b" " * contract.TERMINATION_MESSAGE_BYTES)
        self._process = self._start({**environment, **self._env})

    @property
    def ended(self) -> bool:
        """Return whether the process and all its child processes have ended."""
        return self._exit is not None

    @property
    def failure(self) -> str | None:
        """Return the failure that dtj-launch has reported, perhaps before the end of the process."""
        report = read_termination(Exit(0, None, "", self._termination_message(0), None))
        if report is None or "class" not in report:
            return None
        return f"{self.name}: {report['class']}: {report.get('message', '')}"

    @property
    def owned(self) -> OwnedPod:
        """Return the pod as the watch cache of the operator holds it."""
        return OwnedPod(controller_uid(self.manifest), self._view())

    def stop(self) -> None:
        """Send SIGTERM. `check` sends SIGKILL at the end of the grace period."""
        if self._exit is None and self._kill_at is None and self._process is not None:
            self._kill_at = time.monotonic() + contract.TERMINATION_GRACE_SECONDS
            send([self._process.pid], signal.SIGTERM)

    def check(self) -> bool:
        """Update the state. Return whether the state changed."""
        if self._exit is not None or self._process is None:
            return False
        limit_space(self._folder / OUTPUT_FILE)
        code = self._process.poll()
        if code is not None:
            # Kill the remaining processes, as a container does when its first process ends.
            kill_session(self._process.pid)
            # Remove this folder, which contains credentials. In a container the folder is in memory.
            shutil.rmtree(self._folder / contract.RUN, ignore_errors=True)
            self._exit = self._ended(code if code >= 0 else 128 - code)
            return True
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            send(in_sessions([self._process.pid]), signal.SIGKILL)
        if not self._ready and self._is_ready():
            self._ready = True
            return True
        return False

    def _start(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
        # `python` and `dtj-launch` must come from the environment of this process.
        path = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
        with (self._folder / OUTPUT_FILE).open("ab") as output:
            try:
                return subprocess.Popen(  # noqa: S603 - running the user's command is the purpose
                    self._container["command"],
                    env={**environment, "PATH": path},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                now = written_time(self._clock())
                self._exit = Exit(_CANNOT_START, None, "StartError", f"{error}", now)
                return None

    def _is_ready(self) -> bool:
        probe: Manifest | None = self._container.get("readinessProbe")
        if probe is None:
            return True
        if "exec" in probe:
            return Path(self._folder, probe["exec"]["command"][-1]).is_socket()
        try:
            socket.create_connection((LOOPBACK, probe["tcpSocket"]["port"]), _PROBE_SECONDS).close()
        except OSError:
            return False
        return True

    def _ended(self, code: int) -> Exit:
        return Exit(
            code=code,
            signal=code - 128 if 128 < code < 160 else None,
            reason="Error" if code else "Completed",
            message=self._termination_message(code),
            finished=written_time(self._clock()),
        )

    def _termination_message(self, code: int) -> str:
        """Return the termination message as with `terminationMessagePolicy: FallbackToLogsOnError`."""
        try:
            message = self._termination_log.read_bytes().strip()
        except OSError:
            message = b""
        if message or not code:
            return message[: contract.TERMINATION_MESSAGE_BYTES].decode(errors="replace")
        with (self._folder / OUTPUT_FILE).open("rb") as output:
            size = output.seek(0, os.SEEK_END)
            output.seek(max(self._output_begin, size - _FALLBACK_BYTES))
            lines = output.read().decode(errors="replace").splitlines(keepends=True)
        return "".join(lines[-_FALLBACK_LINES:])

    @property
    def _termination_log(self) -> Path:
        return Path(self._env[contract.ENV_TERMINATION_LOG])

    def _view(self) -> PodView:
        labels = self.manifest["metadata"]["labels"]
        phase = "Running" if self._exit is None else "Failed" if self._exit.code else "Succeeded"
        return PodView(
            name=self.name,
            uid=self.uid,
            role=labels[LABEL_ROLE],
            index=int(labels[LABEL_INDEX]),
            attempt=int(labels[LABEL_ATTEMPT]),
            phase=phase,
            ready=self._ready and self._exit is None,
            deleting=self._kill_at is not None,
            scheduled=True,
            scheduled_at=self._created,
            node=None,
            ip=LOOPBACK,
            reason="",
            message="",
            disrupted=False,
            waiting=None,
            exit=self._exit,
            rounds=read_rounds(labels),
            ended=self._exit is not None,
        )


def _empty(folder: Path) -> None:
    """Empty the workspace, but keep the output of earlier attempts."""
    (folder / contract.RUN).mkdir(parents=True, exist_ok=True)
    for entry in folder.iterdir():
        if entry.name == OUTPUT_FILE:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    (folder / contract.RUN).mkdir()

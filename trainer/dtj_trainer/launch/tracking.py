"""Starts the process that writes the job's run to a tracking server, beside the program, and ends it in time.

The process has no part in the training. Only the start of the first attempt waits for it, for the run's id, and the
end of the pod, for the last metrics; both wait for seconds only.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dtj_trainer import contract
from dtj_trainer.contract.tracking import MLFLOW_RUN, MLFLOW_URI, WANDB_SIGNS, RunStatus, tracking_uri
from dtj_trainer.launch.settings import Settings
from dtj_trainer.parent_death import die_with_parent
from dtj_trainer.whole_file import write_whole

log = logging.getLogger(__name__)

STOPPED_SECONDS = 5.0
"""The longest wait at the end of a pod that failed or was asked to stop: the next attempt sends the rest."""
_ARTIFACTS_SECONDS = 5.0
_COMMAND = (sys.executable, "-m", "dtj_trainer.tracking")


def tracked(settings: Settings) -> str | None:
    """Return the URL of the server to which this pod writes the job's run; None where it writes none."""
    if settings.pod.uploads != "primary":
        return None
    return tracking_uri(settings.environment, contract.ENV_TRACKING_URI)


class Tracking:
    """The tracking process of a pod. Without a server it does nothing."""

    def __init__(self, settings: Settings, artifacts: Callable[[], contract.Artifacts]) -> None:
        """artifacts: what is in the bucket now."""
        self._uri = tracked(settings)
        self._settings, self._artifacts = settings, artifacts
        self.restarts = 0
        """The restarts in place of this attempt. The run gets a new value within seconds."""
        self._process: subprocess.Popen[str] | None = None
        self._writing = threading.Lock()
        self._known = threading.Event()
        """Set when the run is known, or not to be waited for."""
        self._over = threading.Event()
        """Set when the process is to end."""

    def start(self) -> None:
        """Start the tracking process. Call this in the main thread: the process ends with the calling thread."""
        if self._uri is None:
            return
        self._run_file.unlink(missing_ok=True)
        if find_spec("mlflow") is None:
            log.warning(
                "nothing is sent to %s: this image has no mlflow. Install dtj's extra `tracking`, or mlflow-skinny",
                self._uri,
            )
            return
        try:
            self._process = subprocess.Popen(  # noqa: S603 - a module of this package
                _COMMAND,
                env=self._settings.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                preexec_fn=die_with_parent(),
            )
        except OSError as error:
            log.warning("nothing is sent to %s: the tracking process can't be started: %s", self._uri, error)

    def begin(self) -> None:
        """Let the process write, because this pod holds the claim of its attempt; wait for the run of a new job.

        A server that refuses connections is not waited for.
        """
        if self._process is None:
            return
        document = self._stored()
        if run := document.get("runId"):
            self._keep_run(str(run))
        self._send({"begin": document})
        for work in (self._listen, self._follow):
            threading.Thread(target=work, name="tracking", daemon=True).start()
        seconds = self._settings.tracking_start
        if not self._known.wait(seconds):
            log.warning(
                "the tracking server %s has no run for this job after %.0f s: the programs start without one",
                self._uri,
                seconds,
            )

    def end(self, status: RunStatus, *, stopped: bool = False, at_most: float = math.inf) -> None:
        """Wait for the last metrics, for seconds only; later calls do nothing.

        status: MLflow's status of the run. at_most: the seconds that the pod has.
        """
        process = self._process
        if process is None or self._over.is_set():
            return
        self._over.set()
        began = time.monotonic()
        # Write in another thread: a tracking process that does not read must not hold up this thread.
        last = threading.Thread(target=self._send_last, args=(status,), daemon=True)
        last.start()
        longest = self._settings.tracking_end
        seconds = max(0.0, min(STOPPED_SECONDS if stopped else longest, longest, at_most))
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            log.warning(
                "the tracking server %s has not taken all metrics within %.0f s; metrics.jsonl in the bucket has all",
                self._uri,
                seconds,
            )
        log.info("tracking ended after %.1f s", time.monotonic() - began)
        self.close()

    def close(self) -> None:
        """End the process at once."""
        self._over.set()
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            # A held lock means that a thread still writes to the full pipe: do not close the stream meanwhile.
            if stream and not self._writing.locked():
                with contextlib.suppress(OSError):
                    stream.close()

    @property
    def _run_file(self) -> Path:
        return self._settings.root / contract.TRACKED_RUN_FILE

    def _stored(self) -> dict[str, Any]:
        """Return the restored tracking.json; empty where it is another server's."""
        try:
            document = json.loads((self._settings.root / contract.TRACKING_FILE).read_bytes())
        except (OSError, ValueError):
            return {}
        return document if isinstance(document, dict) and document.get("uri") == self._uri else {}

    def _send_last(self, status: RunStatus) -> None:
        self._send({"artifacts": self._artifacts()})
        self._send({"restarts": self.restarts})
        self._send({"end": status})

    def _send(self, message: Mapping[str, object]) -> None:
        if self._process is None or self._process.stdin is None:
            return
        with self._writing, contextlib.suppress(OSError, ValueError):  # The process may have ended.
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        if self._process is None or self._process.stdout is None:
            return
        for line in self._process.stdout:
            with contextlib.suppress(ValueError, OSError):
                message = json.loads(line)
                if "run" in message:
                    self._keep_run(str(message["run"]))
                elif "waiting" in message:
                    self._known.set()
                elif "state" in message:
                    _write(self._settings.root / contract.TRACKING_FILE, message["state"])
        self._known.set()
        if not self._over.is_set():
            log.warning("the tracking process has ended; the training goes on without it")

    def _keep_run(self, run: str) -> None:
        _write(self._run_file, {"uri": self._uri, "runId": run})
        self._known.set()

    def _follow(self) -> None:
        told: contract.Artifacts = {}
        told_restarts = 0
        while not self._over.is_set():
            if (now := self._artifacts()) != told:
                told = now
                self._send({"artifacts": now})
            if (restarts := self.restarts) != told_restarts:
                told_restarts = restarts
                self._send({"restarts": restarts})
            self._over.wait(_ARTIFACTS_SECONDS)


def _write(path: Path, content: object) -> None:
    write_whole(path, lambda written: written.write_text(json.dumps(content)))


# tracker_variables returns the variables by which a program finds the job's run at MLflow or Weights & Biases.


def tracker_variables(settings: Settings) -> dict[str, str]:
    """Return the variables for the program with these settings, without those that its environment has already.

    Only rank 0, the chief, or the command that starts rank 0 gets the job's run: several writers would mix their
    values.
    """
    environment = settings.environment
    first = settings.rank == 0 if settings.rank is not None else settings.pod.uploads == "primary"
    given = _wandb(settings, first=first) if any(environment.get(name) for name in WANDB_SIGNS) else {}
    if first:
        given |= _mlflow(settings, environment)
    return {name: value for name, value in given.items() if name not in environment}


def _mlflow(settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    try:
        known = json.loads((settings.root / contract.TRACKED_RUN_FILE).read_bytes())
        variables = {MLFLOW_URI: str(known["uri"]), MLFLOW_RUN: str(known["runId"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    others = environment.get(MLFLOW_URI, "").rstrip("/") not in ("", variables[MLFLOW_URI])
    return {} if others else variables


def _wandb(settings: Settings, *, first: bool) -> dict[str, str]:
    group = {"WANDB_RUN_GROUP": f"{settings.job}-{settings.uid.split('-', 1)[0]}"}
    return group | ({"WANDB_RUN_ID": settings.uid, "WANDB_RESUME": "allow"} if first else {})

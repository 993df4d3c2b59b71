"""Sends a job's metrics to its run, in the order of the files, and repeats what the server did not take."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml

from dtj_trainer import contract
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.background import run_in_background
from dtj_trainer.contract.tracking import RunStatus
from dtj_trainer.tracking.channel import Channel
from dtj_trainer.tracking.client import MOST_PARAMS, MOST_POINTS, TrackingRefused, Unavailable
from dtj_trainer.tracking.lines import LineFiles, next_lines
from dtj_trainer.tracking.points import Point, as_params, params_of, points_of
from dtj_trainer.tracking.settings import TrackerSettings

# find_run returns the job's one run at the tracking server: the run in tracking.json, else the run with the job's
# uid, else a new run.

VERSION = 1


class Runs(Protocol):
    """The methods of a server that `find_run` calls."""

    def experiment(self, name: str) -> str:
        """Return the id of an experiment."""

    def run_of(self, experiment: str, uid: str) -> str | None:
        """Return the oldest run with that uid."""

    def new_run(self, experiment: str, name: str, tags: Mapping[str, str]) -> str:
        """Make a run."""

    def remove_run(self, run: str) -> None:
        """Delete a run."""

    def params_of(self, run: str) -> Mapping[str, str] | None:
        """Return the parameters of a run that exists."""


@dataclass(frozen=True)
class Run:
    """A run, and the parameters that it has already."""

    id: str
    params: Mapping[str, str]


def find_run(server: Runs, settings: TrackerSettings, stored: str | None) -> Run:
    """Find the job's run, or make it. stored: the id in tracking.json. Raises Unavailable and TrackingRefused."""
    for known in filter(None, (stored, settings.run_id)):
        params = server.params_of(known)
        if params is not None:
            return Run(known, params)
    experiment = settings.experiment_id or server.experiment(settings.experiment)
    found = server.run_of(experiment, settings.uid)
    if found is None:
        made = server.new_run(experiment, settings.job, settings.tags)
        # A slow server may have made a run for an earlier request, too: keep the oldest run.
        found = server.run_of(experiment, settings.uid) or made
        if found != made:
            server.remove_run(made)
    return Run(found, server.params_of(found) or {})


def stored_run(document: Mapping[str, Any], uri: str) -> tuple[str | None, dict[str, int]]:
    """Return the run's id, and how many bytes of each file were sent, from tracking.json.

    A tracking.json of another server counts as empty.
    """
    if document.get("version") != VERSION or document.get("uri") != uri:
        return None, {}
    run, sent = document.get("runId"), document.get("sent")
    if not isinstance(run, str) or not isinstance(sent, dict):
        return None, {}
    return run, {name: at for name, at in sent.items() if isinstance(at, int) and at >= 0}


def document(uri: str, run: str, sent: Mapping[str, int]) -> dict[str, object]:
    """Return tracking.json. sent: bytes of each file that the server has."""
    return {"version": VERSION, "uri": uri, "runId": run, "sent": dict(sent)}


log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
"""Seconds between two looks at the metrics."""
UTILISATION_SECONDS = 60.0
LONGEST_PAUSE_SECONDS = 30.0
PAUSE_AT_END_SECONDS = 1.0


class Over(Exception):
    """`dtj-launch` has ended, or has closed the connection to this process."""


class TrackingServer(Runs, Protocol):
    """The methods of a server that `Tracker` calls."""

    def set_status(self, run: str, status: RunStatus) -> None:
        """Set the status of a run."""

    def send(
        self,
        run: str,
        points: Sequence[Point] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Add to a run."""


class Tracker:
    """Writes the metrics of one attempt of a job to the job's run. One thread may use a tracker."""

    def __init__(
        self, server: TrackingServer, settings: TrackerSettings, files: LineFiles, channel: Channel
    ) -> None:
        self._server, self._settings, self._files, self._channel = server, settings, files, channel
        self._run = Run("", {})
        self._params: set[str] = set()
        """Names of the parameters that the run has. MLflow refuses another value of a parameter."""
        self._tags: dict[str, str] = {}
        self._sent: dict[str, int] = {}
        self._utilisation_at = 0.0
        self._restarts = 0
        """The number of restarts in place that was sent to the run."""

    def run(self, job_params: Mapping[str, str]) -> None:
        """Track the attempt to its end. Raises Over if `dtj-launch` ends before."""
        settings, channel = self._settings, self._channel
        known, self._sent = stored_run(channel.stored, settings.uri)
        found: list[Run] = []
        self._until_taken(lambda: found.append(find_run(self._server, settings, known)), first=True)
        self._run = found[0]
        self._params = set(self._run.params)
        if self._run.id != known:
            self._sent = {}  # The former run was deleted: send everything again.
        channel.tell(run=self._run.id)
        self._tell_state()
        # Lower the priority only now: the programs of a first attempt wait until the run exists.
        run_in_background()
        self._set_status("RUNNING")
        self._send_tags(settings.tags)
        attempt = Point("attempt", float(settings.attempt), round(time.time() * 1000), settings.attempt)
        self._send(points=[attempt])
        self._send_params(as_params(job_params))
        while True:
            end = channel.end
            self._look(everything=end is not None)
            self._send_tags(_tags_of(channel.artifacts))
            self._send_restarts(channel.restarts)
            if end is not None:
                break
            channel.wait(LOOK_SECONDS)
            self._leave_if_over()
        self._set_status(end)  # type: ignore[arg-type]  # dtj-launch sends a RunStatus
        log.info("the run %s at %s has all metrics", self._run.id, settings.uri)

    def _look(self, *, everything: bool) -> None:
        """Send the new lines of all files."""
        now = time.monotonic()
        utilisation = everything or now >= self._utilisation_at
        try:
            sizes = self._files.sizes(utilisation=utilisation)
            if utilisation:
                self._utilisation_at = now + UTILISATION_SECONDS
            for name, size in sorted(sizes.items()):
                self._send_file(name, size)
        except (S3Error, OSError) as error:
            log.info("the metrics for the tracking server can't be read; trying again later: %s", error)

    def _send_file(self, name: str, size: int) -> None:
        start = self._sent.get(name, 0)
        if start > size:
            start = 0  # Somebody replaced the file.
        while start < size:
            lines, after = next_lines(self._files, name, start, size)
            if after == start:
                return
            points: list[Point] = []
            for line in lines:
                points += points_of(name, line)
                if name == contract.METRICS_FILE:
                    self._send_params(params_of(line))
                if len(points) >= MOST_POINTS:
                    self._send_points(points)
                    points = []
            self._send_points(points)
            start = self._sent[name] = after
            self._tell_state()

    def _send_points(self, points: Sequence[Point]) -> None:
        for at in range(0, len(points), MOST_POINTS):
            self._send(points=points[at : at + MOST_POINTS])

    def _send_params(self, params: Mapping[str, str]) -> None:
        new = [(name, value) for name, value in params.items() if name not in self._params]
        for at in range(0, len(new), MOST_PARAMS):
            self._send(params=dict(new[at : at + MOST_PARAMS]))
        self._params.update(name for name, _ in new)

    def _send_tags(self, tags: Mapping[str, str]) -> None:
        changed = {name: value for name, value in tags.items() if self._tags.get(name) != value}
        if changed:
            self._send(tags=changed)
            self._tags |= changed

    def _send_restarts(self, count: int) -> None:
        """Send the number of restarts in place. Each attempt counts its own."""
        if count != self._restarts:
            now = round(time.time() * 1000)
            self._send(points=[Point("restarts_in_place", float(count), now, self._settings.attempt)])
            self._restarts = count

    def _set_status(self, status: RunStatus) -> None:
        self._until_taken(lambda: self._server.set_status(self._run.id, status))

    def _send(
        self,
        points: Sequence[Point] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self._until_taken(lambda: self._server.send(self._run.id, points, params, tags))

    def _until_taken(self, request: Callable[[], None], *, first: bool = False) -> None:
        """Repeat a request until the server takes or refuses it. Raises Over."""
        pause, failures = 1.0, 0
        while True:
            try:
                request()
            except (TrackingRefused, Unavailable) as error:
                if isinstance(error, TrackingRefused) and not first:
                    log.warning(
                        "the tracking server %s refuses a request; the run lacks its metrics, parameters or tags: %s",
                        self._settings.uri,
                        error,
                    )
                    return
                failures += 1
                if failures == 1:
                    log.warning(
                        "the tracking server %s does not accept metrics; trying again until it does: %s",
                        self._settings.uri,
                        error,
                    )
                    if first:
                        self._channel.tell(waiting=str(error))
            else:
                if failures:
                    log.info("the tracking server %s accepts metrics again", self._settings.uri)
                return
            self._leave_if_over()
            # After the programs' end, keep the pauses short: `dtj-launch` ends this process after a limit of time.
            if self._channel.end is not None:
                time.sleep(PAUSE_AT_END_SECONDS)
            else:
                self._channel.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _leave_if_over(self) -> None:
        if self._channel.closed:
            raise Over

    def _tell_state(self) -> None:
        self._channel.tell(state=document(self._settings.uri, self._run.id, self._sent))


def _tags_of(artifacts: contract.Artifacts) -> dict[str, str]:
    """Return the tags with the addresses of artifacts in the bucket."""
    tags = {f"dtj.{name}": str(artifacts[name]) for name in ("model", "tensorboard") if name in artifacts}
    if checkpoint := artifacts.get("checkpoint"):
        tags["dtj.checkpoint"] = checkpoint.get("uri", "")
        tags["dtj.checkpoint.step"] = str(checkpoint.get("step", ""))
    return tags


# These functions make parameters of a run from the options of the job's command.

_OPTION = re.compile(r"--?([A-Za-z][\w-]*)(?:=(.*))?", re.DOTALL)


def options_of(words: Sequence[str]) -> dict[str, str]:
    """Return the options `--name=value`, `--name value` and `--name` among some words, by name."""
    found: dict[str, str] = {}
    for word, after in zip(words, [*words[1:], "-"], strict=True):
        if (match := _OPTION.fullmatch(word)) and match[1] != "m":
            value = match[2] if match[2] is not None else "true" if after.startswith("-") else after
            found[match[1]] = value
    return found


def job_params(config_dir: Path) -> dict[str, str]:
    """Return the options of the job's command and args, and its image; nothing where the job file can't be read."""
    try:
        spec: dict[str, Any] = yaml.safe_load((config_dir / contract.JOB_FILE).read_text())["spec"]
        words = [str(word) for word in (*spec.get("command", ()), *spec.get("args", ()))]
        return {"image": str(spec.get("image", "")), **options_of(words)}
    except (OSError, yaml.YAMLError, TypeError, KeyError, ValueError, AttributeError):
        return {}

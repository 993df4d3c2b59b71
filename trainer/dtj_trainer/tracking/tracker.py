"""Sends a job's metrics to its run, in the order of the files, and repeats what the server did not take."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from dtj_trainer import contract
from dtj_trainer.artifacts.background_priority import run_in_background
from dtj_trainer.artifacts.s3 import S3Error
from dtj_trainer.contract.tracker import RunStatus
from dtj_trainer.tracking.answers import MOST_PARAMS, MOST_POINTS, Refused, Unavailable
from dtj_trainer.tracking.channel import Channel
from dtj_trainer.tracking.lines import LineFiles, next_lines
from dtj_trainer.tracking.points import Point, as_params, params_of, points_of
from dtj_trainer.tracking.run import Run, Runs, document, find_run, stored_run
from dtj_trainer.tracking.settings import TrackerSettings

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
"""Between two looks at the metrics."""
UTILISATION_SECONDS = 60.0
LONGEST_PAUSE_SECONDS = 30.0
PAUSE_AT_END_SECONDS = 1.0


class Over(Exception):
    """`dtj-launch` is gone."""


class TrackingServer(Runs, Protocol):
    """What the tracker needs of a server."""

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

    def run(self, job_params: Mapping[str, str]) -> None:
        """Track the attempt to its end. Raises Over when `dtj-launch` is gone before."""
        settings, channel = self._settings, self._channel
        known, self._sent = stored_run(channel.stored, settings.uri)
        found: list[Run] = []
        self._until_taken(lambda: found.append(find_run(self._server, settings, known)), first=True)
        self._run = found[0]
        self._params = set(self._run.params)
        if self._run.id != known:
            self._sent = {}  # Somebody deleted the run of before.
        channel.tell(run=self._run.id)
        self._tell_state()
        # Only now: the programs of a first attempt wait for the run.
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
            if end is not None:
                break
            channel.wait(LOOK_SECONDS)
            self._leave_if_over()
        self._set_status(end)  # type: ignore[arg-type]  # one of dtj-launch's
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
            log.info("metrics are read again later: %s", error)

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
            except (Refused, Unavailable) as error:
                if isinstance(error, Refused) and not first:
                    log.warning("the tracking server refuses a part of the run: %s", error)
                    return
                failures += 1
                if failures == 1:
                    log.warning("%s does not take the run, and is asked again: %s", self._settings.uri, error)
                    if first:
                        self._channel.tell(waiting=str(error))
            else:
                if failures:
                    log.info("%s takes the run again", self._settings.uri)
                return
            self._leave_if_over()
            # After the programs' end, `dtj-launch` ends this process in time.
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

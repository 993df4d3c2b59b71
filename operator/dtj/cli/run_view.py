"""The view of `dtj run`: events and output as lines, and on a terminal a live progress bar below the lines."""

from __future__ import annotations

import contextlib
import re
import time
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from dtj.api.job import Job, Manifest
from dtj.api.reasons import Reason
from dtj.api.status import JobStatus, Phase, ProgressStatus
from dtj.cli.logs import LinePainter
from dtj.cli.progress import figures
from dtj.cli.status_view import failure_lines
from dtj.client.views import LogLine

if TYPE_CHECKING:
    from dtj.local.runner import Outcome

_RANK = re.compile(r"\[(rank \d+)\] ?")
_PLAIN_SECONDS = 5.0


class RunView:
    """Implements `dtj.local.runner.Watcher` on a console. Use the view as a context manager while the job runs."""

    def __init__(self, job: Job, console: Console, *, quiet: bool) -> None:
        """Create the view. quiet: whether to leave out the output of the replicas."""
        self._job = job
        self._console = console
        self._quiet = quiet
        self._painter = LinePainter()
        self._last_status = (0.0, "")
        self._bar = (
            Progress(
                TextColumn("{task.fields[phase]}", style="bold"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[text]}"),
                console=console,
                transient=True,
            )
            if console.is_terminal
            else None
        )
        self._task = self._bar.add_task("", phase="Pending", text="", total=None) if self._bar else None

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar:
            with contextlib.suppress(OSError):
                self._bar.stop()

    def note(self, text: str) -> None:
        """Print a sentence."""
        self._print(Text(f"dtj: {text}", "bold"))

    def event(self, event: Manifest) -> None:
        """Print an event of the job."""
        if event["reason"] in (Reason.SUSPENDING, Reason.JOB_SUSPENDED):
            return  # `dtj run` prints its own message after Ctrl-C
        style = "yellow" if event["type"] == "Warning" else "bold"
        self._print(Text(f"dtj: {event['reason']}: {event['message']}", style))

    def line(self, replica: str, text: str) -> None:
        """Print a replica's line, in the colour of its rank."""
        if self._quiet or not text.strip():
            return
        # In the output of the launcher, the line of a rank begins with the number of the rank.
        match = _RANK.match(text)
        line = LogLine(match[1], text[match.end() :]) if match else LogLine(replica, text)
        self._print(self._painter.painted(line))

    def status(self, status: JobStatus) -> None:
        """Show the progress of the job."""
        phase = f"{status.phase or Phase.PENDING}" + (
            f" (attempt {status.attempt})" if status.attempt > 1 else ""
        )
        text = ", ".join(text for name, text in figures(status).items() if name != "epoch")
        if self._bar and self._task is not None:
            progress = status.progress or ProgressStatus()
            self._bar.update(
                self._task, completed=progress.step or 0, total=progress.total_steps, phase=phase, text=text
            )
            return
        last_time, last_text = self._last_status
        if text and text != last_text and time.monotonic() - last_time >= _PLAIN_SECONDS:
            self._last_status = time.monotonic(), text
            self._print(Text(f"dtj: {phase}: {text}"))

    def ended(self, outcome: Outcome) -> None:
        """Print how the job ended, and where its artifacts are."""
        status, name = outcome.status, self._job.name
        succeeded = status.phase is Phase.SUCCEEDED
        parts = [f"{name}: {status.phase}"]
        if accuracy := figures(status).get("accuracy"):
            parts.append(f"test {accuracy}")
        if status.start_time and status.completion_time:
            start, end = map(datetime.fromisoformat, (status.start_time, status.completion_time))
            parts.append(f"{(end - start).total_seconds():.0f} s")
        restarts = status.restarts.of_training
        parts.append(f"{restarts} restarts" if restarts != 1 else "1 restart")
        self._print(Text(", ".join(parts), "bold green" if succeeded else "bold red"))
        if not succeeded and status.failure is not None:
            for line in failure_lines(status.failure):
                self._print(line)
        if status.artifacts and status.artifacts.uri:
            self._print(Text(f"artifacts: {status.artifacts.uri}"))
            if outcome.run.embedded_store:
                self._print(Text(f"  dtj artifacts ls {name} --local"))
                self._print(Text(f"  dtj report {name} --local"))
        else:
            self._print(Text(f"files: {outcome.run.folder}"))
        self._print(Text("  dtj ui --local"))

    def _print(self, text: Text) -> None:
        # A closed terminal or pipe must not interrupt the run.
        with contextlib.suppress(OSError):
            self._console.print(text, highlight=False, soft_wrap=True)

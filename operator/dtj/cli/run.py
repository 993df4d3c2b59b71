"""`dtj run`: runs a job file, a script or a folder as processes of this machine, with a live view.

`dtj.local` plans and runs the processes.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from dtj.api.errors import Unusable
from dtj.api.identity import own_image
from dtj.api.job import Job, Manifest
from dtj.api.reasons import Reason
from dtj.api.status import JobStatus, Phase, ProgressStatus
from dtj.api.strategies import RULES
from dtj.api.validation import faults
from dtj.cli.code_options import CodeOptions, TargetArgument, code_job
from dtj.cli.job_files import read_one_job, with_words
from dtj.cli.logs import LinePainter
from dtj.cli.options import with_fields
from dtj.cli.status_view import failure_lines
from dtj.cli.terminal import FormatOption, errors, output, print_data
from dtj.cli.words import WithWords, Words, is_program, words_of
from dtj.client.objects import LogLine
from dtj.views.figures import figures

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
            return  # The suspension comes from Ctrl-C, for which `dtj run` prints a message of its own.
        style = "yellow" if event["type"] == "Warning" else "bold"
        self._print(Text(f"dtj: {event['reason']}: {event['message']}", style))

    def line(self, replica: str, text: str) -> None:
        """Print a replica's line, in the colour of its rank."""
        if self._quiet or not text.strip():
            return
        # mpirun puts the number of the rank at the beginning of each line in the launcher's output.
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
        parts.append(status.restarts.in_words)
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


app = typer.Typer()
_LOCAL = {"artifacts": {"uri": "s3://training/jobs"}}
"""Defaults of a script's job if neither an option nor the user's file sets them: a bucket of the embedded store."""


@app.command(cls=WithWords)
@with_fields
def run(
    ctx: typer.Context,
    target: TargetArgument,
    code: CodeOptions,
    s3: Annotated[
        str,
        typer.Option(
            "--s3",
            help="`embedded`: the job's own object store if it answers and credentials exist, else a store that dtj "
            "starts. `job`: always the job's own store.",
            metavar="embedded|job",
        ),
    ] = "embedded",
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Folder to copy to the job's data.uri in the embedded store. Files that are there are not sent "
            "again.",
            metavar="DIR",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a run that was interrupted or has failed.")
    ] = False,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the job; default: the file's, or the script's.", metavar="NAME"),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Namespace of the job; default: the file's, or `default`."),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Leave out the output of the replicas.")
    ] = False,
    format_: FormatOption = None,
) -> None:
    """Run a script, a folder or a job file on this machine; `dtj submit` runs it on a cluster.

    Each replica is a process. No cluster is needed. Words after `--` are the program's arguments, or with a job file
    replace command and args.

    If the job's own object store is not reachable, dtj starts a store for the artifacts. Ctrl-C saves a checkpoint
    first. `--resume` continues from the newest checkpoint, also after dtj was killed. Exit code 0: succeeded,
    1: failed, 130: interrupted.

        dtj run train.py --workers 2 -- --epochs 3
        dtj run job.yaml --data ~/fashion-mnist
        dtj run job.yaml --resume
        dtj run job.yaml --quiet -o json
    """
    from dtj.local.runner import run_job
    from dtj.local.runs import home
    from dtj.local.store_choice import S3Store

    if s3 not in list(S3Store):
        raise Unusable(f"--s3 must be embedded or job, got {s3!r}")
    words = words_of(ctx)
    with _job(target, name, namespace, code, words) as (job, archive, packages):
        # With --output, print the view to standard error: standard output must contain only the manifest.
        view = RunView(job, errors if format_ else output, quiet=quiet)
        try:
            with view:
                outcome = run_job(
                    job,
                    view,
                    home=home(),
                    s3=S3Store(s3),
                    data=data,
                    archive=archive,
                    packages=packages,
                    resume=resume,
                )
        except KeyboardInterrupt:
            # run_job handles Ctrl-C itself while replicas run.
            view.note("interrupted before any replica was started: no process of the job runs")
            raise typer.Exit(130) from None
    if outcome.interrupted:
        view.note(f"interrupted; `{words.line(flag='--resume')}` continues from the last checkpoint")
    else:
        view.ended(outcome)
    if format_:
        print_data(_printable(outcome.run.manifest), format_)
    if outcome.interrupted:
        raise typer.Exit(130)
    raise typer.Exit(0 if outcome.status.phase is Phase.SUCCEEDED else 1)


@contextmanager
def _job(
    target: Path, name: str | None, namespace: str | None, code: CodeOptions, words: Words
) -> Iterator[tuple[Job, Path | None, Path | None]]:
    """Yield the job of a target, and the archives of its code and its packages if the target is a script or folder.
    Raises DtjError.
    """
    from dtj.client import DistributedTrainingJob

    if is_program(target):
        with _code_job(target, name, code, words) as (manifest, archive, packages):
            made = DistributedTrainingJob.from_manifest(manifest).job
            yield _valid(made, name, namespace), archive, packages
        return
    code.refuse_for(target)
    manifest, job = read_one_job(target)
    if words.after:
        job = DistributedTrainingJob.from_manifest(with_words(manifest, words)).job
    if name or namespace or words.after:
        job = _valid(job, name, namespace)
    yield job, None, None


@contextmanager
def _code_job(
    target: Path, name: str | None, code: CodeOptions, words: Words
) -> Iterator[tuple[Manifest, Path, Path | None]]:
    from dtj.client.defaults import read_plain

    if code.env_from:
        raise Unusable(
            "--env-from names a Secret of a cluster", "give the variables with --env or --env-file"
        )
    program, wishes = code.program(target), code.wishes(words)
    strategy = program.strategy.strategy
    values = code.values(strategy, ("dtj", read_plain(_LOCAL, "dtj")))
    image = values.get(f"image.{strategy}")
    used = image.value if image else own_image(RULES[strategy].starter.image)
    with code_job(program, wishes, name or program.name, used, values, code, local=True) as made:
        yield made


def _valid(job: Job, name: str | None, namespace: str | None) -> Job:
    """Return the job with the name and the namespace that are given. Raises Unusable with its faults."""
    job = replace(job, name=name or job.name, namespace=namespace or job.namespace)
    if found := faults(job):
        raise Unusable(f"--name {name}: {found[0]}" if name else "; ".join(map(str, found)))
    return job


def _printable(manifest: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: manifest["metadata"][key] for key in ("name", "namespace", "uid")}
    return {**manifest, "metadata": metadata}

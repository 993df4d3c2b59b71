"""`dtj run` runs a job file as processes of this machine."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dtj.api.errors import Unusable
from dtj.api.job import Job
from dtj.api.status import Phase
from dtj.api.validation import faults
from dtj.cli.job_files import read_one_job
from dtj.cli.run_view import RunView
from dtj.cli.terminal import FormatOption, errors, output, print_data

app = typer.Typer()


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="Job file; - is standard input.", metavar="FILE")],
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
        bool, typer.Option("--resume", help="Continue the run that was interrupted, or has failed.")
    ] = False,
    name: Annotated[
        str | None, typer.Option("--name", help="Another name for the job.", metavar="NAME")
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Leave out the output of the replicas.")
    ] = False,
    format_: FormatOption = None,
) -> None:
    """Run a job file on this machine; `dtj submit` runs it on a cluster.

    Each replica is a process. No cluster is needed.

    If the job's own object store is not reachable, dtj starts a store for the artifacts. Ctrl-C saves a checkpoint
    first. `--resume` continues from the newest checkpoint, also after dtj was killed. Exit code 0: succeeded,
    1: failed, 130: interrupted.

        dtj run job.yaml --data ~/fashion-mnist
        dtj run job.yaml --resume
        dtj run job.yaml --quiet -o json
    """
    from dtj.local.runner import run_job
    from dtj.local.runs import home
    from dtj.local.store_choice import S3Store

    if s3 not in list(S3Store):
        raise Unusable(f"--s3 must be embedded or job, got {s3!r}")
    job = _job_in(file, name)
    # With --output, standard output contains only the manifest.
    view = RunView(job, errors if format_ else output, quiet=quiet)
    try:
        with view:
            outcome = run_job(job, view, home=home(), s3=S3Store(s3), data=data, resume=resume)
    except KeyboardInterrupt:
        # run_job handles Ctrl-C itself while replicas run.
        view.note("interrupted before a replica was started: nothing of the job runs")
        raise typer.Exit(130) from None
    if outcome.interrupted:
        view.note(f"interrupted; `{_resume_command(file, name)}` goes on from the last checkpoint")
    else:
        view.ended(outcome)
    if format_:
        print_data(_printable(outcome.run.manifest), format_)
    if outcome.interrupted:
        raise typer.Exit(130)
    raise typer.Exit(0 if outcome.status.phase is Phase.SUCCEEDED else 1)


def _job_in(path: Path, name: str | None) -> Job:
    """Return the only job of a file. Raises DtjError with every fault of the file."""
    _, job = read_one_job(path)
    if name is None:
        return job
    job = replace(job, name=name)
    if name_faults := faults(job):
        raise Unusable(f"--name {name}: {name_faults[0]}")
    return job


def _resume_command(file: Path, name: str | None) -> str:
    return shlex.join(["dtj", "run", str(file), *(["--name", name] if name else []), "--resume"])


def _printable(manifest: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: manifest["metadata"][key] for key in ("name", "namespace", "uid")}
    return {**manifest, "metadata": metadata}

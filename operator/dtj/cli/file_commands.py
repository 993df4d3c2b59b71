"""The commands on job files. They need no cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dtj.api.crd import custom_resource_definition
from dtj.api.errors import Unusable
from dtj.api.job import Job
from dtj.api.job_file import FaultyFile, JobFile, read_job_file
from dtj.api.status import JobStatus
from dtj.api.validation import notes
from dtj.api.yaml_text import dump, dump_all
from dtj.cli import new
from dtj.cli.job_files import read_text
from dtj.cli.plan_summary import print_summary
from dtj.cli.terminal import FormatOption, OutputFormat, echo, errors, print_data
from dtj.plan.job import plan_job

app = typer.Typer()
app.command("new")(new.new)


@app.command()
def validate(
    files: Annotated[list[Path], typer.Argument(help="Job files; - is standard input.", metavar="FILE")],
    format_: FormatOption = None,
) -> None:
    """Print every fault of job files, each with its line.

    The checks and messages are the operator's own. A cluster can refuse a valid job only for what the file does not
    show. Objects of other kinds are passed over. Exit code 0: no fault, 1: at least one fault, 2: a file can't be
    read or has no job.

    ```
    dtj validate job.yaml
    helm template … | dtj validate -
    ```
    """
    reports, code = [], 0
    for path in files:
        report, exit_code = _validated(path, quiet=format_ is not None)
        reports.append(report)
        code = max(code, exit_code)
    if format_:
        print_data(reports, format_)
    raise typer.Exit(code)


@app.command()
def plan(
    path: Annotated[Path, typer.Argument(help="Job file; - is standard input.", metavar="FILE")],
    format_: FormatOption = None,
    attempt: Annotated[
        int,
        typer.Option("--attempt", min=1, help="Number of the attempt to show; 1 is the first.", metavar="N"),
    ] = 1,
) -> None:
    """Show what the operator would create for a job file: pods, hostfile, TF_CONFIG, environment.

    `-o yaml` and `-o json` print all objects except the Secret with the job's ssh key.

    ```
    dtj plan job.yaml
    dtj plan job.yaml -o yaml
    ```
    """
    file = read_job_file(read_text(path), str(path))
    if file.faults:
        raise FaultyFile(file)
    jobs = [_in_attempt(entry.job, attempt) for entry in file.jobs if entry.job is not None]
    if format_ is None:
        for job in jobs:
            print_summary(job)
        return
    objects = [manifest for job in jobs for manifest in plan_job(job).objects]
    if format_ is OutputFormat.JSON:
        print_data(objects, format_)
    else:
        echo(dump_all(objects), end="")


@app.command()
def crd() -> None:
    """Print the CustomResourceDefinition, as YAML.

    ```
    dtj crd | kubectl apply --server-side -f -
    ```
    """
    echo("# Made by `make crd` from operator/dtj/api.")
    echo(dump(custom_resource_definition()), end="")


def _validated(path: Path, *, quiet: bool) -> tuple[dict[str, Any], int]:
    """Return the report on a file, and the exit code for the file."""
    try:
        file = read_job_file(read_text(path), str(path))
    except Unusable as error:
        if not quiet:
            errors.print(error.message)
            if error.remedy:
                errors.print(f"     {error.remedy}")
        return {"file": str(path), "error": error.message}, error.exit_code
    if not quiet:
        _print_result(file)
    return _report(file), 1 if file.faults else 0


def _print_result(file: JobFile) -> None:
    for other in file.others:
        errors.print(f"{file.name}:{other.line}: {other.name} is not a job, and is not checked", style="dim")
    for fault in file.messages():
        errors.print(fault)
    for entry in file.jobs:
        if entry.job is not None and not entry.faults:
            count = len(plan_job(entry.job).shape.replicas)
            pods = "1 pod" if count == 1 else f"{count} pods"
            echo(f"{file.name}: {entry.job.name} is valid: {entry.job.spec.strategy} with {pods}")
            for note in notes(entry.job):
                errors.print(f"{file.name}: {note}", style="dim")


def _report(file: JobFile) -> dict[str, Any]:
    jobs = []
    for entry in file.jobs:
        metadata = entry.manifest.get("metadata")
        faults = [{"line": f.line, "field": f.field, "message": f.message} for f in entry.faults]
        jobs.append(
            {
                "name": metadata.get("name") if isinstance(metadata, dict) else None,
                "line": entry.line,
                "valid": not faults,
                "faults": faults,
            }
        )
    others = [{"line": other.line, "object": other.name} for other in file.others]
    return {"file": file.name, "jobs": jobs, "passedOver": others}


def _in_attempt(job: Job, attempt: int) -> Job:
    """Return the job with a status that places the job and each of its replicas in this attempt."""
    replicas = {pod.removeprefix(f"{job.name}-"): attempt for pod in plan_job(job).shape.attempts}
    return replace(job, status=JobStatus(attempt=attempt, replica_attempts=replicas))

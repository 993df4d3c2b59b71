"""Commands on job files, which need no cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dtj.api.crd import custom_resource_definition
from dtj.api.errors import Unusable
from dtj.api.job import Job, Manifest
from dtj.api.job_file import FaultyFile, JobFile, read_job_file
from dtj.api.status import JobStatus
from dtj.api.yaml_text import dump, dump_all
from dtj.cli import new
from dtj.cli.job_files import read_text
from dtj.cli.plan_summary import print_summary
from dtj.cli.terminal import Format, FormatOption, echo, errors, print_data
from dtj.plan.job import plan_job

app = typer.Typer()
app.command("new")(new.new)


@app.command()
def validate(
    files: Annotated[list[Path], typer.Argument(help="Job files; - is standard input.", metavar="FILE")],
    format_: FormatOption = None,
) -> None:
    """Print every fault of job files, each with its line.

    The messages are the operator's own: what passes here is not refused there for its form. Objects of other kinds
    in a file are passed over. Exit code 0: no fault, 1: some, 2: a file can't be read or has no job.

    ```
    dtj validate job.yaml
    helm template … | dtj validate -
    ```
    """
    reports, code = [], 0
    for path in files:
        report, found = _validated(path, quiet=format_ is not None)
        reports.append(report)
        code = max(code, found)
    if format_:
        print_data(reports, format_)
    raise typer.Exit(code)


@app.command()
def plan(
    path: Annotated[Path, typer.Argument(help="Job file; - is standard input.", metavar="FILE")],
    format_: FormatOption = None,
    attempt: Annotated[
        int, typer.Option("--attempt", min=1, help="As after this many starts.", metavar="N")
    ] = 1,
) -> None:
    """Show what the operator would make of a job file: pods, hostfile, TF_CONFIG, environment.

    `-o yaml` and `-o json` print the objects themselves, all but the Secret with the job's ssh key.

    ```
    dtj plan job.yaml
    dtj plan job.yaml -o yaml
    ```
    """
    file = read_job_file(read_text(path), str(path))
    if file.faults:
        raise FaultyFile(file)
    jobs = [_in_attempt(found.job, attempt) for found in file.jobs if found.job is not None]
    if format_ is None:
        for job in jobs:
            print_summary(job)
        return
    objects = [made for job in jobs for made in _objects(job)]
    if format_ is Format.JSON:
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
    """What is said of a file, and the exit code that it makes."""
    try:
        file = read_job_file(read_text(path), str(path))
    except Unusable as error:
        if not quiet:
            _complain(error.message)
            if error.remedy:
                _complain(f"     {error.remedy}")
        return {"file": str(path), "error": error.message}, error.exit_code
    if not quiet:
        _tell(file)
    return _report(file), 1 if file.faults else 0


def _tell(file: JobFile) -> None:
    for other in file.others:
        errors.print(f"{file.name}:{other.line}: {other.name} passed over", style="dim")
    for fault in file.messages():
        _complain(fault)
    for found in file.jobs:
        if found.job is not None and not found.faults:
            pods = len(plan_job(found.job).pods)
            echo(f"{file.name}: {found.job.name} is valid: {found.job.spec.strategy} with {pods} pods")


def _complain(message: str) -> None:
    errors.print(message)


def _report(file: JobFile) -> dict[str, Any]:
    jobs = []
    for found in file.jobs:
        metadata = found.manifest.get("metadata")
        faults = [{"line": f.line, "field": f.field, "message": f.message} for f in found.faults]
        jobs.append(
            {
                "name": metadata.get("name") if isinstance(metadata, dict) else None,
                "line": found.line,
                "valid": not faults,
                "faults": faults,
            }
        )
    others = [{"line": other.line, "object": other.name} for other in file.others]
    return {"file": file.name, "jobs": jobs, "passedOver": others}


def _in_attempt(job: Job, attempt: int) -> Job:
    """The job as its plan is after so many starts, of all its replicas."""
    replicas = {pod.removeprefix(f"{job.name}-"): attempt for pod in plan_job(job).attempts}
    return replace(job, status=JobStatus(attempt=attempt, replica_attempts=replicas))


def _objects(job: Job) -> list[Manifest]:
    return [*plan_job(job).objects]

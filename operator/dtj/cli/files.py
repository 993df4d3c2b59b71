"""Commands on job files, which need no cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from dtj.api.crd import custom_resource_definition
from dtj.api.job import InvalidJob, Job, read_job
from dtj.api.validation import faults
from dtj.plan.job import plan_job

app = typer.Typer()
JobFile = Annotated[Path, typer.Argument(help="YAML file with one DistributedTrainingJob.", metavar="FILE")]


@app.command()
def validate(file: JobFile) -> None:
    """Print every fault of a job file. Exit code 0: none, 1: some, 2: the file can't be read."""
    job = _read(file)
    typer.echo(f"{file}: {job.name} is valid: {job.spec.strategy} with {len(plan_job(job).pods)} pods")


@app.command()
def plan(file: JobFile) -> None:
    """Print the objects that the operator would make of a job file, as YAML."""
    made = plan_job(_read(file))
    typer.echo(yaml.safe_dump_all([made.service, made.config, *made.pods], sort_keys=False), nl=False)


@app.command()
def crd() -> None:
    """Print the CustomResourceDefinition, as YAML."""
    typer.echo("# Made by `make crd` from operator/dtj/api.")
    typer.echo(yaml.safe_dump(custom_resource_definition(), sort_keys=False, width=110), nl=False)


def _read(file: Path) -> Job:
    try:
        manifests = [m for m in yaml.safe_load_all(file.read_text()) if m]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        _fail(f"{file}: {error}", 2)
    if len(manifests) != 1 or not isinstance(manifests[0], dict):
        _fail(f"{file}: has {len(manifests)} objects; one DistributedTrainingJob is wanted", 2)
    try:
        job = read_job(manifests[0])
    except InvalidJob as error:
        _fail("\n".join(f"{file}: {fault}" for fault in error.faults), 1)
    if found := faults(job):
        _fail("\n".join(f"{file}: {fault}" for fault in found), 1)
    return job


def _fail(message: str, code: int) -> Any:
    typer.echo(message, err=True)
    raise typer.Exit(code)

"""`dtj run` runs a job file as processes of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dtj.api.errors import Unusable
from dtj.api.identity import own_image
from dtj.api.job import Job, Manifest
from dtj.api.status import Phase
from dtj.api.strategies import RULES
from dtj.api.validation import faults
from dtj.cli.code_options import CodeOptions, TargetArgument, code_job, with_code_options
from dtj.cli.job_files import read_one_job, with_words
from dtj.cli.run_view import RunView
from dtj.cli.terminal import FormatOption, errors, output, print_data
from dtj.cli.words import WithWords, Words, is_program, words_of

app = typer.Typer()
_LOCAL = {"artifacts": {"uri": "s3://training/jobs"}}
"""What a script gets where neither an option nor the user's file says it: a bucket of the embedded store."""


@app.command(cls=WithWords)
@with_code_options
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
        bool, typer.Option("--resume", help="Continue the run that was interrupted, or has failed.")
    ] = False,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the job; default: the file's, or the script's.", metavar="NAME"),
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
    with _job(target, name, code, words) as (job, archive, packages):
        # With --output, standard output contains only the manifest.
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
            view.note("interrupted before a replica was started: nothing of the job runs")
            raise typer.Exit(130) from None
    if outcome.interrupted:
        view.note(f"interrupted; `{words.line(flag='--resume')}` goes on from the last checkpoint")
    else:
        view.ended(outcome)
    if format_:
        print_data(_printable(outcome.run.manifest), format_)
    if outcome.interrupted:
        raise typer.Exit(130)
    raise typer.Exit(0 if outcome.status.phase is Phase.SUCCEEDED else 1)


@contextmanager
def _job(
    target: Path, name: str | None, code: CodeOptions, words: Words
) -> Iterator[tuple[Job, Path | None, Path | None]]:
    """Yield the job of a target, and the archives of its code and its packages if the target is a script or folder.
    Raises DtjError.
    """
    from dtj.client import DistributedTrainingJob

    if is_program(target):
        with _code_job(target, name, code, words) as (manifest, archive, packages):
            yield _valid(DistributedTrainingJob.from_manifest(manifest).job, name), archive, packages
        return
    code.refuse_for(target)
    manifest, job = read_one_job(target)
    if words.after:
        job = DistributedTrainingJob.from_manifest(with_words(manifest, words)).job
    yield _valid(replace(job, name=name) if name else job, name), None, None


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


def _valid(job: Job, name: str | None) -> Job:
    """Return the job. Raises Unusable with its faults."""
    if found := faults(job):
        raise Unusable(f"--name {name}: {found[0]}" if name else "; ".join(map(str, found)))
    return job


def _printable(manifest: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: manifest["metadata"][key] for key in ("name", "namespace", "uid")}
    return {**manifest, "metadata": metadata}

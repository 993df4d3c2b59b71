"""`dtj submit` runs a job file, a script or a folder on the cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from dtj.api.errors import Unreachable, Unusable
from dtj.api.status import Phase
from dtj.cli.code_options import CodeOptions, TargetArgument, code_job
from dtj.cli.connection import connect
from dtj.cli.job_files import read_one_job, with_words
from dtj.cli.logs import LinePainter
from dtj.cli.options import ContextOption, EndpointOption, NamespaceOption, TimeoutOption, with_fields
from dtj.cli.status_view import failure_lines, one_line
from dtj.cli.terminal import FormatOption, OutputFormat, VisibleConsole, echo, errors, output, print_data
from dtj.cli.words import WithWords, Words, is_program, words_of
from dtj.views.sentences import sentence_of

if TYPE_CHECKING:
    from dtj.client import Client, DistributedTrainingJob
    from dtj.client.defaults import Defaults, Value

app = typer.Typer()


class _Made(NamedTuple):
    """A job, with the archives of its code and its packages if the job is made from a script or folder."""

    job: DistributedTrainingJob
    archive: Path | None = None
    packages: Path | None = None
    endpoint: str | None = None
    """URL of the store that the user named for archives; None: `user_environment` finds it."""


@app.command(cls=WithWords)
@with_fields
def submit(
    ctx: typer.Context,
    target: TargetArgument,
    code: CodeOptions,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the job; default: the file's, or the script's with a random end."),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow/--detach", "-f/-d", help="Print the job's output until its end, or end at once."
        ),
    ] = True,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the job has ended, and print no output of it.")
    ] = False,
    timeout: TimeoutOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Send nothing; with -o yaml, print the job file.")
    ] = False,
    endpoint: EndpointOption = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    format_: FormatOption = None,
) -> None:
    """Run a script, a folder or a job file on the cluster; `dtj run` runs it on this machine.

    The folder of a script is sent with the script: no image is built. Words after `--` are the program's arguments,
    or with a job file replace command and args. Ctrl-C leaves the job. Exit code 1: the job failed.

    ```
    dtj submit train.py --workers 4 --gpus 1 -- --epochs 3
    dtj submit my-training --entrypoint train.py --detach
    dtj submit job.yaml --name try-2 --wait --timeout 2h
    ```
    """
    from dtj.client.code_job import random_name
    from dtj.client.failures import NameTaken

    if timeout is not None and not wait:
        raise Unusable("--timeout needs --wait", "add --wait, or leave --timeout out")
    words = words_of(ctx)
    if dry_run:
        with _job(_connected(namespace, context), target, name, code, words, namespace) as made:
            _dry_run(made.job, format_)
        return
    client = connect(namespace, context)
    with _job(client, target, name, code, words, namespace) as made:
        try:
            submitted = client.submit(
                made.job,
                archive=made.archive,
                packages=made.packages,
                endpoint=endpoint or made.endpoint,
                namespace=namespace,
            )
        except NameTaken as error:
            raise NameTaken(error.message, words.line(name=random_name(made.job.name))) from None
    if format_ is None:
        echo(f"{submitted.name} submitted to namespace {submitted.namespace}")
    if made.archive is not None:
        _tell_of_bucket(submitted)
    with _left_by_ctrl_c(submitted):
        if wait:
            submitted = client.wait(submitted.name, timeout=timeout, namespace=submitted.namespace)
        elif follow:
            submitted = _followed(client, submitted, errors if format_ else output)
    if format_ is None and (wait or follow):
        echo(one_line(submitted))
    if format_:
        print_data(submitted.to_manifest(), format_)
    if wait or follow:
        raise typer.Exit(0 if submitted.status.phase is Phase.SUCCEEDED else 1)


def _connected(namespace: str | None, context: str | None) -> Client | None:
    """Return a client; none, with a note, if there is no cluster, which a dry run does not need."""
    try:
        return connect(namespace, context)
    except Unreachable as error:
        errors.print(f"the defaults of the namespace are unknown: {error.message}", style="yellow")
        return None


@contextmanager
def _job(
    client: Client | None,
    target: Path,
    name: str | None,
    code: CodeOptions,
    words: Words,
    namespace: str | None,
) -> Iterator[_Made]:
    """Yield the job of a target. Its archives exist during the context. Raises DtjError."""
    from dtj.client import DistributedTrainingJob

    if not is_program(target):
        code.refuse_for(target)
        manifest, _ = read_one_job(target)
        manifest = with_words(manifest, words)
        if name:
            manifest = {**manifest, "metadata": {**manifest["metadata"], "name": name}}
        job = DistributedTrainingJob.from_manifest(manifest)
        if namespace and job.metadata.namespace not in (None, namespace):
            raise Unusable(
                f"{target} has namespace {job.metadata.namespace}, but --namespace is {namespace}",
                "leave out one of them",
            )
        yield _Made(job)
        return
    from dtj.client.code_job import random_name
    from dtj.client.defaults import config_file, name_of_config_map

    program, wishes = code.program(target), code.wishes(words)
    strategy = program.strategy.strategy
    of_namespace = name_of_config_map(client.namespace if client else namespace or "default")
    values = code.values(strategy, (of_namespace, _of_namespace(client) if client else None))
    if (image := values.get(f"image.{strategy}")) is None:
        raise Unusable(
            f"no image is given for a {strategy} job",
            f"give --image, or set image.{strategy} in {config_file()} or in {of_namespace}",
        )
    if "artifacts.uri" not in values:
        errors.print("no files of the job will be kept: give --artifacts s3://bucket/prefix", style="yellow")
    chosen = name or random_name(program.name)
    with code_job(program, wishes, chosen, image.value, values, code) as (made, archive, packages):
        job = DistributedTrainingJob.from_manifest(made)
        yield _Made(job, archive, packages, _named_endpoint(job, values, of_namespace))


def _named_endpoint(
    job: DistributedTrainingJob, values: Mapping[str, Value], of_namespace: str
) -> str | None:
    """Return the endpoint of the store for a job's archives, if the user named it. A variable AWS_ENDPOINT_URL wins.

    The user's own credentials must be sent only to an endpoint that the user named.
    of_namespace: the source of the ConfigMap with defaults, whose endpoint does not count: others may have set it.
    """
    from dtj.client.store_environment import endpoint_of, user_environment

    code, endpoint = job.spec.code, values.get("artifacts.endpoint")
    in_bucket = code is not None and (code.uri or (code.packages and code.packages.uri))
    if not in_bucket or endpoint is None or endpoint.source == of_namespace:
        return None
    return endpoint_of(user_environment()) or str(endpoint.value)


def _of_namespace(client: Client) -> Defaults | None:
    """Return the defaults of the namespace; none, with a note, if this user may not read them."""
    try:
        return client.defaults()
    except Unreachable as error:
        errors.print(f"the defaults of namespace {client.namespace} can't be read: {error}", style="yellow")
        return None


def _dry_run(job: DistributedTrainingJob, format_: OutputFormat | None) -> None:
    from dtj.client import InvalidJobError

    if faults := job.faults():
        raise InvalidJobError(job.name, faults)
    print_data(job.to_manifest(), format_ or OutputFormat.YAML)


def _tell_of_bucket(job: DistributedTrainingJob) -> None:
    """Print which later commands need S3 credentials, since the submission itself works without them."""
    store = job.spec.artifacts
    if store is None:
        return
    or_secret = f", or the permission to read the Secret {store.secret_name}" if store.secret_name else ""
    errors.print(
        f"artifacts: {job.artifacts_uri}; `dtj artifacts`, `dtj report` and, after the end, `dtj logs` need S3 "
        f"credentials{or_secret}",
        style="dim",
    )


@contextmanager
def _left_by_ctrl_c(job: DistributedTrainingJob) -> Iterator[None]:
    """Print how to follow the job again if Ctrl-C ends the block. The job continues."""
    try:
        yield
    except KeyboardInterrupt:
        errors.print(
            f"{job.name} keeps running; `dtj logs {job.name} -n {job.namespace} -f` follows it again, "
            f"`dtj delete {job.name} -n {job.namespace}` ends it"
        )
        raise


def _followed(client: Client, job: DistributedTrainingJob, console: VisibleConsole) -> DistributedTrainingJob:
    """Print what the job waits for, and its output until it has ended. Return the ended job."""
    from dtj.client import LogQuery

    painter = LinePainter()
    _until_it_runs(client, job)
    try:
        for line in client.logs(job.name, LogQuery(follow=True), namespace=job.namespace):
            console.print(painter.painted(line))
    except Unreachable as error:
        # The pods of a short job may already be deleted. Their output is then only in the bucket.
        if not client.get(job.name, namespace=job.namespace).status.finished:
            raise
        errors.print(f"the output of {job.name} can't be read: {error}", style="yellow")
    ended = client.wait(job.name, timeout=None, namespace=job.namespace)
    if ended.status.phase is Phase.FAILED and ended.status.failure is not None:
        for text in failure_lines(ended.status.failure):
            errors.print(text)
    return ended


def _until_it_runs(client: Client, job: DistributedTrainingJob) -> None:
    """Print each new state of a job until its pods run, or the job has ended."""
    told = ""
    for state in client.watch(job.name, namespace=job.namespace):
        sentence = sentence_of(state.status)
        if sentence != told:
            errors.print(sentence, style="dim")
        told = sentence
        if state.status.phase is Phase.RUNNING or state.status.finished:
            return

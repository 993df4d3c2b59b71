"""`dtj convert`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dtj.api.errors import Unusable
from dtj.api.job import Manifest
from dtj.api.shown import enumerated
from dtj.api.spec import S3_URI
from dtj.api.yaml_lines import read_documents
from dtj.api.yaml_text import dump
from dtj.cli.job_files import read_text
from dtj.cli.terminal import OutputFormat, echo
from dtj.convert.job import CONVERTED, is_job, ways
from dtj.convert.job import convert as converted
from dtj.convert.notes import Conversion
from dtj.convert.torchx import without_report
from dtj.convert.training_runtime import is_runtime

app = typer.Typer()


@app.command()
def convert(
    files: Annotated[
        list[Path],
        typer.Argument(help="Files with jobs of Kubeflow or torchx; - is standard input.", metavar="FILE"),
    ],
    format_: Annotated[
        OutputFormat, typer.Option("--format", "-o", help="Format of the output.")
    ] = OutputFormat.YAML,
    artifacts: Annotated[
        str | None, typer.Option(help="Where checkpoints and logs go: s3://bucket/prefix.", metavar="URI")
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            help="Command of containers that have none, because their image has an entrypoint, such as "
            '"python train.py". Their args follow.',
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="File to write; by default standard output.", metavar="FILE"),
    ] = None,
) -> None:
    """Convert Kubeflow's jobs and torchx's dist.ddp to DistributedTrainingJobs.

    The kinds of Kubeflow are MPIJob, TFJob, PyTorchJob and TrainJob.

    Standard error and the comments of the YAML list every field that has no equivalent or another meaning. Other
    objects of the files stay unchanged; runtimes of TrainJobs are left out. Exit code 0: all jobs were converted, 1:
    some jobs can't be converted.

        dtj convert tfjob.yaml --artifacts s3://bucket/jobs --output job.yaml

        dtj convert pytorchjob.yaml --command "python train.py" > job.yaml

        kubectl get mpijob mnist -o yaml | dtj convert -

        torchx run --dryrun -s kubernetes dist.ddp --script train.py | dtj convert -
    """
    if artifacts is not None and not re.fullmatch(S3_URI, artifacts):
        raise Unusable(f"--artifacts {artifacts} is not an s3:// URI", "give s3://bucket/prefix")
    words = _words(command)
    documents: list[Conversion | Manifest] = []
    for file in files:
        manifests = _manifests(file)
        entries = [
            converted(manifest, artifacts, manifests, words) if is_job(manifest) else manifest
            for manifest in manifests
            if not is_runtime(manifest)
        ]
        jobs = [entry for entry in entries if isinstance(entry, Conversion)]
        if not jobs:
            raise _no_job(file, manifests)
        for job in jobs:
            _print_notes(file, job)
        documents += entries
    refused = [entry for entry in documents if isinstance(entry, Conversion) and entry.manifest is None]
    text = _text([entry for entry in documents if entry not in refused], format_)
    if len(refused) < sum(isinstance(entry, Conversion) for entry in documents):
        _write(text, output)
    if refused:
        raise typer.Exit(1)


def _words(command: str | None) -> list[str]:
    """Return the words of the option, as a shell splits them; none without the option. Raises Unusable."""
    if command is None:
        return []
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise Unusable(f"--command: {error}") from None
    if not words:
        raise Unusable("--command is empty", 'give the program with its arguments, such as "python train.py"')
    return words


def _no_job(file: Path, manifests: Sequence[Manifest]) -> Unusable:
    """Return the error for a file without a job to convert, with advice for the kinds of objects in the file."""
    message = f"{file}: has no job of Kubeflow or torchx"
    found = ways(manifests)
    if found:
        message += f", only {enumerated(found, 'and')}"
    known = [f"{kind}: {way}" for kind, way in found.items() if way]
    return Unusable(message, "; ".join(known) or f"give one of {CONVERTED}")


def _manifests(file: Path) -> list[Manifest]:
    text = without_report(read_text(file))
    documents = [document for document in read_documents(text, str(file)) if document.data]
    repeated = [f"{file}:{line}: {fault}" for document in documents for line, fault in document.repeated]
    if repeated:
        raise Unusable("\n".join(repeated))
    for document in documents:
        if not isinstance(document.data, dict):
            raise Unusable(
                f"{file}:{document.line}: the YAML document is not a Kubernetes object: it must be a map with "
                "apiVersion and kind"
            )
    return [document.data for document in documents]


def _print_notes(file: Path, job: Conversion) -> None:
    outcome = "can't be converted" if job.manifest is None else "is converted"
    echo(f"{file}: {job.kind} {job.name} {outcome}", err=True)
    for note in job.notes:
        echo(f"  {'! ' if note.refused else '- '}{note}", err=True)


def _text(documents: list[Conversion | Manifest], format_: OutputFormat) -> str:
    # Roles may share a value, for which YAML would contain an anchor. The round trip through JSON copies the values.
    manifests = [
        json.loads(json.dumps(entry.manifest if isinstance(entry, Conversion) else entry, default=str))
        for entry in documents
    ]
    if format_ is OutputFormat.JSON:
        document = (
            manifests[0] if len(manifests) == 1 else {"apiVersion": "v1", "kind": "List", "items": manifests}
        )
        return json.dumps(document, indent=2) + "\n"
    return "---\n".join(
        _comments(entry) + dump(manifest) for entry, manifest in zip(documents, manifests, strict=True)
    )


def _comments(entry: Conversion | Manifest) -> str:
    if not isinstance(entry, Conversion):
        return ""
    lines = [
        f"# Made by dtj convert from the {entry.kind} {entry.name}.",
        *(f"# - {note}" for note in entry.notes),
    ]
    return "".join(f"{line}\n" for line in lines)


def _write(text: str, output: Path | None) -> None:
    if output is None:
        echo(text, end="")
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise Unusable(f"{output}: {error.strerror}") from None

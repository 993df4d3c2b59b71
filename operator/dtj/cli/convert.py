"""`dtj convert`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from dtj.api.errors import Unusable
from dtj.api.job import Manifest
from dtj.api.spec import S3_URI
from dtj.api.yaml_lines import read_documents
from dtj.api.yaml_text import dump
from dtj.cli.job_files import read_text
from dtj.cli.terminal import Format, echo
from dtj.convert.job import convert as converted
from dtj.convert.job import is_kubeflow_job
from dtj.convert.notes import Conversion

app = typer.Typer()


@app.command()
def convert(
    files: Annotated[
        list[Path], typer.Argument(help="Files with Kubeflow jobs; - is standard input.", metavar="FILE")
    ],
    format_: Annotated[Format, typer.Option("--format", "-o", help="What to write.")] = Format.YAML,
    artifacts: Annotated[
        str | None, typer.Option(help="Where checkpoints and logs go: s3://bucket/prefix.", metavar="URI")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Write there, not to standard output.", metavar="FILE")
    ] = None,
) -> None:
    """Make DistributedTrainingJobs of Kubeflow's TFJobs and MPIJobs.

    Every field that has no equivalent, or means something else now, is noted on standard error and in the comments of
    the YAML. Other objects of the files stay as they are. Exit code 0: all were converted, 1: some have no
    equivalent.

        dtj convert tfjob.yaml --artifacts s3://bucket/jobs --output job.yaml

        kubectl get mpijob mnist -o yaml | dtj convert -
    """
    if artifacts is not None and not re.fullmatch(S3_URI, artifacts):
        raise Unusable(f"--artifacts {artifacts} is no s3:// URI", "give s3://bucket/prefix")
    documents: list[Conversion | Manifest] = []
    for file in files:
        found = [converted(m, artifacts) if is_kubeflow_job(m) else m for m in _manifests(file)]
        jobs = [entry for entry in found if isinstance(entry, Conversion)]
        if not jobs:
            raise Unusable(f"{file}: has no job of Kubeflow", "give a TFJob or MPIJob of kubeflow.org")
        for job in jobs:
            _tell(file, job)
        documents += found
    refused = [entry for entry in documents if isinstance(entry, Conversion) and entry.manifest is None]
    text = _text([entry for entry in documents if entry not in refused], format_)
    if len(refused) < sum(isinstance(entry, Conversion) for entry in documents):
        _write(text, output)
    if refused:
        raise typer.Exit(1)


def _manifests(file: Path) -> list[Manifest]:
    documents = [document for document in read_documents(read_text(file), str(file)) if document.data]
    repeated = [f"{file}:{line}: {fault}" for document in documents for line, fault in document.repeated]
    if repeated:
        raise Unusable("\n".join(repeated))
    if not all(isinstance(document.data, dict) for document in documents):
        raise Unusable(f"{file}: has something else than Kubernetes objects")
    return [document.data for document in documents]


def _tell(file: Path, job: Conversion) -> None:
    end = "can't be converted" if job.manifest is None else "is converted"
    echo(f"{file}: {job.kind} {job.name} {end}", err=True)
    for note in job.notes:
        echo(f"  {'! ' if note.refused else '- '}{note}", err=True)


def _text(documents: list[Conversion | Manifest], format_: Format) -> str:
    # Through JSON, so that what roles share is written out for each, and not as YAML's anchors.
    manifests = [
        json.loads(json.dumps(entry.manifest if isinstance(entry, Conversion) else entry, default=str))
        for entry in documents
    ]
    if format_ is Format.JSON:
        whole = (
            manifests[0] if len(manifests) == 1 else {"apiVersion": "v1", "kind": "List", "items": manifests}
        )
        return json.dumps(whole, indent=2) + "\n"
    return "---\n".join(
        _comments(entry) + dump(manifest) for entry, manifest in zip(documents, manifests, strict=True)
    )


def _comments(entry: Conversion | Manifest) -> str:
    if not isinstance(entry, Conversion):
        return ""
    lines = [
        f"# Made by dtj convert of the {entry.kind} {entry.name}.",
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

"""`dtj doctor`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dtj.cli.job_files import read_one_job
from dtj.cli.options import ContextOption, NamespaceOption
from dtj.cli.terminal import FormatOption, errors, output, print_data

if TYPE_CHECKING:
    from dtj.doctor.findings import Check

app = typer.Typer()
_STYLES = {"ok": "green", "warning": "yellow", "failed": "red"}


@app.command()
def doctor(
    path: Annotated[
        Path | None,
        typer.Argument(
            help="Job file to check as well; - is standard input.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    pod: Annotated[
        bool, typer.Option("--pod/--no-pod", help="Try DNS and S3 in a short-lived pod of the job's image.")
    ] = True,
    format_: FormatOption = None,
) -> None:
    """Check a cluster and, with a job file, whether that job can run there.

    Checks of the cluster: version, CRD, operator, its webhook, your permissions. Checks of a job: accelerators, free
    resources of the nodes, quotas, the Secret. In a pod with the job's image: DNS, writing below artifacts.uri, the
    data set. Exit code 0: no check failed, there may be warnings; 1: a check failed.

    ```
    dtj doctor
    dtj doctor job.yaml -n training
    dtj doctor job.yaml --no-pod -o json
    ```
    """
    from dtj.doctor.examine import examine

    job = None
    if path is not None:
        manifest, job = read_one_job(path)
        namespace = namespace or (manifest.get("metadata") or {}).get("namespace")
    with errors.status("checking the cluster"):
        checks = asyncio.run(examine(job, namespace=namespace, context=context, with_pod=pod))
    if format_:
        print_data([{**asdict(check), "verdict": check.verdict.value} for check in checks], format_)
    else:
        _print(checks)
    raise typer.Exit(int(any(check.verdict == "failed" for check in checks)))


def _print(checks: Sequence[Check]) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        verdict = check.verdict.value
        line = Text.assemble((f"{verdict:<9}", _STYLES[verdict]), f"{check.name:<{width}}  {check.message}")
        output.print(line)
        if check.remedy:
            output.print(Text(" " * (11 + width) + f"→ {check.remedy}", "dim"))

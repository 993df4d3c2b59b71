"""The options that choose cluster, namespace and job, and the shell's completion of job names."""

from __future__ import annotations

import atexit
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dtj.client import Client

_COMPLETION_SECONDS = 2.0
"""The shell waits at most this long for names after the Tab key."""
opened = ExitStack()
"""What stays open until the command ends. `main` closes it: the clean-up of a client may need the cluster, which no
client reaches once the interpreter exits, because asyncio then starts no threads."""
atexit.register(opened.close)  # For commands that are called without `main`.


def connect(namespace: str | None, context: str | None) -> Client:
    """Return a client of the cluster, which `opened` closes.

    Raises Unreachable, or Unusable if the kubeconfig can't be used.
    """
    import dtj.client

    client = dtj.client.Client(namespace=namespace, context=context)
    opened.callback(client.close)
    return client


def _names(namespace: str | None, context: str | None, local: bool) -> list[str]:
    if local:
        from dtj.local.runs import Runs, home

        return [run.name for run in Runs(home()).list()]
    import dtj.client

    with dtj.client.Client(namespace=namespace, context=context) as client:
        return [job.name for job in client.list()]


def complete_name(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of jobs for the shell; none if the cluster does not answer in time."""
    names: list[str] = []
    params = context.params

    def ask() -> None:
        try:
            names.extend(_names(params.get("namespace"), params.get("context"), bool(params.get("local"))))
        except Exception:  # noqa: BLE001 - the shell has no place for a message
            return

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_COMPLETION_SECONDS)
    return sorted({name for name in names if name.startswith(incomplete)})


JobName = Annotated[
    str, typer.Argument(help="Name of the job.", metavar="NAME", autocompletion=complete_name)
]
JobNameOrUri = Annotated[
    str,
    typer.Argument(
        help="Name of the job, or its prefix in the bucket (s3://…), also after the job was deleted.",
        metavar="NAME",
        autocompletion=complete_name,
    ),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace", "-n", help="Namespace of the job; by default that of the kubeconfig's context."
    ),
]
ContextOption = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig; by default the current one.")
]
LocalOption = Annotated[
    bool,
    typer.Option(
        "--local",
        help="Use a run of this machine (`dtj run`), or an address in its store, not a job of a cluster.",
    ),
]
RegistryOption = Annotated[
    str | None,
    typer.Option(
        "--registry",
        envvar="DTJ_IMAGE_REGISTRY",
        help="Registry of dtj's own image, as image.registry of the chart: registry.example.com/dtj.",
        metavar="REGISTRY",
    ),
]
EndpointOption = Annotated[
    str | None,
    typer.Option(
        "--endpoint",
        help="URL of the S3 store for this machine; by default AWS_ENDPOINT_URL_S3, then the job's own.",
        metavar="URL",
    ),
]
PastOption = Annotated[
    bool,
    typer.Option("--past", help="Use the history in the bucket: also jobs that were deleted long ago."),
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="Where past jobs are: their artifacts.uri; by default DTJ_ARTIFACTS, then that of the namespace's "
        "present jobs.",
        metavar="URI",
    ),
]
UidOption = Annotated[
    str, typer.Option("--uid", help="With --past: the begin of the uid, if several jobs have the name.")
]

"""The options that several commands share, the shell's completion of job names, and durations as users write them."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Annotated, Any

import typer

_COMPLETION_SECONDS = 2.0
"""The shell waits at most this long for names after the Tab key."""
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\d+(\.\d+)?|(\d+(\.\d+)?[smhd])+")
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")


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
        help="The artifacts.uri of past jobs; by default the variable DTJ_ARTIFACTS, then the artifacts.uri of the "
        "namespace's jobs.",
        metavar="URI",
    ),
]
UidOption = Annotated[
    str, typer.Option("--uid", help="With --past: the beginning of the uid, if several jobs have the name.")
]


def seconds_of(text: str) -> float:
    """Return the seconds of `90`, `90s`, `10m`, `1h` or `1h30m`. Raises typer.BadParameter for anything else."""
    if not _DURATION.fullmatch(text):
        raise typer.BadParameter(
            f"{text!r} is not a duration: give seconds, or a duration such as 90s, 10m or 1h30m"
        )
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))


TimeoutOption = Annotated[
    float | None,
    typer.Option(
        parser=seconds_of, metavar="DURATION", help="Give up after this: 90s, 10m, 1h; by default never."
    ),
]


def with_fields(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each field of its parameters that are dataclasses."""
    own = inspect.signature(command, eval_str=True)
    blocks: dict[str, Any] = {
        each.name: each.annotation for each in own.parameters.values() if is_dataclass(each.annotation)
    }
    parameters: list[inspect.Parameter] = []
    for each in own.parameters.values():
        block = blocks.get(each.name)
        of_block = inspect.signature(block, eval_str=True).parameters.values() if block else [each]
        parameters += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in of_block]

    @wraps(command)
    def called(**given: Any) -> None:
        made = {
            name: block(**{field.name: given.pop(field.name) for field in fields(block)})
            for name, block in blocks.items()
        }
        command(**given, **made)

    called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return called

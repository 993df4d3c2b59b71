"""The command line of `dtj serve`."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.serving.batching import Limits
from dtj_trainer.serving.errors import ServingError
from dtj_trainer.serving.service import RequestLimits

if TYPE_CHECKING:
    from collections.abc import Sequence

ENV_ACCESS = "DTJ_SERVE_TOKEN"
ABOUT = """Serve models over HTTP.

NAME=FOLDER or NAME=URI is a model that `dtj export` wrote, or the job that has it. The server has TorchServe's routes
(/models, /predictions/NAME) and the Open Inference Protocol (/v2), and looks for newer versions of its models. It
listens on this machine alone unless --host says otherwise. Requests need the bearer token of DTJ_SERVE_TOKEN or
--token-file, if there is one.
"""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MEBIBYTE = 1 << 20


class Misconfigured(ServingError):
    """An option can't be."""

    exit_code = contract.EXIT_CONFIG


@dataclass(frozen=True)
class Options:
    """The command line. `poll` is None if versions are kept."""

    models: dict[str, str]
    host: str
    port: int
    batching: Limits
    requests: RequestLimits
    connections: int
    threads: int
    workers: int
    poll: float | None
    token: str | None


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="dtj serve", description=ABOUT)
    made.add_argument(
        "models", nargs="+", metavar="NAME=FOLDER|URI", help="a name of your choice, and the model or its job"
    )
    made.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all (default: %(default)s)"
    )
    made.add_argument("--port", type=int, default=8080, help="0 for any that is free (default: %(default)s)")
    made.add_argument(
        "--max-batch", type=int, default=32, metavar="N", help="examples of a batch (default: %(default)s)"
    )
    made.add_argument(
        "--max-delay",
        type=float,
        default=2.0,
        metavar="MS",
        help="milliseconds that a batch waits for more requests, if there are several clients (default: %(default)s)",
    )
    made.add_argument(
        "--max-waiting",
        type=int,
        default=256,
        metavar="N",
        help="requests at the same time; others get 429 (default: %(default)s)",
    )
    made.add_argument(
        "--max-body",
        type=int,
        default=16,
        metavar="MIB",
        help="MiB of a request's body (default: %(default)s)",
    )
    made.add_argument(
        "--max-json", type=int, default=4, metavar="MIB", help="MiB of JSON in a body (default: %(default)s)"
    )
    made.add_argument(
        "--max-held",
        type=int,
        default=64,
        metavar="MIB",
        help="MiB of all requests at the same time; others get 429 (default: %(default)s)",
    )
    made.add_argument(
        "--max-pixels",
        type=int,
        default=16_000_000,
        metavar="N",
        help="pixels of a picture (default: %(default)s)",
    )
    made.add_argument(
        "--max-connections", type=int, default=1000, metavar="N", help="others get 503 (default: %(default)s)"
    )
    made.add_argument(
        "--body-timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds in which a request has to arrive (default: %(default)s)",
    )
    made.add_argument("--threads", type=int, help="of one run of a model; by default one a processor")
    made.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="models that run at the same time, --threads each (default: %(default)s)",
    )
    made.add_argument(
        "--poll",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds between looks for a newer version (default: %(default)s)",
    )
    made.add_argument("--pin", action="store_true", help="keep the versions of the start")
    made.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"file with the bearer token, in place of {ENV_ACCESS}",
    )
    return made


def read_options(arguments: Sequence[str] | None) -> Options:
    """Read the command line. Raises Misconfigured, which names the option."""
    given = parser().parse_args(arguments)
    for name in (
        "max_batch",
        "max_waiting",
        "max_body",
        "max_json",
        "max_held",
        "max_pixels",
        "max_connections",
        "workers",
        "poll",
        "body_timeout",
    ):
        if getattr(given, name) <= 0:
            raise Misconfigured(f"--{name.replace('_', '-')}={getattr(given, name)} has to be above 0")
    if given.max_delay < 0:
        raise Misconfigured(f"--max-delay={given.max_delay} has to be 0 or above")
    if given.threads is not None and given.threads < 1:
        raise Misconfigured(f"--threads={given.threads} has to be above 0")
    if given.max_held < given.max_body:
        raise Misconfigured(f"--max-held={given.max_held} has to be at least --max-body={given.max_body}")
    return Options(
        _models(given.models),
        given.host,
        given.port,
        Limits(given.max_batch, given.max_delay / 1000, max(given.max_waiting, given.max_batch)),
        RequestLimits(
            given.max_body * _MEBIBYTE,
            given.max_json * _MEBIBYTE,
            given.body_timeout,
            given.max_pixels,
            given.max_batch,
            given.max_waiting,
            given.max_held * _MEBIBYTE,
        ),
        given.max_connections,
        given.threads or len(os.sched_getaffinity(0)),
        given.workers,
        None if given.pin else given.poll,
        _token(given.token_file),
    )


def _models(given: Sequence[str]) -> dict[str, str]:
    models: dict[str, str] = {}
    for one in given:
        name, equals, uri = one.partition("=")
        if not equals or not uri or not _NAME.fullmatch(name):
            raise Misconfigured(
                f"{one!r} has to be NAME=FOLDER or NAME=URI; a name has at most 63 letters, digits, '.', '_' and '-'"
            )
        if name in models:
            raise Misconfigured(f"the name {name} is given twice")
        models[name] = uri
    return models


def _token(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(ENV_ACCESS) or None
    try:
        token = file.read_text().strip()
    except (OSError, ValueError) as error:
        raise Misconfigured(f"--token-file={file} can't be read: {error}") from error
    if not token:
        raise Misconfigured(f"--token-file={file} is empty")
    return token

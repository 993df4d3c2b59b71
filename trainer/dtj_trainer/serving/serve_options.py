"""The command line of `dtj serve`."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dtj_trainer import contract
from dtj_trainer.contract.program_options import add_options
from dtj_trainer.contract.serve_options import ABOUT_MODELS, ENV_ACCESS, MODELS, OPTIONS, named_models
from dtj_trainer.serving.batching import Limits
from dtj_trainer.serving.errors import ServingError
from dtj_trainer.serving.service import RequestLimits

if TYPE_CHECKING:
    from collections.abc import Sequence

ABOUT = """Serve models over HTTP.

NAME=FOLDER or NAME=URI is a model that `dtj export` wrote, or the job that has it. The server has TorchServe's routes
(/models, /predictions/NAME) and the Open Inference Protocol (/v2), and looks for newer versions of its models. It
listens on this machine alone unless --host says otherwise. Requests need the bearer token of DTJ_SERVE_TOKEN or
--token-file, if there is one.
"""
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
    made.add_argument("models", nargs="+", metavar=MODELS, help=ABOUT_MODELS)
    add_options(made, OPTIONS)
    return made


def read_options(arguments: Sequence[str] | None) -> Options:
    """Read the command line. Raises Misconfigured, which names the option."""
    given = parser().parse_args(arguments)
    for option in OPTIONS:
        value = getattr(given, option.key)
        if value is not None and (fault := option.fault(value)):
            raise Misconfigured(fault)
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
        _token(given.token_file and Path(given.token_file)),
    )


def _models(given: Sequence[str]) -> dict[str, str]:
    try:
        return named_models(given)
    except ValueError as error:
        raise Misconfigured(str(error)) from error


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

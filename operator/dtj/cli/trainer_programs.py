"""Programs of the trainer that commands start as processes, and the options that command and program share.

`dtj` itself never imports the programs. `dtj_trainer.contract` has the tables of options.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, NoReturn

import typer

from dtj.api.errors import DtjError, NotFound, Unreachable, Unusable
from dtj_trainer.contract import EXIT_DATA, S3_SETTINGS
from dtj_trainer.contract.distribution import install_line
from dtj_trainer.contract.program_error import ENV_ERROR_FILE
from dtj_trainer.contract.program_options import Option

STORE_REMEDY = (
    "set AWS_ENDPOINT_URL_S3 or --endpoint to the URL of the store for this machine, and AWS_* to credentials; "
    "add --local for the store of `dtj run`"
)
ERRORS: Mapping[str, tuple[type[DtjError], str | None]] = {
    "ModelMissing": (
        NotFound,
        "give the folder or s3:// prefix of a model or of its job, the name of a job, or with --local that of a run",
    ),
    "ModelDamaged": (Unusable, "`dtj export` writes the model again"),
    "NotExportable": (Unusable, "`dtj export --help` says which models it converts, and has the options"),
    "StoreUnavailable": (Unreachable, STORE_REMEDY),
    "Misconfigured": (Unusable, "`dtj serve --help` has the options"),
    "DataNotFound": (
        NotFound,
        "give the folder or s3:// prefix of a data set in a format of dtj, and a DST that can be written",
    ),
    "DataCorrupt": (
        DtjError,
        "`dtj data check` lists all damaged files, and `dtj data stage --skip-corrupt` leaves them out",
    ),
    "DataTooLarge": (Unusable, None),
    "DataUnavailable": (Unreachable, STORE_REMEDY),
}
"""For each class of error with which a program ends: the class of dtj's error, and the remedy to print."""
_FORWARDED = (signal.SIGINT, signal.SIGTERM)


def need(what: str, modules: Iterable[str], extra: str) -> None:
    """Raise DtjError if a module that `what` needs is missing. extra: the extra of dtj that installs the modules."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise DtjError(f"{what} needs {', '.join(missing)}", install_line(extra))


def command(
    module: str, words: Iterable[str], options: Mapping[str, object], flags: Iterable[str] = ()
) -> list[str]:
    """Return the command line of a program. An option that is None is left out."""
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    rest = list(words)
    return [sys.executable, "-m", module, *given, *flags, *(["--", *rest] if rest else [])]


def run(words: list[str], stores: Iterable[Mapping[str, str]] = ()) -> int:
    """Run a program to its end. Return 0, or EXIT_DATA if the program has printed the faults of a data set.

    stores: the AWS variables for each `s3://` address that the program gets.
    Raises DtjError for the error that ended the program, and Unusable if the stores differ.
    """
    environment = _environment(stores)
    with tempfile.NamedTemporaryFile(prefix="dtj-") as told:
        code = _exit_code(words, {**environment, ENV_ERROR_FILE: told.name})
        name, _, message = told.read().decode().partition(": ")
    if name:
        error, remedy = ERRORS[name]
        raise error(message, remedy)
    if code < 0:
        ended_by = signal.Signals(-code).name
        remedy = "the kernel sends SIGKILL if memory runs out" if -code == signal.SIGKILL else None
        raise DtjError(f"the program {words[2]} was ended by {ended_by}", remedy)
    if code not in (0, EXIT_DATA):
        raise RuntimeError(f"the program {words[2]} ended with exit code {code}")
    return code


def become(words: list[str]) -> NoReturn:
    """Replace this process by a program, which then gets the signals of this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(words[0], words)


def _environment(stores: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the environment of a program that reaches these stores."""
    reached = list(stores)
    if not reached:
        return dict(os.environ)
    if any(store != reached[0] for store in reached):
        raise Unusable(
            "the s3:// addresses are in stores with different endpoints or credentials, and a command uses one store",
            "give the addresses of each store to a command of their own",
        )
    rest = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("AWS_") and name not in S3_SETTINGS
    }
    return {**rest, **reached[0]}


def _exit_code(words: list[str], environment: Mapping[str, str]) -> int:
    """Run a program to its end. The program and its own processes get each signal once, from this process."""
    # Import here: the operator's image contains this module, but of dtj_trainer only the package `contract`.
    from dtj_trainer.parent_death import die_with_parent

    got: list[int] = []

    def forward(number: int, _: object) -> None:
        got.append(number)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    process = subprocess.Popen(
        words,
        env=environment,
        stdin=subprocess.DEVNULL,
        process_group=0,
        preexec_fn=die_with_parent() if sys.platform.startswith("linux") else None,
    )
    previous = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        code = process.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if code and signal.SIGINT in got:
        raise KeyboardInterrupt
    if code and got:
        raise SystemExit(128 + signal.SIGTERM)
    return code


def with_options(options: Sequence[Option]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the options of the program in place of its `**given`."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(function, eval_str=True)
        *named, _ = own.parameters.values()
        added = [
            inspect.Parameter(
                option.key,
                inspect.Parameter.KEYWORD_ONLY,
                default=_default(option),
                annotation=_annotation(option),
            )
            for option in options
        ]
        function.__signature__ = own.replace(parameters=[*named, *added])  # type: ignore[attr-defined]
        return function

    return decorate


def split(options: Sequence[Option], given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the options with a value, and the flags that are on."""
    values = {option.name: given[option.key] for option in options if option.kind is not bool}
    return values, [f"--{option.name}" for option in options if option.kind is bool and given[option.key]]


def _default(option: Option) -> object:
    return False if option.kind is bool else option.default


def _annotation(option: Option) -> object:
    kind: Any = Literal[option.choices] if option.choices else option.kind
    limits: dict[str, Any] = {} if option.least is None else {"min": option.kind(option.least)}
    return Annotated[
        kind if _default(option) is not None else kind | None,
        typer.Option(f"--{option.name}", metavar=option.metavar or None, help=option.about, **limits),
    ]

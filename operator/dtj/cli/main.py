"""The `dtj` command line and its error messages."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from dtj.api.errors import DtjError
from dtj.cli.about import tell_version
from dtj.cli.commands import HELP_NAMES, Commands
from dtj.cli.connection import opened
from dtj.cli.terminal import errors

EXIT_SOFTWARE = 70
"""The exit code of a fault of dtj itself (EX_SOFTWARE in sysexits.h)."""
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="dtj",
    cls=Commands,
    context_settings={"help_option_names": HELP_NAMES},
    help="Distributed deep-learning training: on any GPU cluster, or on this machine.",
    epilog="`dtj COMMAND --help` has examples. Also `kubectl dtj …`.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error.", envvar="DTJ_DEBUG")
    ] = False,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(help="Kubeconfig of the cluster; by default KUBECONFIG, then ~/.kube/config."),
    ] = None,
    _: Annotated[
        bool,
        typer.Option("--version", help="Print the version of dtj.", callback=tell_version, is_eager=True),
    ] = False,
) -> None:
    """Distributed deep-learning training: on any GPU cluster, or on this machine."""
    if debug:
        os.environ["DTJ_DEBUG"] = "1"
    if kubeconfig:
        os.environ["KUBECONFIG"] = str(kubeconfig)


def main() -> NoReturn:
    """Run the console script. Print an error in one line with a remedy, and a traceback only with --debug."""
    # At the default threshold of 700, garbage collections take a quarter of the time of a command's imports.
    gc.set_threshold(10_000)
    try:
        with opened:
            code = app(prog_name=_called(), standalone_mode=False)
    except typer.TyperException as error:
        # Without arguments, typer prints the help and raises an error without a message.
        if message := error.format_message():
            _print_error(message, f"`{_command_path(error)} --help` shows how to use it")
        sys.exit(error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPTED)
    except DtjError as error:
        _raise_if_debugging()
        _print_error(error.message, error.remedy)
        sys.exit(error.exit_code)
    except Exception as error:  # noqa: BLE001 - no caller reports the error
        _raise_if_debugging()
        message = f"an error in dtj itself: {type(error).__name__}: {error}"
        _print_error(message, "`dtj --debug …` shows the traceback; please report it")
        sys.exit(EXIT_SOFTWARE)
    sys.exit(code if isinstance(code, int) else 0)


def _print_error(message: str, remedy: str | None) -> None:
    errors.print(f"dtj: {message}", style="red")
    if remedy:
        errors.print(f"     {remedy}")


def _command_path(error: typer.TyperException) -> str:
    """Return the path of the command that the user called with wrong arguments."""
    context = getattr(error, "ctx", None)
    return str(context.command_path) if context else _called()


def _called() -> str:
    """Return the name of the program in the usage line. kubectl calls its plugin `kubectl-dtj`."""
    return "kubectl dtj" if Path(sys.argv[0]).stem == "kubectl-dtj" else "dtj"


def _raise_if_debugging() -> None:
    if os.environ.get("DTJ_DEBUG"):
        raise

"""`dtj version` and `dtj help`."""

from __future__ import annotations

from typing import Annotated

import typer

import dtj
from dtj.cli.terminal import FormatOption, echo, print_data

app = typer.Typer()


@app.command()
def version(format_: FormatOption = None) -> None:
    """Print the version of dtj.

    ```
    dtj version -o json
    ```

    `dtj doctor` shows the version of a cluster's operator.
    """
    if format_:
        print_data({"version": dtj.__version__}, format_)
    else:
        tell_version(True)


@app.command("help")
def help_(
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(help="The command; by default dtj itself.", metavar="COMMAND")
    ] = None,
) -> None:
    """Show the help of dtj or of a command.

    ```
    dtj help submit
    ```
    """
    root = context.find_root()
    root.command.main([*(words or []), "--help"], prog_name=root.info_name, standalone_mode=False)


def tell_version(wanted: bool) -> None:
    """Print the version of dtj and exit, if wanted."""
    if wanted:
        echo(f"dtj {dtj.__version__}")
        raise typer.Exit

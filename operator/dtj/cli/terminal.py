"""Where commands print: colours for a terminal, plain text or JSON and YAML for a program."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

output = Console(soft_wrap=True)
"""Standard output; rich leaves out colours where it is no terminal, or NO_COLOR is set."""
errors = Console(stderr=True)


class Format(StrEnum):
    """What a machine may read."""

    JSON = "json"
    YAML = "yaml"


FormatOption = Annotated[
    Format | None, typer.Option("--output", "-o", help="Print JSON or YAML instead of a table.")
]


def print_data(data: Mapping[str, Any] | Sequence[Any], format_: Format) -> None:
    """Print data as JSON or YAML."""
    if format_ is Format.JSON:
        typer.echo(json.dumps(data, indent=2))
    else:
        typer.echo(yaml.safe_dump(data, sort_keys=False, width=110), nl=False)

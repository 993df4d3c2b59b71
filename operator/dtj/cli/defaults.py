"""`dtj defaults`."""

from __future__ import annotations

import json
from typing import Any

import typer

from dtj.api.errors import Unreachable
from dtj.cli.connection import connect
from dtj.cli.options import ContextOption, NamespaceOption
from dtj.cli.terminal import FormatOption, columns, errors, print_data, print_table

app = typer.Typer()


@app.command()
def defaults(
    namespace: NamespaceOption = None, context: ContextOption = None, format_: FormatOption = None
) -> None:
    """Show what jobs of scripts and folders get where no option says it.

    Options of `dtj submit` come first, then the user's file, then the ConfigMap dtj-defaults of the namespace.

    ```
    dtj defaults -n ml
    ```
    """
    from dtj.client.defaults import config_file, name_of_config_map, of_file, resolved

    file = config_file()
    sources = [(str(file), of_file(file))]
    try:
        client = connect(namespace, context)
        sources.append((name_of_config_map(client.namespace), client.defaults()))
    except Unreachable as error:
        errors.print(f"the defaults of the namespace can't be read: {error}", style="yellow")
    found = list(resolved(sources).values())
    if format_:
        print_data([{"key": each.key, "value": each.value, "source": each.source} for each in found], format_)
        return
    for source, given in sources:
        if given is None:
            errors.print(f"{source} does not exist", style="dim")
    if found:
        shown = columns("KEY", "VALUE", "SOURCE")
        for each in found:
            shown.add_row(each.key, _text(each.value), each.source)
        print_table(shown)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

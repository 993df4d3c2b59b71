"""`dtj artifacts`: list and copy the objects that a job left in its bucket."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dtj.cli.options import (
    EndpointOption,
    JobNameOrUri,
    with_fields,
)
from dtj.cli.places import PlaceOptions
from dtj.cli.terminal import FormatOption, columns, echo, errors, print_data, print_table, size
from dtj_trainer import contract

app = typer.Typer()
_group = typer.Typer(
    help="List and copy the files of a job in its bucket: checkpoints, model, logs, metrics.",
    no_args_is_help=True,
)
app.add_typer(_group, name="artifacts")
_STANDARD_OUTPUT = "-"


@_group.command()
@with_fields
def ls(
    name: JobNameOrUri,
    *,
    prefix: Annotated[
        str, typer.Argument(help="List only the objects below this folder.", metavar="FOLDER")
    ] = "",
    endpoint: EndpointOption = None,
    where: PlaceOptions,
    format_: FormatOption = None,
) -> None:
    """List the objects of a job in its bucket, with sizes.

    ```
    dtj artifacts ls fashion-mnist
    dtj artifacts ls fashion-mnist checkpoints -o json
    ```

    Keys are relative to the job's own prefix, which the last line shows.
    """
    place = where.find(name, endpoint)
    with place.artifacts(endpoint) as artifacts:
        objects = artifacts.ls(prefix)
    if format_:
        print_data([{"key": item.key, "size": item.size, "etag": item.etag} for item in objects], format_)
        return
    if objects:
        table = columns("SIZE", "KEY", right=("SIZE",))
        for item in objects:
            table.add_row(size(item.size), item.key)
        print_table(table)
    total = f"{len(objects)} objects, {size(sum(item.size for item in objects))}, in {artifacts.uri}"
    errors.print(total)


@_group.command()
@with_fields
def get(
    name: JobNameOrUri,
    *,
    key: Annotated[
        str,
        typer.Argument(help="An object or a folder; by default all objects.", metavar="KEY"),
    ] = "",
    folder: Annotated[
        Path | None,
        typer.Argument(help="Folder to copy to; by default a folder with the name of the job.", metavar="TO"),
    ] = None,
    checkpoint: Annotated[
        int | None,
        typer.Option(
            help="Copy the whole checkpoint of this number, in place of a KEY: the files of a checkpoint may be in "
            "the folders of earlier ones."
        ),
    ] = None,
    endpoint: EndpointOption = None,
    where: PlaceOptions,
) -> None:
    """Copy an object, or all objects below a folder, and print the paths of the files.

    ```
    dtj artifacts get fashion-mnist model
    dtj artifacts get fashion-mnist --checkpoint 938 ./restored
    dtj artifacts get fashion-mnist model --past
    dtj artifacts get fashion-mnist code
    ```

    Below TO, each file has the path of its object in the bucket, or with --checkpoint its path in /dtj/checkpoints.
    The KEY `code` means the files of spec.code. They come from the ConfigMap while the cluster has it: this needs no
    credentials for the bucket.
    """
    if checkpoint is not None and folder is not None:
        raise typer.BadParameter(
            "--checkpoint takes the place of KEY: give only TO, the folder", param_hint="--checkpoint"
        )
    place = where.find(name, endpoint)
    to = folder or Path(name)
    if checkpoint is None and key.strip("/") == contract.CODE:
        files = place.get_code(to, endpoint)
    else:
        with place.artifacts(endpoint) as artifacts:
            files = (
                artifacts.get(key, to)
                if checkpoint is None
                else artifacts.get_checkpoint(checkpoint, Path(key) if key else to)
            )
    for file in files:
        echo(str(file))


@_group.command()
@with_fields
def cp(
    name: JobNameOrUri,
    key: Annotated[str, typer.Argument(help="The object, as `ls` shows it.", metavar="KEY")],
    to: Annotated[
        str, typer.Argument(help="A file or an existing folder; - is standard output.", metavar="TO")
    ],
    *,
    endpoint: EndpointOption = None,
    where: PlaceOptions,
) -> None:
    """Copy one object to a file, or to standard output.

    ```
    dtj artifacts cp fashion-mnist model/model.pt .
    dtj artifacts cp fashion-mnist metrics.jsonl - | tail -1
    ```

    An existing file is replaced.
    """
    place = where.find(name, endpoint)
    with place.artifacts(endpoint) as artifacts:
        if to == _STANDARD_OUTPUT:
            sys.stdout.buffer.write(artifacts.read(key))
        else:
            echo(str(artifacts.cp(key, to)))

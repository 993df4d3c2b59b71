"""`dtj data`: prepare and check data sets, by programs of the trainer that run as processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from dtj.api.errors import Unreachable, Unusable
from dtj.cli.options import EndpointOption
from dtj.cli.places import store_of
from dtj.cli.trainer_programs import STORE_REMEDY, command, need, run

app = typer.Typer()
_group = typer.Typer(
    help="Write data sets as shards with an index, and check data sets.", no_args_is_help=True
)
app.add_typer(_group, name="data")

_NEEDED = ("boto3", "numpy", "PIL")
Processes = Annotated[
    int | None, typer.Option(min=1, help="Number of processes; by default one a processor.", metavar="N")
]
LocalOption = Annotated[
    bool, typer.Option("--local", help="s3:// addresses are in the embedded store of `dtj run`.")
]


@_group.command()
def stage(
    source: Annotated[
        str, typer.Argument(help="s3://bucket/prefix, file:///folder or a path: the set.", metavar="SRC")
    ],
    target: Annotated[
        str | None,
        typer.Argument(
            help="Where to write; without it, the shards at SRC stay as they are and get an index.",
            metavar="DST",
        ),
    ] = None,
    shard_megabytes: Annotated[int, typer.Option(min=1, help="Size of a shard, about.")] = 128,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the order of the examples.")] = 1,
    processes: Processes = None,
    size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Resize the shorter side of pictures to so many pixels, and cut out the middle; by default "
            "pictures stay as they are.",
        ),
    ] = None,
    channels: Annotated[
        int | None,
        typer.Option(
            min=1, max=3, help="1 for grey pictures, 3 for colours; by default 3 for picture files."
        ),
    ] = None,
    classes: Annotated[
        str,
        typer.Option(help="Names of the classes to take, separated by commas; by default all classes."),
    ] = "",
    skip_corrupt: Annotated[
        bool, typer.Option("--skip-corrupt", help="Leave out examples that can't be read, and name them.")
    ] = False,
    endpoint: EndpointOption = None,
    local: LocalOption = False,
) -> None:
    """Write a data set as shuffled tar shards with an index.

    ```
    dtj data stage ./fruits-360 s3://datasets/fruits-360
    dtj data stage s3://datasets/webdataset
    ```

    A job with the URI of the shards as `spec.data.uri` reads the shards block by block. The same command again
    continues an interrupted run. Needs the extra `trainer`.
    """
    if target is None and (classes or size):
        option = "--classes" if classes else "--size"
        raise Unusable(
            f"{option} changes the examples, and without DST the shards at SRC stay as they are",
            "give a DST for the changed data set",
        )
    if channels == 2:
        raise Unusable("--channels 2 is not possible: an image is grey (1) or in colours (3)", "give 1 or 3")
    options: dict[str, object] = {
        "shard-megabytes": shard_megabytes,
        "seed": seed,
        "processes": processes,
        "size": size,
        "channels": channels,
        "classes": classes or None,
    }
    flags = ["--skip-corrupt"] if skip_corrupt else []
    uris = [source] if target is None else [source, target]
    _run("stage", uris, options, flags, local=local, endpoint=endpoint)


@_group.command()
def check(
    uri: Annotated[
        str, typer.Argument(help="s3://bucket/prefix, file:///folder or a path: the set.", metavar="URI")
    ],
    processes: Processes = None,
    endpoint: EndpointOption = None,
    local: LocalOption = False,
) -> None:
    """Read a data set to its end, and name each shard and picture that is damaged.

    ```
    dtj data check s3://datasets/fruits-360
    ```

    The exit code is 1 when something is damaged. Needs the extra `trainer`.
    """
    _run("check", [uri], {"processes": processes}, local=local, endpoint=endpoint)


def _run(
    program: str,
    uris: list[str],
    options: dict[str, object],
    flags: Iterable[str] = (),
    *,
    local: bool,
    endpoint: str | None,
) -> None:
    need("dtj data", _NEEDED, "trainer")
    stores = [_reached(uri, local, endpoint) for uri in uris if uri.startswith("s3://")]
    # A code other than 0 means that the program has found, and printed, faults of the data set.
    raise typer.Exit(1 if run(command(f"dtj_trainer.data.{program}", uris, options, flags), stores) else 0)


def _reached(uri: str, local: bool, endpoint: str | None) -> dict[str, str]:
    """Return the AWS variables for an address, and check by a request that the store answers. Raises Unreachable.

    Without this check, the programs would wait minutes for a store that does not answer, and would report a refused
    access as a missing data set.
    """
    from dtj_trainer.artifacts.s3 import S3Error
    from dtj_trainer.artifacts.store import open_store

    environment = store_of(uri, local=local, endpoint=endpoint)
    try:
        next(iter(open_store(uri, environment).objects()), None)
    except S3Error as error:
        raise Unreachable(str(error), STORE_REMEDY) from error
    return environment

"""`dtj export`: trained models in the form that `dtj serve` takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from dtj.api.errors import DtjError
from dtj.api.names import is_dns_label
from dtj.cli.connection import opened
from dtj.cli.options import ContextOption, EndpointOption, LocalOption, NamespaceOption, complete_name
from dtj.cli.places import find, store_of
from dtj.cli.trainer_programs import command, need, run, split, with_options
from dtj_trainer.contract.export_options import ABOUT_PLACE, OPTIONS, PLACE

app = typer.Typer()

_FOR_EXPORT = ("boto3", "numpy", "onnx", "onnxruntime")


@app.command()
@with_options(OPTIONS)
def export(
    place: Annotated[
        str,
        typer.Argument(
            help=f"{ABOUT_PLACE} Or the name of a job; a folder of that name goes before, without --local.",
            metavar=f"{PLACE}|JOB",
            autocompletion=complete_name,
        ),
    ],
    *,
    endpoint: EndpointOption = None,
    local: LocalOption = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    **given: Any,
) -> None:
    """Convert a trained model to ONNX, for `dtj serve`.

    ```
    dtj export ./model --labels labels.txt
    dtj export s3://training/jobs/ml/fashion-mnist-1a2b3c4d
    dtj export fashion-mnist --local
    ```

    The place is the folder of a job or of a model: `model.pt2` or `model.keras` of the built-in programs, or one
    `*.pt2`, `*.keras` or SavedModel of another program. Loading a model runs its code: export only models that you
    trust. Needs the extra `export`, and the framework of the model.
    """
    need("dtj export", _FOR_EXPORT, "export")
    stores: list[Mapping[str, str]] = []
    if place.startswith("s3://"):
        stores = [store_of(place, local=local, endpoint=endpoint)]
    elif is_dns_label(place) and (local or not Path(place).is_dir()):
        try:
            found = find(place, local=local, namespace=namespace, context=context)
        except DtjError as error:
            message = error.message if local else f"there is no folder {place}, and {error.message}"
            raise type(error)(message, error.remedy) from error
        artifacts = opened.enter_context(found.artifacts(endpoint))
        place, stores = artifacts.uri, [artifacts.environment]
    run(command("dtj_trainer.serving.export", [place], *split(OPTIONS, given)), stores)

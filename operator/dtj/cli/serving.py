"""`dtj export`: trained models in the form that `dtj serve` takes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dtj.cli.program_options import split, with_options
from dtj.cli.trainer_programs import command, need, run
from dtj_trainer.contract.export_options import ABOUT_PLACE, OPTIONS, PLACE

app = typer.Typer()

_FOR_EXPORT = ("boto3", "numpy", "onnx", "onnxruntime")


@app.command()
@with_options(OPTIONS)
def export(place: Annotated[str, typer.Argument(help=ABOUT_PLACE, metavar=PLACE)], **given: Any) -> None:
    """Convert a trained model to ONNX, for `dtj serve`.

    ```
    dtj export ./model --labels labels.txt
    dtj export s3://training/jobs/ml/fashion-mnist-1a2b3c4d
    ```

    The place is the folder of a job or of a model: `model.pt2` or `model.keras` of the built-in programs, or one
    `*.pt2`, `*.keras` or SavedModel of another program. Loading a model runs its code: export only models that you
    trust. Needs the extra `export`, and the framework of the model.
    """
    need("dtj export", _FOR_EXPORT, "export")
    raise typer.Exit(run(command("dtj_trainer.serving.export", [place], *split(OPTIONS, given))))

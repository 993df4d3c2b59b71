"""`dtj export`: trained models in the form that `dtj serve` takes."""

from __future__ import annotations

from typing import Annotated

import typer

from dtj.cli.trainer_programs import command, need, run

app = typer.Typer()

_FOR_EXPORT = ("boto3", "numpy", "onnx", "onnxruntime")


@app.command()
def export(
    place: Annotated[
        str, typer.Argument(help="A path, file:///folder or s3://bucket/prefix.", metavar="FOLDER|URI")
    ],
    labels: Annotated[
        str | None,
        typer.Option(help="Names of the classes, separated by commas, or a file with one in each line."),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            help="NCHW or NHWC: the axes of a picture; by default as its channels are.", metavar="AXES"
        ),
    ] = None,
    range_: Annotated[
        str | None,
        typer.Option("--range", help="Of the pixels that the model takes, as 0,1.", metavar="LOW,HIGH"),
    ] = None,
    mean: Annotated[
        str | None, typer.Option(help="Of each channel, on the scale of --range, to subtract.", metavar="M,…")
    ] = None,
    deviation: Annotated[
        str | None,
        typer.Option(help="Of each channel, on the scale of --range, to divide by.", metavar="D,…"),
    ] = None,
    invert: Annotated[
        bool, typer.Option("--invert", help="The model was trained on inverted pictures.")
    ] = False,
    output: Annotated[
        str | None,
        typer.Option(help="logits or probabilities; by default as the outputs look.", metavar="MEANING"),
    ] = None,
) -> None:
    """Convert a trained model to ONNX, for `dtj serve`.

    ```
    dtj export ./model --labels labels.txt
    dtj export s3://training/jobs/ml/fashion-mnist-1a2b3c4d
    ```

    The place is the folder of a job or of a model: `model.pt2` or `model.keras` of the built-in programs, or one
    `*.pt2`, `*.keras` or SavedModel of another program. Loading a model runs its code: export only models that you
    trust. Needs `pip install 'dtj[export]'`, and the framework of the model.
    """
    need("dtj export", _FOR_EXPORT, "export")
    options = {
        "labels": labels,
        "layout": layout,
        "range": range_,
        "mean": mean,
        "deviation": deviation,
        "output": output,
    }
    flags = ["--invert"] if invert else []
    raise typer.Exit(run(command("dtj_trainer.serving.export", [place], options, flags)))

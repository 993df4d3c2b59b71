"""`dtj export` and `dtj serve`: trained models over HTTP, by programs of the trainer that run as processes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dtj.cli.trainer_programs import become, command, need, run

app = typer.Typer()

_FOR_EXPORT = ("boto3", "numpy", "onnx", "onnxruntime")
_FOR_SERVE = (
    "PIL",
    "boto3",
    "fastapi",
    "numpy",
    "onnxruntime",
    "prometheus_client",
    "python_multipart",
    "uvicorn",
)


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


@app.command()
def serve(
    models: Annotated[
        list[str],
        typer.Argument(help="A name of your choice, and the model or its job.", metavar="NAME=FOLDER|URI"),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for all addresses of the machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free.")] = 8080,
    max_batch: Annotated[int, typer.Option(min=1, help="Examples of a batch.", metavar="N")] = 32,
    max_delay: Annotated[
        float, typer.Option(min=0, help="Milliseconds that a batch waits for more requests.", metavar="MS")
    ] = 2.0,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Requests at the same time; others get 429.", metavar="N")
    ] = 256,
    max_body: Annotated[int, typer.Option(min=1, help="MiB of a request's body.", metavar="MIB")] = 16,
    max_json: Annotated[int, typer.Option(min=1, help="MiB of JSON in a body.", metavar="MIB")] = 4,
    max_held: Annotated[
        int, typer.Option(min=1, help="MiB of all requests at the same time; others get 429.", metavar="MIB")
    ] = 64,
    max_pixels: Annotated[int, typer.Option(min=1, help="Pixels of a picture.", metavar="N")] = 16_000_000,
    max_connections: Annotated[
        int, typer.Option(min=1, help="Connections at the same time; others get 503.", metavar="N")
    ] = 1000,
    body_timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds in which a request has to arrive.", metavar="S")
    ] = 30.0,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Of one run of a model; by default one a processor.", metavar="N"),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Models that run at the same time, --threads each.", metavar="N")
    ] = 1,
    poll: Annotated[
        float, typer.Option(min=0.001, help="Seconds between looks for a newer version.", metavar="S")
    ] = 30.0,
    pin: Annotated[bool, typer.Option("--pin", help="Keep the versions of the start.")] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the bearer token; by default DTJ_SERVE_TOKEN.", metavar="FILE"),
    ] = None,
) -> None:
    """Serve trained models over HTTP, on this machine or in a pod.

    ```
    dtj serve vgg=./model
    dtj serve vgg=s3://training/jobs/ml/vgg-1a2b3c4d shirts=./shirts --port 8081
    curl http://127.0.0.1:8080/predictions/vgg -T kitten.jpg
    ```

    The models are those that `dtj export` wrote. The command runs until Ctrl-C. Needs `pip install 'dtj[serving]'`.
    """
    need("dtj serve", _FOR_SERVE, "serving")
    options = {
        "host": host,
        "port": port,
        "max-batch": max_batch,
        "max-delay": max_delay,
        "max-waiting": max_waiting,
        "max-body": max_body,
        "max-json": max_json,
        "max-held": max_held,
        "max-pixels": max_pixels,
        "max-connections": max_connections,
        "body-timeout": body_timeout,
        "threads": threads,
        "workers": workers,
        "poll": poll,
        "token-file": token_file,
    }
    become(command("dtj_trainer.serving.serve", models, options, ["--pin"] if pin else []))

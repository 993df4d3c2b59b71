"""`dtj serve`: trained models over HTTP, by a program of the trainer, or as objects for a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from dtj.api.errors import Unusable
from dtj.api.names import is_dns_label
from dtj.cli.connection import opened
from dtj.cli.options import ContextOption, LocalOption, RegistryOption, complete_name
from dtj.cli.places import find, store_of
from dtj.cli.terminal import echo
from dtj.cli.trainer_programs import command, need, run, split, with_options
from dtj_trainer.contract import serve_options
from dtj_trainer.contract.serve_options import ABOUT_MODELS, MODELS, OPTIONS

app = typer.Typer()

_NEEDED = (
    "PIL",
    "boto3",
    "fastapi",
    "google_crc32c",
    "httptools",
    "numpy",
    "onnxruntime",
    "prometheus_client",
    "python_multipart",
    "simplejpeg",
    "uvicorn",
)
_PANEL = "With --manifest"


def _manifest_option(*names: str, about: str, metavar: str | None = None, **limits: Any) -> Any:
    return typer.Option(*names, help=about, metavar=metavar, rich_help_panel=_PANEL, **limits)


@app.command()
@with_options(OPTIONS)
def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            help=f"{ABOUT_MODELS} The name of a job, or its prefix in the bucket (s3://…), is enough.",
            metavar=f"JOB|{MODELS}",
            autocompletion=complete_name,
        ),
    ],
    *,
    local: LocalOption = False,
    endpoint: Annotated[
        str | None,
        typer.Option(
            help="URL of the S3 store for this machine, as for `dtj artifacts`; with --manifest that for the pods.",
            metavar="URL",
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            help="Namespace of the jobs, by default that of the context; with --manifest: of the printed objects.",
            metavar="NAME",
        ),
    ] = None,
    context: ContextOption = None,
    manifest: Annotated[
        bool,
        _manifest_option(
            "--manifest", about="Print a Deployment, a Service and a PodDisruptionBudget; serve nothing."
        ),
    ] = False,
    kserve: Annotated[
        bool, _manifest_option("--kserve", about="Print an InferenceService of KServe instead.")
    ] = False,
    name: Annotated[
        str | None,
        _manifest_option(
            about="Name of the objects; by default the first model's name with -serve.", metavar="NAME"
        ),
    ] = None,
    image: Annotated[
        str | None,
        _manifest_option(about="Image of the server; default: dtj-serve of this version.", metavar="IMAGE"),
    ] = None,
    registry: RegistryOption = None,
    replicas: Annotated[int | None, _manifest_option(about="Pods; 2 by default.", metavar="N", min=1)] = None,
    cpus: Annotated[
        int | None, _manifest_option(about="Processors of a pod; 1 by default.", metavar="N", min=1)
    ] = None,
    memory: Annotated[
        str | None, _manifest_option(about="Memory of a pod; 2Gi by default.", metavar="QUANTITY")
    ] = None,
    secret: Annotated[
        str | None,
        _manifest_option(about="Secret with the variables of S3, as artifacts.secretName.", metavar="NAME"),
    ] = None,
    service_account: Annotated[
        str | None,
        _manifest_option(about="ServiceAccount of the pods, if it has access to the bucket.", metavar="NAME"),
    ] = None,
    **given: Any,
) -> None:
    """Serve trained models over HTTP, on this machine or in a pod.

    ```
    dtj serve vgg
    dtj serve fashion-mnist --local
    dtj serve vgg=./model
    dtj serve vgg=s3://training/jobs/ml/vgg-1a2b3c4d shirts=./shirts --port 8081
    curl http://127.0.0.1:8080/predictions/vgg -T kitten.jpg
    dtj serve vgg=s3://training/jobs/ml/vgg-1a2b3c4d --manifest --secret s3 | kubectl apply --filename -
    ```

    The models are those that `dtj export` wrote. The command runs until Ctrl-C. Needs the extra `serving`,
    except with --manifest.
    """
    of_the_manifest: dict[str, Any] = {
        "name": name,
        "image": image,
        "replicas": replicas,
        "cpus": cpus,
        "memory": memory,
        "secret": secret,
        "service_account": service_account,
    }
    asked = {key: value for key, value in of_the_manifest.items() if value is not None}
    if manifest:
        if local:
            raise Unusable(
                "--local can't be used with --manifest: a pod can't reach the store of this machine",
                "leave out one of them",
            )
        of_both = {"namespace": namespace, "endpoint": endpoint}
        asked |= {key: value for key, value in of_both.items() if value is not None}
        echo(_manifests(models, given, asked, registry=registry, kserve=kserve).rstrip())
        return
    if asked or kserve:
        first = "kserve" if kserve else next(iter(asked)).replace("_", "-")
        raise Unusable(f"--{first} has an effect only with --manifest", "add --manifest")
    need("dtj serve", _NEEDED, "serving")
    named, stores = list[str](), list[Mapping[str, str]]()
    for word in models:
        if "=" in word:
            uri = word.partition("=")[2]
            if uri.startswith("s3://"):
                stores.append(store_of(uri, local=local, endpoint=endpoint))
            named.append(word)
            continue
        if not (is_dns_label(word) or word.startswith("s3://")):
            raise Unusable(
                f"{word!r} has to be the name of a job, NAME=FOLDER or NAME=URI",
                "`dtj serve --help` has examples",
            )
        place = find(word, local=local, namespace=namespace, context=context)
        artifacts = opened.enter_context(place.artifacts(endpoint))
        stores.append(artifacts.environment)
        named.append(f"{place.job().name}={artifacts.uri}")
    run(command("dtj_trainer.serving.serve", named, *split(OPTIONS, given)), stores)


def _manifests(
    models: list[str],
    given: Mapping[str, Any],
    asked: dict[str, Any],
    *,
    registry: str | None,
    kserve: bool,
) -> str:
    # Import here: the server starts faster without the pydantic models of the job, which only --manifest needs.
    from dtj.api.identity import own_image
    from dtj.api.yaml_text import dump_all
    from dtj.plan import model_server

    try:
        uris = serve_options.named_models(models)
    except ValueError as error:
        raise Unusable(str(error)) from error
    own = {option.key: option.default for option in OPTIONS}
    if given["host"] != own["host"]:
        raise Unusable("--host can't be used with --manifest: a pod listens on all its addresses")
    if given["token_file"] is not None:
        raise Unusable(
            "--token-file can't be used with --manifest: a pod can't read a file of this machine",
            f"put the token into the Secret of --secret, as {serve_options.ENV_ACCESS}",
        )
    if given["max_held"] < given["max_body"]:
        raise Unusable(f"--max-held {given['max_held']} has to be at least --max-body {given['max_body']}")
    threads = given["threads"] or max(1, asked.get("cpus", 1) // given["workers"])
    changed = {
        key: value for key, value in given.items() if key not in ("port", "threads") and value != own[key]
    } | {"threads": threads}
    options, flags = split(OPTIONS, {**dict.fromkeys(own), **changed})
    server = model_server.ModelServer(
        **{
            "name": model_server.default_name(uris),
            "image": own_image(model_server.IMAGE, registry),
            **asked,
        },
        models=uris,
        port=given["port"],
        options=(*(f"--{name}={value}" for name, value in options.items() if value is not None), *flags),
    )
    if wrong := list(model_server.faults(server)):
        raise Unusable("\n".join(wrong))
    if kserve:
        return dump_all([model_server.inference_service(server)])
    return dump_all(model_server.objects(server))

"""`dtj ui`: a page of the user's jobs, on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from dtj.api.errors import Unusable
from dtj.cli.options import ContextOption, FromOption, NamespaceOption
from dtj.cli.trainer_programs import become, command, need

app = typer.Typer()


@app.command()
def ui(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: one that is free.")] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")
    ] = True,
    from_: FromOption = None,
    local: Annotated[
        bool,
        typer.Option("--local", help="Show the jobs of `dtj run` on this machine, not those of a cluster."),
    ] = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Show the jobs of a cluster or of this machine in the browser.

    ```
    dtj ui
    dtj ui --port 8100 --no-browser
    dtj ui --local
    dtj ui --from s3://training/jobs
    ```

    The page has the rights of your kubeconfig, and changes jobs of a cluster. `--local`, and `--from` for past jobs,
    need no kubeconfig. The page answers on 127.0.0.1 alone, and only at the address that the
    command prints. The command runs until Ctrl-C. Needs the extra `ui`.
    """
    if local and (from_ or context):
        raise Unusable(
            f"--local and {'--from' if from_ else '--context'} exclude each other", "leave out one of them"
        )
    need("dtj ui", ("fastapi", "uvicorn"), "ui")
    options = {"port": port, "from": from_, "namespace": namespace, "context": context}
    flags = {"--no-browser": not browser, "--local": local}
    become(command("dtj.ui", (), options, (flag for flag, given in flags.items() if given)))

"""`dtj ui`: a page of the user's jobs, on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from dtj.cli.connection import ContextOption, FromOption, NamespaceOption
from dtj.cli.trainer_programs import become, command, need

app = typer.Typer()


@app.command()
def ui(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: one that is free.")] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")
    ] = True,
    from_: FromOption = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Show the jobs of a cluster in the browser, and change them there.

    ```
    dtj ui
    dtj ui --port 8100 --no-browser
    ```

    The page has the rights of your kubeconfig. It answers on 127.0.0.1 alone, and only at the address that the
    command prints. The command runs until Ctrl-C. Needs the extra `ui`.
    """
    need("dtj ui", ("fastapi", "uvicorn"), "ui")
    options = {"port": port, "from": from_, "namespace": namespace, "context": context}
    become(command("dtj.ui", (), options, () if browser else ("--no-browser",)))

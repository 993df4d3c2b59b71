"""Commands on the jobs of a cluster."""

from __future__ import annotations

import typer

app = typer.Typer()

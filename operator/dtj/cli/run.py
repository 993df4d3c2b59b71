"""Commands that carry a job out on this machine."""

from __future__ import annotations

import typer

app = typer.Typer()

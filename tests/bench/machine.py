"""A description of the machine that ran a benchmark."""

from __future__ import annotations

import datetime
import os
import platform


def machine() -> str:
    """What it ran on."""
    return (
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {os.cpu_count()} cores ({platform.machine()}), "
        f"Python {platform.python_version()}, load before {os.getloadavg()[0]:.1f}"
    )

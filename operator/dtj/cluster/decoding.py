"""Decodes JSON from the API server without blocking the event loop."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from dtj.api.nesting import read_json


async def decoded(text: str | bytes) -> Any:
    """Return the result of `read_json`. A thread reads JSON that is nested too deeply for `json.loads`."""
    try:
        return json.loads(text)
    except RecursionError:
        return await asyncio.to_thread(read_json, text)

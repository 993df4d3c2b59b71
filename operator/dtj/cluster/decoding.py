"""JSON of the API server, read in the event loop."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from dtj.api.nesting import read_json


async def decoded(text: str | bytes) -> Any:
    """The result of `read_json`. Text that is nested too deeply for `json.loads` is read in a thread."""
    try:
        return json.loads(text)
    except RecursionError:
        return await asyncio.to_thread(read_json, text)

"""JSON of the API server, read in the event loop."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from dtj.api.nesting import read_json


async def decoded(text: str | bytes) -> Any:
    """As `read_json`; what takes that longer than Python's own does not hold the event loop."""
    try:
        return json.loads(text)
    except RecursionError:
        return await asyncio.to_thread(read_json, text)

"""How deeply data may be nested: Python reads, compares and writes data of some 1,000 levels at most.

An API server stores up to 10,000 levels in a pod template, of which the resource's schema says nothing.
"""

from __future__ import annotations

import json
import re
from typing import Any

MOST_LEVELS = 100
"""The number of lists and maps that may be nested in a job. The job itself counts as one."""
TOO_DEEP = f"nested too deeply: more than {MOST_LEVELS} lists and maps in one another"
# `read_json` cuts a text at this level. The level is above MOST_LEVELS: a job that was cut still counts as too deep,
# even inside a list of jobs or a watch event.
_READ_LEVELS = 2 * MOST_LEVELS
# The level beyond which `read_json` refuses a text. An API server sends at most 10,000 levels.
_STORED_LEVELS = 20_000
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]', re.DOTALL)


def read_json(text: str | bytes | bytearray) -> Any:
    """JSON as data. Raises ValueError.

    Where the text is nested more deeply than Python can read, null stands for what is at more than 200 levels: one
    object in a list must not keep the others from being read. What was cut must not be written back.
    """
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(_cut(text if isinstance(text, str) else text.decode()))


def end_of_value(text: str, begin: int) -> int | None:
    """Return the end of the list or map that begins at `begin`; None if the text ends first."""
    level = 0
    for token in _TOKENS.finditer(text, begin):
        match token[0]:
            case "{" | "[":
                level += 1
            case "}" | "]":
                level -= 1
                if level == 0:
                    return token.end()
    return None


def _cut(text: str) -> str:
    kept: list[str] = []
    level = begin = 0
    for token in _TOKENS.finditer(text):
        match token[0]:
            case "{" | "[":
                level += 1
                if level == _READ_LEVELS + 1:
                    kept.append(text[begin : token.start()])
                elif level > _STORED_LEVELS:
                    raise ValueError(
                        f"the JSON text has more than {_STORED_LEVELS} lists and maps in one another"
                    )
            case "}" | "]":
                level -= 1
                if level == _READ_LEVELS:
                    kept.append("null")
                    begin = token.end()
    if level > _READ_LEVELS:
        raise ValueError("the JSON text ends before all its lists and maps are closed")
    return "".join([*kept, text[begin:]])

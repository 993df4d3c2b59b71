"""Evaluates the subset of CEL that the CRD's rules use, by translation to Python."""

from __future__ import annotations

import re
from typing import Any

_PATH = r"(?:self|oldSelf)(?:\.\w+)+"
_CHOICE = re.compile(r"\(((?:[^?()]|\([^()]*\))*) \? ([^:()]*) : ([^:()]*)\)")


def holds(rule: str, new: Any, old: Any) -> bool:
    """Return whether an update complies with a rule; False when the rule reads a missing field."""
    python = _CHOICE.sub(r"((\2) if (\1) else (\3))", rule)
    python = re.sub(rf"has\(({_PATH})\)", r"has('\1')", python)
    python = re.sub(rf"(?<!')({_PATH})(?!')", r"at('\1')", python)
    python = re.sub(r"!(?!=)", " not ", python.replace("&&", " and ").replace("||", " or "))
    objects = {"self": new, "oldSelf": old}

    def at(path: str) -> Any:
        first, *names = path.split(".")
        value = objects[first]
        for name in names:
            value = value[name]
        return value

    def has(path: str) -> bool:
        parent, name = path.rsplit(".", 1)
        return name in (at(parent) if "." in parent else objects[parent])

    try:
        return bool(eval(python.strip(), {"__builtins__": {}}, {"at": at, "has": has}))
    except KeyError:
        return False

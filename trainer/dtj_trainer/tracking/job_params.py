"""Parameters of a run from the options of the job's command."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from dtj_trainer import contract

_OPTION = re.compile(r"--?([A-Za-z][\w-]*)(?:=(.*))?", re.DOTALL)


def options_of(words: Sequence[str]) -> dict[str, str]:
    """Return the options `--name=value`, `--name value` and `--name` among some words, by name."""
    found: dict[str, str] = {}
    for word, after in zip(words, [*words[1:], "-"], strict=True):
        if (match := _OPTION.fullmatch(word)) and match[1] != "m":
            value = match[2] if match[2] is not None else "true" if after.startswith("-") else after
            found[match[1]] = value
    return found


def job_params(config_dir: Path) -> dict[str, str]:
    """Return the options of the job's command and args, and its image; nothing where the job file can't be read."""
    try:
        spec: dict[str, Any] = yaml.safe_load((config_dir / contract.JOB_FILE).read_text())["spec"]
        words = [str(word) for word in (*spec.get("command", ()), *spec.get("args", ()))]
        return {"image": str(spec.get("image", "")), **options_of(words)}
    except (OSError, yaml.YAMLError, TypeError, KeyError, ValueError, AttributeError):
        return {}

"""How a container starts, and the ConfigMap with its start scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files

from dtj.api.job import Job, Manifest, written
from dtj.api.yaml_text import dump
from dtj.plan.pods import metadata
from dtj.plan.recipe import START_SCRIPT
from dtj_trainer import contract

_MOST_REMEMBERED = 4_096
"""Characters of the longest job file whose YAML is cached. Thousands of longer files could exhaust the memory."""
START = ("/bin/sh", str(contract.CONFIG_DIR / START_SCRIPT))
"""The command of every container, before the words of the program."""


def config_map(job: Job, extra: Mapping[str, str]) -> Manifest:
    """Return the ConfigMap mounted at /etc/dtj: the start script, the job file, and what the strategy adds."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, job.config_map),
        "data": {
            **extra,
            START_SCRIPT: script(START_SCRIPT),
            contract.JOB_FILE: _job_file(job),
        },
    }


def _job_file(job: Job) -> str:
    text = json.dumps(written(job))
    return _as_yaml(text) if len(text) <= _MOST_REMEMBERED else _as_yaml.__wrapped__(text)


@lru_cache(maxsize=2048)
def _as_yaml(job: str) -> str:
    """Convert a job from JSON to YAML. The conversion takes most of the time of a plan, so results are cached."""
    return dump(json.loads(job), width=80)


@cache
def script(name: str) -> str:
    """Read a shell script of this package."""
    return files("dtj.plan").joinpath("scripts", name).read_text()

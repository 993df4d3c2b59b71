"""How a container starts, and the ConfigMap with its start scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files

from dtj.api.job import Job, Manifest, written
from dtj.api.names import config_name
from dtj.api.yaml_text import dump
from dtj.plan.pods import metadata, trainer_container
from dtj_trainer import contract

START_SCRIPT = "start.sh"
"""The key of the start script in the ConfigMap."""
_MOST_REMEMBERED = 4_096
"""Longer job files are not cached, because thousands of jobs may be as large as the API server accepts."""
START = ("/bin/sh", str(contract.CONFIG_DIR / "start.sh"))
"""The command of every container, before the words of the program."""


def started(pod: Manifest, program: Sequence[str]) -> Manifest:
    """Make the container of a pod start these words, and return the container.

    dtj-launch also starts a role's own command, so that its artifacts and its exit code are handled as for others.
    """
    container = trainer_container(pod)
    container["command"] = [*START, *program]
    container.pop("args", None)
    return container


def config_map(job: Job, extra: Mapping[str, str], name: str | None = None) -> Manifest:
    """Return the ConfigMap mounted at /etc/dtj: the start script, the job file, and what the strategy adds."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, name or config_name(job.name)),
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
    """Cached, because it is most of the work of a plan: 20 MB of texts at most."""
    return dump(json.loads(job), width=80)


@cache
def script(name: str) -> str:
    """Read a shell script of this package."""
    return files("dtj.plan").joinpath("scripts", name).read_text()

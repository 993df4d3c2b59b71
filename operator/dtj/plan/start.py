"""How a container starts, and the ConfigMap that says so."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import yaml

from dtj.api.job import Job, Manifest, written
from dtj.api.names import config_name
from dtj.plan.pods import metadata
from dtj_trainer import contract

# In C where PyYAML was built with it, as in its wheels: this is a good part of the work of a plan.
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
START = ("/bin/sh", str(contract.CONFIG_DIR / "start.sh"))
"""What every container runs; the program's words follow."""


def config_map(job: Job, strategys_own: Mapping[str, str], name: str | None = None) -> Manifest:
    """The ConfigMap mounted at /etc/dtj: the start script, the job as written, and what its strategy adds."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, name or config_name(job.name)),
        "data": {
            **strategys_own,
            "start.sh": script("start.sh"),
            contract.JOB_FILE: yaml.dump(written(job), Dumper=_DUMPER, sort_keys=False),
        },
    }


@cache
def script(name: str) -> str:
    """A shell script of this package."""
    return files("dtj.plan").joinpath("scripts", name).read_text()

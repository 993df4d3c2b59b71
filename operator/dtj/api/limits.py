"""What can't run on any cluster: a variable that no process takes, a list that no object holds."""

from __future__ import annotations

import json
from collections.abc import Iterator

from dtj.api.job import Fault, Job

VARIABLE_BYTES = 128 * 1024
"""Of one NAME=value of a process's environment with its end: MAX_ARG_STRLEN of Linux."""
CONFIG_BYTES = 1024 * 1024
"""Of the values of a ConfigMap."""
# The start scripts and ssh's settings, which are in it too.
_SCRIPTS_BYTES = 32 * 1024


def size_faults(job: Job) -> Iterator[Fault]:
    """Why a job of this size can never run."""
    replicas = job.spec.replica_specs.given()
    largest = max(replicas, key=lambda role: replicas[role].replicas, default=None)
    if largest is None:
        return
    where = f"spec.replicaSpecs.{largest}.replicas"
    rules = job.spec.rules
    listed = rules.peer_list_bytes(job)
    if rules.peer_list_variable is not None and listed > VARIABLE_BYTES:
        yield Fault(
            where,
            f"too many: {rules.peer_list_variable}, which names every replica, would have {listed:,} bytes, and a "
            f"process takes a variable of {VARIABLE_BYTES:,} bytes at most; ask for fewer replicas, or use shorter "
            "names",
        )
        return
    size = listed + len(json.dumps(job.spec.model_dump(by_alias=True, exclude_unset=True)))
    if size + _SCRIPTS_BYTES > CONFIG_BYTES:
        yield Fault(
            where if listed * 2 > size else "spec",
            f"too large: the job's ConfigMap, which names every replica and holds the spec, would have "
            f"{size + _SCRIPTS_BYTES:,} bytes, and may have {CONFIG_BYTES:,}",
        )

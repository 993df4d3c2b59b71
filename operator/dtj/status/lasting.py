"""Failures that recur in every attempt: the image lacks a Python module, or the archive of the code is unusable."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from dtj.api.job import Job
from dtj.api.pod_template import own_program
from dtj.api.spec import ReplicaSpec
from dtj.api.status import ArtifactsStatus, Failure, ProgressStatus
from dtj.api.unreadable import AnyJob
from dtj_trainer.contract.failure_class import FailureClass

REMEDY = "a retry would fail too: add the module to the image, or, for dtj run, to this Python environment"
_PYTHON = re.compile(r"python[\d.]*")
# Types of volumes that have the same files in each attempt, or none.
_CONSTANT_VOLUMES = frozenset({"configMap", "secret", "downwardAPI", "projected", "emptyDir"})


def is_lasting(
    job: AnyJob, failure: Failure, progress: ProgressStatus | None, artifacts: ArtifactsStatus | None
) -> bool:
    """Return whether the next attempt would lack the same module.

    A job that has made a step or a checkpoint had all modules. For any other job, the first failure is enough if
    modules can only come from the image. If a shell, an init container or a volume may provide modules, the previous
    attempt must have lacked the same module.

    failure: the failure of the present attempt. progress, artifacts: the merged reports of all attempts.
    """
    if failure.failure_class != FailureClass.MODULE_NOT_FOUND:
        return False
    if (progress is not None and progress.step) or (
        artifacts is not None and artifacts.checkpoint is not None
    ):
        return False
    before = job.status.failure
    again = before is not None and (before.failure_class, before.message) == (
        FailureClass.MODULE_NOT_FOUND,
        failure.message,
    )
    return again or _is_from_image_alone(job)


def _is_from_image_alone(job: AnyJob) -> bool:
    if not isinstance(job, Job):
        return False
    roles = [*job.spec.replica_specs.with_pods().values()]
    programs = [own_program(role)[0] for role in roles]
    commands = [command or job.spec.own_command for command in programs] or [job.spec.own_command]
    return all(map(_is_python, commands)) and not any(map(_brings_files, roles))


def _is_python(command: object) -> bool:
    # A user may have edited the spec of the running job to any value.
    word = command[0] if isinstance(command, list) and command else None
    return isinstance(word, str) and _PYTHON.fullmatch(PurePosixPath(word).name) is not None


def _brings_files(role: ReplicaSpec) -> bool:
    """Return whether the role's template has init containers, or volumes whose files may change."""
    pod = role.template.get("spec")
    if not isinstance(pod, Mapping):
        return False
    return bool(pod.get("initContainers")) or any(
        not _CONSTANT_VOLUMES & volume.keys() for volume in _volumes(pod)
    )


def _volumes(pod: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    volumes = pod.get("volumes")
    yield from (
        volume for volume in (volumes if isinstance(volumes, list) else ()) if isinstance(volume, Mapping)
    )

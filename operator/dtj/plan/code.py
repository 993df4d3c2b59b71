"""The parts of a plan for `spec.code`: volumes and variables for the archives, and a wrapper of commands.

`plan.pods` and `plan.record` add these parts to pods.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from dtj.api.git_annotations import git_state_of
from dtj.api.job import Job, Manifest
from dtj.api.pod_template import CODE_VOLUME, PACKAGES_VOLUME, TRAINER_CONTAINER
from dtj.api.spec import Code, Packages
from dtj.plan.recipe import File, Text
from dtj_trainer import contract

IN_CODE = ("dtj-launch", "command", "--")
"""The words before a command that replaces dtj's start script: dtj-launch runs the command in the code's folder."""


class _Archive(NamedTuple):
    of: Code | Packages
    volume: str
    mounted: PurePosixPath
    file: str
    source: str
    """The variable with the archive's path or URI."""
    digest: str
    """The variable with the archive's digest."""


def _archives(job: Job) -> Iterator[_Archive]:
    if (code := job.spec.code) is None:
        return
    variables = (contract.ENV_CODE_ARCHIVE, contract.ENV_CODE_DIGEST)
    yield _Archive(code, CODE_VOLUME, contract.CODE_DIR, contract.CODE_FILE, *variables)
    if code.packages is not None:
        variables = (contract.ENV_PACKAGES_ARCHIVE, contract.ENV_PACKAGES_DIGEST)
        yield _Archive(
            code.packages, PACKAGES_VOLUME, contract.PACKAGES_DIR, contract.PACKAGES_FILE, *variables
        )


def code_environment(job: Job, *, cached: bool) -> dict[str, Text]:
    """Return the variables by which dtj-launch finds the archives; none without `spec.code`.

    cached: whether the pod has the volume of `spec.data.cache`.
    """
    variables: dict[str, Text] = {}
    for archive in _archives(job):
        variables[archive.source] = archive.of.uri or File(archive.mounted, archive.file)
        variables[archive.digest] = archive.of.digest
    if variables and (state := git_state_of(job.annotations)):
        variables[contract.ENV_CODE_COMMIT] = state["commit"]
    cache = job.cache if cached and contract.ENV_PACKAGES_ARCHIVE in variables else None
    # No cache of packages in an emptyDir: it ends with its pod, and its sizeLimit has room for blocks of data only.
    if cache is not None and cache.empty_dir is None:
        variables[contract.ENV_PACKAGES_CACHE] = str(contract.ROOT / contract.DATA_CACHE / contract.PACKAGES)
    return variables


def code_pod_spec(job: Job) -> Manifest:
    """Return the fields of a pod spec that mount the ConfigMaps of the archives; none without one."""
    mounts, volumes = [], []
    for archive in _archives(job):
        if archive.of.config_map is not None:
            mounts.append({"name": archive.volume, "mountPath": str(archive.mounted), "readOnly": True})
            volumes.append({"name": archive.volume, "configMap": {"name": archive.of.config_map}})
    if not mounts:
        return {}
    return {"containers": [{"name": TRAINER_CONTAINER, "volumeMounts": mounts}], "volumes": volumes}


def before_own_command(job: Job) -> tuple[str, ...]:
    """Return the words before a role's own command that dtj's start script does not run: the command runs in the
    folder of the code.
    """
    return IN_CODE if job.spec.code is not None else ()


def path_over_ssh(job: Job) -> str:
    """Return the value of PYTHONPATH in an ssh session; empty without `spec.code`."""
    if (code := job.spec.code) is None:
        return ""
    names = [contract.CODE, *([contract.PACKAGES] if code.packages else [])]
    return ":".join(str(contract.ROOT / name) for name in names)

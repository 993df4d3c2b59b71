"""What pods of a job with `spec.code` have: the archive, its variables, a launcher's own command in its folder."""

from __future__ import annotations

from dtj.api.git_annotations import git_state_of
from dtj.api.job import Job, Manifest
from dtj.api.pod_template import CODE_VOLUME, TRAINER_CONTAINER, own_program
from dtj.api.spec import ReplicaSpec
from dtj_trainer import contract

IN_CODE = ("dtj-launch", "command", "--")
"""Before the words of a command that dtj's start script does not run."""


def code_environment(job: Job) -> dict[str, str]:
    """Return the variables by which dtj-launch finds the archive; none without `spec.code`."""
    code = job.spec.code
    if code is None:
        return {}
    archive = code.uri or str(contract.CODE_DIR / contract.CODE_FILE)
    state = git_state_of(job.annotations)
    return {
        contract.ENV_CODE_ARCHIVE: archive,
        contract.ENV_CODE_DIGEST: code.digest,
        **({contract.ENV_CODE_COMMIT: state["commit"]} if state else {}),
    }


def code_pod_spec(job: Job) -> Manifest:
    """Return the fields of a pod spec that mount the ConfigMap of the archive; none without one."""
    code = job.spec.code
    if code is None or code.config_map is None:
        return {}
    mount = {"name": CODE_VOLUME, "mountPath": str(contract.CODE_DIR), "readOnly": True}
    return {
        "containers": [{"name": TRAINER_CONTAINER, "volumeMounts": [mount]}],
        "volumes": [{"name": CODE_VOLUME, "configMap": {"name": code.config_map}}],
    }


def run_in_code(job: Job, replica: ReplicaSpec, container: Manifest) -> None:
    """Make a container run in the folder of the code, if the container has a command of its own."""
    if job.spec.code is not None and own_program(replica)[0]:
        container["command"] = [*IN_CODE, *container["command"]]

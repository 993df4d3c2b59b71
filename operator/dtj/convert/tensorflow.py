"""TFJob with parameter servers as strategy ParameterServer."""

from __future__ import annotations

from dataclasses import replace

from dtj.api.job import Manifest
from dtj.convert.form import Replica, TFJobSpec
from dtj.convert.notes import Notes
from dtj.convert.replicas import Role, common_spec, read_role
from dtj.convert.run_policy import other_role_restarts, retries_of

_PATH = "spec.tfReplicaSpecs"
_ROLES = {"chief": "chief", "master": "chief", "worker": "worker", "ps": "ps", "evaluator": "evaluator"}


def parameter_server_spec(spec: TFJobSpec, policy: Manifest, notes: Notes) -> tuple[Manifest, Manifest]:
    """Spec and run policy of the job; the notes say why where it can't be one."""
    roles: dict[str, Role] = {}
    replicas: dict[str, Replica] = {}
    for key, replica in spec.tf_replica_specs.items():
        name = _ROLES.get(key.lower())
        if name is None or name in roles:
            notes.refuse(f"{_PATH}.{key}", None, "no role that dtj has, or given twice")
        elif replica.replicas:
            roles[name] = read_role(name, f"{_PATH}.{key}", replica, "tensorflow", notes)
            replicas[name] = replica
            if key.lower() == "master":
                notes.tell(f"{_PATH}.{key}", "Master", "now the chief, also in TF_CONFIG")
    _tell_of_the_rest(spec, notes)
    if "worker" not in roles or "ps" not in roles:
        notes.refuse(
            _PATH,
            ", ".join(spec.tf_replica_specs) or None,
            "has no PS or no Worker: dtj's ParameterServer needs both, and workers alone "
            "(MultiWorkerMirroredStrategy) have no strategy in this version",
        )
        return {}, policy
    for name in ("chief", "evaluator"):
        if name in roles and roles[name].replicas > 1:
            notes.tell(f"{roles[name].path}.replicas", roles[name].replicas, f"now 1: there is one {name}")
            roles[name].replicas = 1
    decisive = "chief"
    if "chief" not in roles:
        decisive = "worker"
        _make_chief_of_worker_0(roles, notes)
    for name, replica in replicas.items():
        if name == decisive:
            policy = retries_of(replica.restart_policy, roles[name].path, policy, notes)
        else:
            other_role_restarts(replica.restart_policy, roles[name].path, notes)
    for role in roles.values():
        if not role.program[0]:
            notes.refuse(
                f"{role.path}.template.spec.containers[tensorflow].command",
                role.program[1] or None,
                "required: dtj starts the program itself, not the image's entrypoint; write that as the command",
            )
    ordered = [roles[name] for name in ("chief", "worker", "ps", "evaluator") if name in roles]
    return {"strategy": "ParameterServer", **common_spec(ordered, notes)}, policy


def _make_chief_of_worker_0(roles: dict[str, Role], notes: Notes) -> None:
    worker = roles["worker"]
    if worker.replicas < 2:
        notes.refuse(
            f"{worker.path}.replicas",
            worker.replicas,
            "must be 2 or more without a Chief: worker 0 becomes dtj's chief, and one worker more is needed",
        )
        return
    notes.tell(
        f"{worker.path}.replicas",
        worker.replicas,
        f"now 1 chief (worker 0 in the TFJob) and {worker.replicas - 1} worker(s), also in TF_CONFIG",
    )
    worker.replicas -= 1
    roles["chief"] = replace(worker, name="chief", replicas=1)


def _tell_of_the_rest(spec: TFJobSpec, notes: Notes) -> None:
    for key, value in spec.rest.items():
        if key == "successPolicy":
            if value:
                notes.tell(f"spec.{key}", value, "left out: the job succeeds with its chief")
        elif key == "enableDynamicWorker":
            notes.tell(f"spec.{key}", value, "left out: the number of workers is fixed while a job runs")
        else:
            notes.tell(f"spec.{key}", value, "left out: no field of a TFJob that dtj knows")

"""TFJob with parameter servers as strategy ParameterServer."""

from __future__ import annotations

from dtj.api.job import Manifest
from dtj.convert.form import Replica, TFJobSpec
from dtj.convert.notes import Notes
from dtj.convert.replicas import Role, common_spec, read_role
from dtj.convert.run_policy import Defaults, other_role_restarts, retries_of
from dtj.convert.security import secure

_PATH = "spec.tfReplicaSpecs"
_ROLES = ("chief", "worker", "ps", "evaluator")
_IN_ITS_PLACE = (
    "dtj converts such jobs in a later release. If the program takes a chief, as tf.distribute does, write it as a "
    "TFJob with a Chief, and convert that"
)


def parameter_server_spec(
    spec: TFJobSpec, policy: Manifest, defaults: Defaults, notes: Notes
) -> tuple[Manifest, Manifest]:
    """Spec and run policy of the job; the notes say why where it can't be one."""
    roles: dict[str, Role] = {}
    replicas: dict[str, Replica] = {}
    for key, replica in spec.tf_replica_specs.items():
        name = key.lower()
        if name == "master" and replica.replicas:
            notes.refuse(
                f"{_PATH}.{key}",
                None,
                "TF_CONFIG would call it chief, in cluster and task, where the program sees a master now. "
                f"{_IN_ITS_PLACE}",
            )
        elif name == "master":
            continue
        elif name not in _ROLES or name in roles:
            notes.refuse(f"{_PATH}.{key}", None, "no role that dtj has, or given twice")
        elif replica.replicas:
            roles[name] = read_role(name, f"{_PATH}.{key}", replica, "tensorflow", notes)
            replicas[name] = replica
    _tell_of_the_rest(spec, notes)
    _refuse_another_cluster(spec, roles, notes)
    if not roles:
        return {}, policy
    for name in ("chief", "evaluator"):
        if name in roles and roles[name].replicas > 1:
            notes.tell(f"{roles[name].path}.replicas", roles[name].replicas, f"now 1: there is one {name}")
            roles[name].replicas = 1
    if "evaluator" in roles:
        notes.tell(
            roles["evaluator"].path,
            None,
            "no longer in the cluster of TF_CONFIG, where TensorFlow expects no evaluator; its own task stays",
        )
    for name, replica in replicas.items():
        if name == "chief":
            policy = retries_of(replica.restart_policy, roles[name].path, policy, defaults, notes)
        else:
            other_role_restarts(replica.restart_policy, roles[name].path, notes)
    for role in roles.values():
        if not role.program[0]:
            notes.refuse(
                f"{role.path}.template.spec.containers[tensorflow].command",
                role.program[1] or None,
                "required: dtj starts the program itself, not the image's entrypoint; write that as the command",
            )
    ordered = [roles[name] for name in _ROLES if name in roles]
    secure(ordered, False, notes)
    return {"strategy": "ParameterServer", **common_spec(ordered)}, policy


def _refuse_another_cluster(spec: TFJobSpec, roles: dict[str, Role], notes: Notes) -> None:
    """A program sees the cluster in TF_CONFIG: where dtj's would be another, nobody can say what it does."""
    given = ", ".join(spec.tf_replica_specs) or None
    if "worker" not in roles or "ps" not in roles:
        notes.refuse(
            _PATH,
            given,
            "has no PS or no Worker: dtj's ParameterServer needs both. Workers alone (MultiWorkerMirroredStrategy) "
            "have no strategy in this version; a later release brings one",
        )
    elif "chief" not in roles and not notes.refused:
        notes.refuse(
            _PATH,
            given,
            "has no Chief: worker 0 would become the task chief of TF_CONFIG, which programs that make a ClusterSpec "
            f"of ps and worker do not know. {_IN_ITS_PLACE}",
        )


def _tell_of_the_rest(spec: TFJobSpec, notes: Notes) -> None:
    for key, value in spec.rest.items():
        if key == "successPolicy":
            if value:
                notes.tell(f"spec.{key}", value, "left out: the job succeeds with its chief")
        elif key == "enableDynamicWorker":
            notes.tell(
                f"spec.{key}",
                value,
                "left out: the number of workers is fixed while a job runs, and TF_CONFIG names all of them",
            )
        else:
            notes.tell(f"spec.{key}", value, "left out: no field of a TFJob that dtj knows")

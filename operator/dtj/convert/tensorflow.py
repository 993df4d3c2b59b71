"""Conversion of a TFJob to strategy ParameterServer."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dtj.api.job import Manifest
from dtj.api.parameter_server import CHIEF, EVALUATOR, MASTER, PARAMETER_SERVER, WORKER
from dtj.convert.kind import KindRules, OriginalJob
from dtj.convert.kubeflow_fields import KubeflowReplica, TFJobSpec
from dtj.convert.notes import Notes
from dtj.convert.replicas import ConvertedRole, common_spec, read_role, refuse_entrypoint, secure
from dtj.convert.run_policy import VersionDefaults, other_role_restarts, retries_of

_PATH = "spec.tfReplicaSpecs"
_TRAINER = "tensorflow"
"""The name of the container that trains."""


def is_lone_leader(roles: Collection[str]) -> bool:
    """Return whether a chief or a master is the only role with replicas.

    Kubeflow sets no TF_CONFIG in a job of one pod. In dtj, worker 0 of a job without other replicas has no TF_CONFIG.
    """
    return len(roles) == 1 and not {CHIEF, MASTER}.isdisjoint(roles)


def parameter_server_spec(
    source: OriginalJob, spec: TFJobSpec, policy: Manifest, notes: Notes
) -> tuple[Manifest, Manifest]:
    """Return spec and run policy of the job. If the job can't be converted, the notes have the reasons."""
    replicas = _roles_with_replicas(spec, notes)
    roles = {
        name: read_role(name, f"{_PATH}.{key}", replica, _TRAINER, notes, source.command)
        for name, (key, replica) in replicas.items()
    }
    _note_other_fields(spec, notes)
    _refuse_unsupported_roles(spec, roles, notes)
    alone = is_lone_leader(roles)
    if WORKER not in roles and not alone:
        return {}, policy
    _note_single_roles(roles, notes)
    leader = next((name for name in (CHIEF, MASTER) if name in roles), WORKER)
    for name, (_, replica) in replicas.items():
        if name == leader:
            policy = retries_of(replica.restart_policy, roles[name].path, policy, source.defaults, notes)
        else:
            other_role_restarts(replica.restart_policy, roles[name].path, notes)
    _require_commands(roles, notes)
    if alone:
        notes.add(
            roles[leader].path,
            None,
            f"becomes {WORKER}, the only pod; as in Kubeflow, the program gets no TF_CONFIG",
        )
        roles[leader].name = WORKER
    ordered = [roles[name] for name in PARAMETER_SERVER.roles if name in roles]
    secure(ordered, False, notes)
    dtj_spec = {"strategy": PARAMETER_SERVER.name, **common_spec(ordered)}
    if alone or leader == WORKER:
        dtj_spec["replicaSpecs"] = {CHIEF: {"replicas": 0}, **dtj_spec["replicaSpecs"]}
    return dtj_spec, policy


def _roles_with_replicas(spec: TFJobSpec, notes: Notes) -> dict[str, tuple[str, KubeflowReplica]]:
    """Return the key in the input and the replicas of each role, by the name of the role in TF_CONFIG."""
    present: dict[str, tuple[str, KubeflowReplica]] = {}
    for key, replica in spec.tf_replica_specs.items():
        name = key.lower()
        if name not in PARAMETER_SERVER.roles:
            notes.refuse(f"{_PATH}.{key}", None, "a TFJob has no such role")
        elif name in present:
            notes.refuse(f"{_PATH}.{key}", None, f"the job has the role {present[name][0]} already")
        elif replica.replicas:
            present[name] = key, replica
    return present


def _refuse_unsupported_roles(spec: TFJobSpec, roles: Mapping[str, ConvertedRole], notes: Notes) -> None:
    if WORKER not in roles and not is_lone_leader(roles):
        notes.refuse(
            _PATH,
            ", ".join(spec.tf_replica_specs) or None,
            "must have Worker: strategy ParameterServer requires workers; without Worker, dtj converts only a job "
            "whose single role is Chief or Master",
        )
    if CHIEF in roles and MASTER in roles:
        notes.refuse(
            roles[MASTER].path, None, "the job has a Chief already: Master is an older name of Chief"
        )


def _note_single_roles(roles: Mapping[str, ConvertedRole], notes: Notes) -> None:
    for name in (CHIEF, MASTER, EVALUATOR):
        if name in roles and roles[name].replicas > 1:
            notes.add(
                f"{roles[name].path}.replicas", roles[name].replicas, f"now 1: a job has one {name} at most"
            )
            roles[name].replicas = 1
    if EVALUATOR in roles:
        notes.add(
            roles[EVALUATOR].path,
            None,
            "no longer in the cluster of TF_CONFIG, where TensorFlow expects no evaluator; the evaluator keeps its "
            "own task",
        )


def _require_commands(roles: Mapping[str, ConvertedRole], notes: Notes) -> None:
    for role in roles.values():
        if not role.program[0]:
            refuse_entrypoint(role, f"{role.path}.template.spec.containers[{_TRAINER}].command", notes)


def _note_other_fields(spec: TFJobSpec, notes: Notes) -> None:
    for key, value in spec.rest.items():
        if key == "successPolicy":
            if value:
                notes.add(
                    f"spec.{key}",
                    value,
                    "left out: the job succeeds with its chief or master, or with worker 0 if the job has neither",
                )
        elif key == "enableDynamicWorker":
            notes.add(
                f"spec.{key}",
                value,
                "left out: the number of workers is fixed while a job runs, and TF_CONFIG names all of them",
            )
        else:
            notes.add(f"spec.{key}", value, "left out: dtj does not support this field of a TFJob")


TF_JOB = KindRules(
    strategy=PARAMETER_SERVER,
    field="tfReplicaSpecs",
    form=TFJobSpec,
    convert=parameter_server_spec,
    # Defaults from https://github.com/kubeflow/training-operator v0.5.3 and v1.8.1, pkg/apis.
    versions={
        "v1alpha2": VersionDefaults("Running"),
        "v1beta1": VersionDefaults("Running"),
        "v1beta2": VersionDefaults("Running"),
        "v1": VersionDefaults("None"),
    },
    newest="v1",
)

"""Conversion of a PyTorchJob to strategy TorchDistributed: the master is worker 0."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dtj.api.job import Manifest
from dtj.api.torch_command import launchers_in
from dtj.api.torch_distributed import TORCH_DISTRIBUTED
from dtj.convert.kind import KindRules, OriginalJob
from dtj.convert.kubeflow_fields import KubeflowReplica, PyTorchJobSpec
from dtj.convert.notes import Notes
from dtj.convert.replicas import ConvertedRole, read_role
from dtj.convert.run_policy import VersionDefaults, other_role_restarts, retries_of
from dtj.convert.torch import Asked, read_torchrun, torch_spec

_PATH = "spec.pytorchReplicaSpecs"
_TRAINER = "pytorch"
"""The name of the container that trains."""
_COMPARED = {
    "image": "image",
    "env": "env",
    "resources": "resources",
    "resources.limits": "accelerators",
}
"""Attributes of a role that the templates of Master and Worker must share, by field."""
_MASTER, _WORKER = "master", "worker"


def torch_distributed_spec(
    source: OriginalJob, spec: PyTorchJobSpec, policy: Manifest, notes: Notes
) -> tuple[Manifest, Manifest]:
    """Return spec and run policy of the job. If the job can't be converted, the notes have the reasons."""
    replicas = _roles_with_replicas(spec, notes)
    _settle_other_fields(spec, notes)
    if not replicas:
        notes.refuse(_PATH, ", ".join(spec.pytorch_replica_specs) or None, "must have Master or Worker")
        return {}, policy
    roles = {
        name: read_role(name, f"{_PATH}.{key}", replica, _TRAINER, notes, source.command)
        for name, (key, replica) in replicas.items()
    }
    leader = _MASTER if _MASTER in roles else _WORKER
    policy = retries_of(
        replicas[leader][1].restart_policy, roles[leader].path, policy, source.defaults, notes
    )
    if leader == _MASTER:
        _settle_master(roles, notes)
    worker = roles.get(_WORKER, roles[leader])
    if leader == _MASTER and worker.name == _WORKER:
        other_role_restarts(replicas[_WORKER][1].restart_policy, worker.path, notes)
    alone = leader == _WORKER and worker.replicas > 1
    words = [*worker.program[0], *worker.program[1]]
    if alone and words and not launchers_in(words):
        notes.refuse(
            worker.path,
            None,
            "without Master, Kubeflow gives the workers no RANK and no MASTER_ADDR, and each trains by itself: write "
            "one worker as Master to train together",
        )
    asked = Asked(str(spec.nproc_per_node or "auto"), "spec.nprocPerNode", python_is_rank=True)
    return torch_spec(worker, asked, notes), policy


def _roles_with_replicas(spec: PyTorchJobSpec, notes: Notes) -> dict[str, tuple[str, KubeflowReplica]]:
    """Return the key in the input and the replicas of each role, by the name of the role."""
    present: dict[str, tuple[str, KubeflowReplica]] = {}
    for key, replica in spec.pytorch_replica_specs.items():
        name = key.lower()
        if name not in (_MASTER, _WORKER):
            notes.refuse(f"{_PATH}.{key}", None, "a PyTorchJob has no such role")
        elif name in present:
            notes.refuse(f"{_PATH}.{key}", None, f"the job has the role {present[name][0]} already")
        elif replica.replicas:
            present[name] = key, replica
    return present


def _settle_master(roles: dict[str, ConvertedRole], notes: Notes) -> None:
    """Make the master worker 0, if master and workers have the same template. Otherwise refuse the conversion."""
    master, worker = roles[_MASTER], roles.get(_WORKER)
    if master.replicas != 1:
        notes.refuse(f"{master.path}.replicas", master.replicas, "must be 1")
    ends = (
        "the job succeeds when every worker has ended with exit code 0, and a PyTorchJob when its master has"
    )
    if worker is None:
        notes.add(master.path, None, "now worker 0, the only worker")
        return
    for field, own, other in _differences(master, worker):
        notes.refuse(
            f"{master.path}.template.spec.{field}",
            own,
            f"differs from {worker.path}, which has {json.dumps(other)}: the master is worker 0 in dtj, and all "
            "workers have the same template",
        )
    if master.template.get("metadata") != worker.template.get("metadata"):
        notes.add(
            f"{master.path}.template.metadata",
            master.template.get("metadata"),
            f"left out: all workers have the metadata of {worker.path}",
        )
    notes.add(master.path, None, f"now worker 0 of {worker.replicas + 1} workers; {ends}")
    worker.replicas += 1


def _differences(master: ConvertedRole, worker: ConvertedRole) -> Iterator[tuple[str, Any, Any]]:
    """Yield each field in which the templates differ, with the value of both."""
    own_words, other_words = _without_place(master), _without_place(worker)
    if own_words != other_words:
        yield f"containers[{_TRAINER}].command", own_words, other_words
    for name, attribute in _COMPARED.items():
        own, other = getattr(master, attribute), getattr(worker, attribute)
        if own != other:
            yield f"containers[{_TRAINER}].{name}", own, other
    for prefix, own, other in (
        (f"containers[{_TRAINER}].", master.container, worker.container),
        ("", master.template.get("spec", {}), worker.template.get("spec", {})),
    ):
        for name in sorted({*own, *other}):
            if own.get(name) != other.get(name):
                yield f"{prefix}{name}", own.get(name), other.get(name)


def _without_place(role: ConvertedRole) -> list[str]:
    """Return command and args, without the options of torchrun that differ by node."""
    words = [*role.program[0], *role.program[1]]
    torchrun = read_torchrun(words)
    return words if torchrun is None else torchrun.command


def _settle_other_fields(spec: PyTorchJobSpec, notes: Notes) -> None:
    for key, value in spec.rest.items():
        if key == "elasticPolicy":
            notes.refuse(
                f"spec.{key}",
                value,
                "elastic: the number of workers is fixed in strategy TorchDistributed, which has no elastic training "
                "yet; remove the field, and set Worker.replicas",
            )
        else:
            notes.add(f"spec.{key}", value, "left out: dtj does not support this field of a PyTorchJob")


PYTORCH_JOB = KindRules(
    strategy=TORCH_DISTRIBUTED,
    field="pytorchReplicaSpecs",
    form=PyTorchJobSpec,
    convert=torch_distributed_spec,
    # Defaults from https://github.com/kubeflow/training-operator v1.9.0, pkg/apis.
    versions={"v1": VersionDefaults("None", restart_policy="OnFailure")},
    newest="v1",
)

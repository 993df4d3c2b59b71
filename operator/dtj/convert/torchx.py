"""Conversion of torchx's dist.ddp, as `torchx run --dryrun -s kubernetes` prints it, to strategy TorchDistributed.

The input is a job of Volcano with one task for each node. Source: torchx 0.7, schedulers/kubernetes_scheduler.py and
components/dist.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from dtj.api.job import Manifest
from dtj.api.torch_distributed import TORCH_DISTRIBUTED
from dtj.convert.kind import KindRules, OriginalJob
from dtj.convert.kubeflow_fields import KubeflowObject, Template, WorkerSpec
from dtj.convert.notes import Notes
from dtj.convert.replicas import read_role
from dtj.convert.run_policy import VersionDefaults
from dtj.convert.torch import Asked, Torchrun, read_torchrun, torch_spec

_LABELS = "torchx.pytorch.org/"
_OF_ONE_NODE = (f"{_LABELS}replica-id", "app.kubernetes.io/managed-by")
"""Labels that differ by node, or that name torchx as the owner of the pods."""
_RANK_0 = "TORCHX_RANK0_HOST"
_OF_VOLCANO = re.compile(r"\$[({]?(?:VC_\w+|VK_\w+|TORCHX_RANK0_HOST)")
_REQUEST = "=== SCHEDULER REQUEST ===\n"
_SHM = "dshm"
"""The volume for /dev/shm, which every pod of dtj has."""


class _Task(KubeflowObject):
    name: str
    replicas: int = 1
    min_available: int | None = None
    policies: tuple[dict[str, Any], ...] = ()
    template: Template


class _VolcanoJob(KubeflowObject):
    tasks: tuple[_Task, ...] = ()
    queue: str | None = None
    max_retry: int = 3
    priority_class_name: str | None = None
    ttl_seconds_after_finished: int | None = None


def without_report(text: str) -> str:
    """Return the job in the output of `torchx run --dryrun`, with unchanged line numbers; other text as it is."""
    report, found, job = text.partition(_REQUEST)
    return "\n" * (report + found).count("\n") + job if found else text


def of_equal_tasks(manifest: Manifest, _: Sequence[Manifest], notes: Notes) -> Manifest | None:
    """Return the tasks of the job as one spec of equal workers."""
    spec = _VolcanoJob.model_validate(manifest.get("spec"))
    calls = [_torchrun(task) for task in spec.tasks]
    torchrun = calls[0] if calls else None
    if torchrun is None or None in calls:
        notes.refuse(
            "spec.tasks",
            ", ".join(task.name for task in spec.tasks) or None,
            "no equivalent: of Volcano's jobs, dtj converts those of torchx's dist.ddp, whose tasks are labeled "
            f"{_LABELS}version and run torchrun",
        )
        return None
    written = [_for_dtj(task, call) for task, call in zip(spec.tasks, calls, strict=True) if call]
    for task, other in zip(spec.tasks[1:], written[1:], strict=True):
        for field in _differences(written[0], other):
            notes.refuse(
                f"spec.tasks[{task.name}].template.{field}",
                None,
                f"differs from task {spec.tasks[0].name}: all workers of dtj have the same template",
            )
    for task in spec.tasks:
        if task.min_available == 0 or task.replicas != 1:
            notes.refuse(
                f"spec.tasks[{task.name}]",
                f"minAvailable {task.min_available}, replicas {task.replicas}",
                "elastic: the number of workers is fixed in dtj; write -j <nodes>x<procs>",
            )
    if _OF_VOLCANO.search(" ".join(torchrun.command)):
        notes.refuse(
            "spec.tasks",
            " ".join(torchrun.command),
            "uses a variable that Volcano sets and dtj does not: remove it",
        )
    return {**manifest, "spec": _worker_spec(spec, written[0], torchrun, notes)}


def _torchrun(task: _Task) -> Torchrun | None:
    labels = task.template.metadata.labels
    container = task.template.spec.containers[0]
    if f"{_LABELS}version" not in labels:
        return None
    return read_torchrun([*container.command, *container.args])


def _for_dtj(task: _Task, torchrun: Torchrun) -> Manifest:
    """Return the pod template of a task without fields that differ by node, or that torchx adds for Volcano."""
    template = task.template.model_dump(by_alias=True, exclude_unset=True)
    for label in _OF_ONE_NODE:
        template["metadata"]["labels"].pop(label, None)
    container = template["spec"]["containers"][0]
    container |= {"name": "trainer", "command": torchrun.command, "args": []}
    container["env"] = [v for v in container.get("env", []) if v["name"] != _RANK_0]
    container["ports"] = [port for port in container.get("ports", []) if port.get("name") != "c10d"]
    for holder, key in ((template["spec"], "volumes"), (container, "volumeMounts")):
        entries = holder.get(key)
        if isinstance(entries, list):
            holder[key] = [e for e in entries if not (isinstance(e, dict) and e.get("name") == _SHM)]
    return {
        **template,
        "spec": {key: value for key, value in template["spec"].items() if value not in ({}, [])}
        | {"containers": [{k: v for k, v in container.items() if v not in ({}, [])}]},
    }


def _differences(first: Manifest, other: Manifest) -> Iterator[str]:
    yield from _differing("metadata", first.get("metadata", {}), other.get("metadata", {}))
    yield from _differing("spec", first["spec"], other["spec"])


def _differing(path: str, first: Manifest, other: Manifest) -> Iterator[str]:
    for key in sorted({*first, *other}):
        if first.get(key) != other.get(key):
            if key == "containers":
                yield from _differing(f"{path}.containers[0]", first[key][0], other[key][0])
            else:
                yield f"{path}.{key}"


def _worker_spec(spec: _VolcanoJob, template: Manifest, torchrun: Torchrun, notes: Notes) -> Manifest:
    task = spec.tasks[0]
    notes.add(
        "spec.tasks.template.spec.containers.command",
        " ".join(torchrun.left_out),
        f"left out: torchrun has the operator's variables PET_*, with PET_NNODES: {len(spec.tasks)}",
    )
    restarts = any(policy.get("action") == "RestartJob" for policy in task.policies)
    policy: Manifest = {"backoffLimit": spec.max_retry if restarts else 0}
    if spec.ttl_seconds_after_finished is not None:
        policy["ttlSecondsAfterFinished"] = spec.ttl_seconds_after_finished
    scheduling = {"gang": "Volcano"}
    scheduling |= {"queue": spec.queue} if spec.queue else {}
    scheduling |= {"priorityClassName": spec.priority_class_name} if spec.priority_class_name else {}
    shown = ", ".join(f"{key}: {value}" for key, value in scheduling.items())
    notes.add("spec.tasks.template.metadata.labels", None, f"left out: {' and '.join(_OF_ONE_NODE)}")
    notes.add("spec.queue", spec.queue, f"now spec.runPolicy.schedulingPolicy: {{{shown}}}")
    return {
        "runPolicy": policy,
        "worker": {"replicas": len(spec.tasks), "template": template},
        "path": f"spec.tasks[{task.name}]",
        "procs": torchrun.literal("nproc_per_node") or "1",
        "procsPath": "spec.tasks.template.spec.containers.command[--nproc_per_node]",
        "scheduling": scheduling,
    }


def torchx_spec(
    _: OriginalJob, spec: WorkerSpec, policy: Manifest, notes: Notes
) -> tuple[Manifest, Manifest]:
    """Return spec and run policy of the job. If the job can't be converted, the notes have the reasons."""
    role = read_role("worker", spec.path, spec.worker, None, notes)
    dtj_spec = torch_spec(role, Asked(spec.procs, spec.procs_path), notes)
    return dtj_spec, {**policy, "schedulingPolicy": dict(spec.scheduling)}


TORCHX_JOB = KindRules(
    strategy=TORCH_DISTRIBUTED,
    field="tasks",
    form=WorkerSpec,
    convert=torchx_spec,
    versions={"v1alpha1": VersionDefaults("Running")},
    newest="v1alpha1",
    group="batch.volcano.sh",
    origin="torchx",
    prepare=of_equal_tasks,
)

"""Conversion of a TrainJob of Kubeflow Trainer v2 with a torch runtime to strategy TorchDistributed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from dtj.api.job import Manifest
from dtj.api.quantities import amount
from dtj.api.torch_distributed import TORCH_DISTRIBUTED
from dtj.convert.kind import KindRules, OriginalJob
from dtj.convert.kubeflow_fields import ContainerResources, KubeflowObject, Variable, WorkerSpec
from dtj.convert.notes import Notes
from dtj.convert.replicas import read_role
from dtj.convert.run_policy import VersionDefaults
from dtj.convert.torch import Asked, torch_spec
from dtj.convert.training_runtime import GROUP, NODE, Runtime, RuntimeRef, find_runtime

_TORCHTUNE = ("tune", "run")


class _Trainer(KubeflowObject):
    image: str | None = None
    command: list[str] | None = None
    args: list[str] | None = None
    env: tuple[Variable, ...] = ()
    num_nodes: Annotated[int, Field(ge=1, le=10000)] | None = None
    num_proc_per_node: int | str | None = None
    resources_per_node: ContainerResources | None = None


class _TrainJob(KubeflowObject):
    runtime_ref: RuntimeRef
    trainer: _Trainer | None = None
    initializer: dict[str, Any] | None = None
    runtime_patches: tuple[dict[str, Any], ...] = ()
    suspend: bool = False
    active_deadline_seconds: int | None = None
    managed_by: str | None = None


def with_runtime(manifest: Manifest, others: Sequence[Manifest], notes: Notes) -> Manifest | None:
    """Return the TrainJob and its runtime as one spec of equal workers."""
    spec = _TrainJob.model_validate(manifest.get("spec"))
    for key, value in spec.rest.items():
        refuse = key == "podTemplateOverrides"
        now = (
            "not supported: write spec.runtimePatches"
            if refuse
            else "left out: dtj does not support this field of a TrainJob"
        )
        (notes.refuse if refuse else notes.add)(f"spec.{key}", value, now)
    if spec.initializer:
        notes.refuse("spec.initializer", spec.initializer, _no_other_step())
    if spec.trainer is None:
        notes.refuse(
            "spec.trainer",
            None,
            "required: without spec.trainer, Trainer sets no variables PET_* in the pods",
        )
    runtime = find_runtime(spec.runtime_ref, spec.runtime_patches, others, notes)
    if (
        runtime is None
        or spec.trainer is None
        or not _is_torch(runtime, spec.trainer, spec.runtime_ref, notes)
    ):
        return None
    return {**manifest, "spec": _worker_spec(spec, spec.trainer, runtime, notes)}


def _is_torch(runtime: Runtime, trainer: _Trainer, ref: RuntimeRef, notes: Notes) -> bool:
    name = f"{ref.kind} {ref.name}"
    policies = [key for key in runtime.ml_policy.rest if key in ("mpi", "jax", "flux", "xgboost")]
    if runtime.ml_policy.torch is None or policies:
        notes.refuse(
            f"{name}: spec.mlPolicy",
            ", ".join(policies) or None,
            "no equivalent: dtj converts runtimes with mlPolicy.torch",
        )
    for job in runtime.other_jobs:
        notes.refuse(f"{name}: spec.template.spec.replicatedJobs[{job.name}]", None, _no_other_step())
    node = runtime.node
    containers = node.template.spec.template.spec.containers if node else []
    own = next((container for container in containers if container.name == NODE), None)
    if own is None:
        notes.refuse(
            f"{name}: spec.template.spec.replicatedJobs", None, f"must have a container {NODE} that trains"
        )
    elif tuple((trainer.command or own.command)[:2]) == _TORCHTUNE:
        notes.refuse(
            "spec.trainer.command",
            " ".join(_TORCHTUNE),
            "torchtune: dtj can't start a recipe; write a command with torchrun",
        )
    return own is not None and not notes.refused


def _no_other_step() -> str:
    return "no equivalent: a job of dtj has no step before the training; download in an initContainer of the worker"


def _worker_spec(spec: _TrainJob, trainer: _Trainer, runtime: Runtime, notes: Notes) -> Manifest:
    assert runtime.node is not None  # `_is_torch` has refused a runtime without a node.
    job = runtime.node.template.spec
    template = job.template.model_dump(by_alias=True, exclude_unset=True)
    containers = template["spec"]["containers"]
    own = next(container for container in containers if container["name"] == NODE)
    own |= trainer.model_dump(by_alias=True, exclude_none=True, include={"image", "command", "args"})
    own["env"] = [
        *(
            variable
            for variable in own.get("env", [])
            if variable["name"] not in {v.name for v in trainer.env}
        ),
        *(variable.model_dump(by_alias=True) for variable in trainer.env),
    ]
    if trainer.resources_per_node is not None:
        own["resources"] = trainer.resources_per_node.model_dump(by_alias=True)
    if not own.get("image"):
        notes.refuse(
            "spec.trainer.image",
            None,
            "required: the input does not have the runtime of spec.runtimeRef, which names the image; set "
            "the image, or add the runtime to the input",
        )
    procs, procs_path = _ranks_in_node(
        trainer, runtime, ContainerResources.model_validate(own.get("resources", {}))
    )
    policy = {
        "suspend": spec.suspend,
        "activeDeadlineSeconds": spec.active_deadline_seconds,
        "managedBy": spec.managed_by,
        "backoffLimit": _retries(runtime, job.backoff_limit, spec.runtime_ref, notes),
    }
    replicas = runtime.ml_policy.num_nodes if trainer.num_nodes is None else trainer.num_nodes
    return {
        "runPolicy": {key: value for key, value in policy.items() if value is not None},
        "worker": {"replicas": replicas, "template": template},
        "path": f"{spec.runtime_ref.kind} {spec.runtime_ref.name}",
        "procs": procs,
        "procsPath": procs_path,
        "scheduling": _gang(runtime, spec.runtime_ref, notes),
    }


def _ranks_in_node(trainer: _Trainer, runtime: Runtime, resources: ContainerResources) -> tuple[str, str]:
    """Return the ranks in each node as Trainer counts them, and the field with the number.

    Source: kubeflow/trainer v2.3.0, pkg/runtime/framework/plugins/torch.
    """
    field, asked = "spec.trainer.numProcPerNode", trainer.num_proc_per_node
    if asked is None:
        asked = (runtime.ml_policy.torch or {}).get("numProcPerNode", "auto")
    if str(asked) not in ("auto", "cpu") or _gpus(resources):
        return str(asked), field
    cpus = resources.requests.get("cpu") or resources.limits.get("cpu") or 0
    try:
        return str(max(1, math.ceil(amount(cpus)))), field
    except ValueError:  # The quantity is invalid. The check of the converted job reports it.
        return "1", field


def _gpus(resources: ContainerResources) -> bool:
    given: Mapping[str, Any] = {**resources.requests, **resources.limits}
    return any("gpu" in name.lower() for name in given)


def _retries(runtime: Runtime, of_job: int | None, ref: RuntimeRef, notes: Notes) -> int | None:
    policy = runtime.template.spec.failure_policy
    if policy is not None:
        return max(policy.max_restarts, 0)
    if of_job is not None:
        return max(of_job, 0)
    notes.add(
        f"{ref.kind} {ref.name}: spec.template.spec.failurePolicy",
        None,
        "not given: now up to 3 retries of the whole job, dtj's default; the Job of a TrainJob allows 6 failed pods. "
        "Set runPolicy.backoffLimit for more",
    )
    return None


def _gang(runtime: Runtime, ref: RuntimeRef, notes: Notes) -> Manifest:
    policy = runtime.pod_group_policy or {}
    gang = next((name for name in ("volcano", "coscheduling") if name in policy), None)
    if gang is None:
        return {}
    made = {"gang": gang.capitalize()}
    options = policy[gang]
    left_out = f"; {', '.join(options)} left out" if isinstance(options, dict) and options else ""
    notes.add(
        f"{ref.kind} {ref.name}: spec.podGroupPolicy",
        gang,
        f"now spec.runPolicy.schedulingPolicy: {{gang: {made['gang']}}}{left_out}",
    )
    return made


def torch_worker_spec(
    source: OriginalJob, spec: WorkerSpec, policy: Manifest, notes: Notes
) -> tuple[Manifest, Manifest]:
    """Return spec and run policy of the job. If the job can't be converted, the notes have the reasons."""
    role = read_role("worker", spec.path, spec.worker, NODE, notes, source.command)
    texts = [
        *role.program[0],
        *role.program[1],
        *(str(variable.get("value")) for variable in role.env.values()),
    ]
    for text in texts:
        if f"{source.name}-{NODE}-0-" in text:
            notes.refuse(
                spec.path,
                text,
                "names a pod of the TrainJob; dtj's host names are <job>-worker-<index>.<job>",
            )
    dtj_spec = torch_spec(role, Asked(spec.procs, spec.procs_path), notes)
    return dtj_spec, policy | ({"schedulingPolicy": dict(spec.scheduling)} if spec.scheduling else {})


TRAIN_JOB = KindRules(
    strategy=TORCH_DISTRIBUTED,
    field="runtimeRef",
    form=WorkerSpec,
    convert=torch_worker_spec,
    # cleanPodPolicy is Running, because a JobSet deletes the running pods when it ends.
    versions={"v1alpha1": VersionDefaults("Running")},
    newest="v1alpha1",
    group=GROUP,
    prepare=with_runtime,
)

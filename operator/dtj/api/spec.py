"""`spec` of a DistributedTrainingJob.

Field names follow the Kubeflow v1 and v2beta1 training jobs where they have the same meaning
(replicas, slotsPerWorker, runPolicy, cleanPodPolicy, backoffLimit, activeDeadlineSeconds).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import (
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StrictBool,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError
from pydantic_core.core_schema import no_info_plain_validator_function

from dtj.api.base import OBJECT_NAME, ApiModel, Number, Quantity
from dtj.api.code import Code
from dtj.api.data import Data
from dtj.api.horovod import Horovod, HorovodLauncher
from dtj.api.managed_by import DOMAIN_PATH, MAX_LENGTH, other_manager
from dtj.api.parameter_server import ParameterServer
from dtj.api.scheduling import SchedulingPolicy
from dtj.api.shown import enumerated
from dtj.api.strategies import RULES
from dtj.api.strategy import StrategyRules
from dtj.api.torch_distributed import Torch
from dtj.api.tracking import Tracking
from dtj_trainer import contract

Strings = Annotated[list[Annotated[str, Field(max_length=32768)]], Field(max_length=1024)]
StringMap = Annotated[dict[str, str], Field(max_length=64)]


Quantities = Annotated[dict[str, Quantity], Field(max_length=64)]
FreeObject = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]


DomainPath = Annotated[str, Field(pattern=DOMAIN_PATH, max_length=MAX_LENGTH)]
S3_URI = rf"^s3://{contract.S3_BUCKET}(/[^\s?#]*)?$"
HTTP_URL = r"^https?://[^\s/]+(/[^\s]*)?$"
MOST_REPLICAS = 10_000
"""Replicas of a role."""
RESOURCE_NAME = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"


class _StrategyName:
    """Restricts a string to the names of registered strategies, also those that are registered later."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"type": "string", "enum": list(RULES)}

    def _check(self, value: Any) -> str:
        if not isinstance(value, str) or value not in RULES:
            raise PydanticKnownError("enum", {"expected": enumerated(RULES, "or")})
        return str(value)


StrategyName = Annotated[str, _StrategyName()]


class CleanPodPolicy(StrEnum):
    """Which pods are deleted when a job ends."""

    RUNNING = "Running"
    ALL = "All"
    NONE = "None"


class StallPolicy(StrEnum):
    """What is done for a training that stands still, besides saying so."""

    REPORT = "Report"
    RESTART = "Restart"


class Resume(StrEnum):
    """Where the first checkpoint of a job comes from."""

    AUTO = "Auto"
    NEVER = "Never"
    FROM_URI = "FromURI"


class EnvVar(ApiModel):
    """One environment variable, as in a container's `env`."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    """Name of the variable; not one that the operator sets, as DTJ_JOB."""
    value: Annotated[str, Field(max_length=32768)] | None = None
    """Its value."""
    value_from: FreeObject | None = None
    """Where its value comes from (secretKeyRef, configMapKeyRef, fieldRef), as in a container's `env`."""


class Resources(ApiModel):
    """CPU, memory and other resources of a replica's container, as in a container's `resources`."""

    requests: Quantities = {}
    """What the scheduler reserves, e.g. {cpu: 4, memory: 16Gi}."""
    limits: Quantities = {}
    """What the container may use at most."""


class ReplicaSpec(ApiModel):
    """The replicas of one role."""

    replicas: Annotated[int, Field(ge=1, le=MOST_REPLICAS), Number] = 1
    """How many pods of this role."""
    gpus: Annotated[int, Field(ge=0, le=1024), Number] = 0
    """Accelerators of each pod: shorthand for a limit of accelerator.resourceName."""
    resources: Resources = Resources()
    """CPU, memory and other resources of each pod."""
    template: FreeObject = {}
    """A partial PodTemplateSpec, merged over the pod that the operator makes (strategic merge).
    The container that trains is called `trainer`."""


class ChiefSpec(ReplicaSpec):
    """The chief or the master, if the job has one."""

    replicas: Annotated[int, Field(ge=0, le=1), Number] = 1
    """1, or 0 for none."""


class EvaluatorSpec(ReplicaSpec):
    """The evaluator, if there is one."""

    replicas: Annotated[int, Field(ge=0, le=1), Number] = 1
    """1, or 0 for none."""


class ReplicaSpecs(ApiModel):
    """The roles of a job. A Horovod job has workers and one launcher, which needs no entry. A ParameterServer job
    has workers, ps, one chief, which needs no entry, and an evaluator if it has an entry. A ParameterServer job that
    names its chief or master may have no ps. A TorchDistributed job has workers.
    """

    launcher: ReplicaSpec | None = None
    """Runs mpirun over the workers; trains nothing itself. One pod with 100m CPU when not given."""
    worker: ReplicaSpec | None = None
    """The pods that compute: the ranks of Horovod and TorchDistributed, the workers of ParameterServer."""
    chief: ChiefSpec | None = None
    """Drives the training of ParameterServer, and saves its checkpoints; its exit code is the job's. One pod with
    500m CPU and 1Gi when neither chief nor master is given. With replicas 0, worker 0 has the chief's part."""
    master: ChiefSpec | None = None
    """The chief of ParameterServer, called master in TF_CONFIG, as in older TFJobs. Not together with a chief."""
    ps: ReplicaSpec | None = None
    """The parameter servers, which hold the variables."""
    evaluator: EvaluatorSpec | None = None
    """Measures the checkpoints of ParameterServer on the test data, beside the training."""

    def given(self) -> dict[str, ReplicaSpec]:
        """The roles that have an entry."""
        return {role: getattr(self, role) for role in ROLES if getattr(self, role) is not None}

    def with_pods(self) -> dict[str, ReplicaSpec]:
        """The roles that have an entry with pods. A chief, master or evaluator with replicas 0 has none."""
        return {role: replica for role, replica in self.given().items() if replica.replicas}


ROLES = tuple(ReplicaSpecs.model_fields)


class Accelerator(ApiModel):
    """What kind of accelerator `gpus` counts, and where its nodes are. Applies to replicas with gpus."""

    resource_name: Annotated[str, Field(pattern=RESOURCE_NAME, max_length=253)] = "nvidia.com/gpu"
    """The extended resource that the device plugin offers, e.g. nvidia.com/gpu, amd.com/gpu."""
    runtime_class_name: Annotated[str, Field(pattern=OBJECT_NAME, max_length=253)] | None = None
    """RuntimeClass of the pods, e.g. nvidia."""
    node_selector: StringMap = {}
    """Labels that the nodes must have."""
    tolerations: Annotated[list[FreeObject], Field(max_length=64)] = []
    """Taints that the pods tolerate, besides resourceName:NoSchedule, which they always do."""


class ArtifactStore(ApiModel):
    """Where checkpoints, TensorBoard logs, metrics, logs and the model go."""

    uri: Annotated[str, Field(pattern=S3_URI, max_length=1024)]
    """s3://bucket/prefix; the job's own prefix <namespace>/<name>-<short uid> is made under it. Only changes while
    the job is suspended."""
    endpoint: Annotated[str, Field(pattern=HTTP_URL, max_length=1024)] | None = None
    """URL of an S3-compatible store, for artifacts and data. Not given: AWS. Only changes while the job is
    suspended."""
    secret_name: Annotated[str, Field(pattern=OBJECT_NAME, max_length=253)] | None = None
    """Secret with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY (and AWS_REGION), given to every replica as
    environment. Not given: the pod's service account (IRSA, Pod Identity)."""
    resume: Resume = Resume.AUTO
    """Auto: a retry goes on from the job's newest complete checkpoint. Never: each attempt starts anew.
    FromURI: as Auto, and the first attempt starts from resumeUri."""
    resume_uri: Annotated[str, Field(pattern=S3_URI, max_length=1024)] | None = None
    """With FromURI: the artifacts prefix of another job, or its checkpoints/ folder."""


class TensorBoard(ApiModel):
    """A TensorBoard of the job's own: the Service <job>-tensorboard, port 6006. It shows the event files in the
    bucket, and stays after the end until the job is deleted.
    """

    enabled: StrictBool = False
    """True: there is one, unless the job is suspended. It is no replica: the training neither waits for it nor fails
    with it."""
    image: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Its image. Default: the one that the operator was installed with, dtj-tensorboard."""
    resources: Resources = Resources()
    """CPU and memory. Default: 100m and 256Mi asked for, 1Gi of memory at most."""
    template: FreeObject = {}
    """A partial PodTemplateSpec, merged over the pod that the operator makes, as a replica's; the container is called
    `tensorboard`."""


class RunPolicy(ApiModel):
    """How long a job runs, how often it is retried, what stays when it ends."""

    suspend: StrictBool = False
    """True: the pods end as soon as their checkpoint is in the bucket, and the job waits. False again: it goes on
    from there. A job made with true waits from the start."""
    backoff_limit: Annotated[int, Field(ge=0, le=10000), Number] = 3
    """Retries after failures of the program. Lost nodes, evictions and preemptions are not counted."""
    active_deadline_seconds: Annotated[int, Field(ge=1), Number] | None = None
    """The job fails when it is not done this many seconds after it started or was resumed, retries included."""
    start_deadline_seconds: Annotated[int, Field(ge=1), Number] | None = None
    """The job fails when not all replicas run this many seconds after it started, was resumed, or began a retry; pods
    that the cluster takes before all run do not make it longer. Time in a queue of Kueue is not counted."""
    stall_timeout_seconds: Annotated[int, Field(ge=1), Number] | None = None
    """All pods run and the step has not moved for so many seconds: the condition Stalled holds, and the stacks of all
    ranks go to the bucket. Must cover the way to the first step and the longest pause (evaluation, checkpoint, data).
    Only for programs that report progress."""
    stall_policy: StallPolicy = StallPolicy.REPORT
    """What comes of it. Report: no more than that. Restart: 30 s later the next attempt, as after a failure of the
    program."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0), Number] | None = None
    """The job is deleted with its pods this many seconds after it ended, as a Kubernetes Job; 0: at once. What is in
    the bucket stays. Not given: it stays until somebody deletes it."""
    avoid_node_after_failures: Annotated[int, Field(ge=0, le=10000), Number] = 2
    """A node on which the job lost pods so often (crashes, evictions, silence; not drains or preemptions) is avoided
    by its next attempts while another node takes them. 0: never."""
    clean_pod_policy: CleanPodPolicy = CleanPodPolicy.RUNNING
    """Pods deleted at the end: Running (those that still run), All, None."""
    scheduling_policy: SchedulingPolicy = SchedulingPolicy()
    """Whether pods are placed all together or not at all, by whom, and with which priority. gang and queue are
    immutable."""
    managed_by: DomainPath | None = None
    """The controller that carries the job out, as a Kubernetes Job's. dtj.dev/operator, or not given: dtj's operator;
    any other: dtj's operator does not touch the job. Immutable."""

    @property
    def other_manager(self) -> str | None:
        """The controller that carries the job out where it is not dtj's operator."""
        return other_manager(self.managed_by)

    def avoided_nodes(self, lost: Mapping[str, int] | None) -> list[str]:
        """Names of the nodes that are avoided after so many losses on each."""
        limit = self.avoid_node_after_failures
        return sorted(node for node, times in (lost or {}).items() if 0 < limit <= times)


def _describe_strategies(schema: dict[str, Any]) -> None:
    """Say of every registered strategy what it is: the CRD shows it."""
    sentences = [f"{name}: {rules.description}." for name, rules in RULES.items()]
    schema["description"] = " ".join([*sentences, "Immutable."])


class JobSpec(ApiModel):
    """What is to be trained, with what, where the result goes."""

    strategy: Annotated[StrategyName, Field(json_schema_extra=_describe_strategies)]
    image: Annotated[str, Field(min_length=1, max_length=1024)]
    """Container image of every replica, unless its template names another."""
    command: Strings = []
    """The program of each rank or replica, with its arguments. For Horovod without mpirun: the launcher adds it."""
    args: Strings = []
    """Appended to command."""
    env: Annotated[list[EnvVar], Field(max_length=256)] = []
    """Environment of every replica."""
    code: Code | None = None
    """The program as an archive. Without command, each rank or replica runs its entrypoint."""
    replica_specs: ReplicaSpecs
    """The roles and their pods."""
    horovod: Horovod | None = None
    """What only strategy Horovod has."""
    parameter_server: ParameterServer | None = None
    """What only strategy ParameterServer has."""
    torch: Torch | None = None
    """What only strategy TorchDistributed has."""
    accelerator: Accelerator = Accelerator()
    """What kind of accelerator `gpus` counts, and where its nodes are."""
    data: Data | None = None
    """The data set."""
    artifacts: ArtifactStore | None = None
    """Where checkpoints, TensorBoard logs, metrics, logs and the model go. Not given: nothing is kept."""
    tracking: Tracking | None = None
    """Where the job's run is recorded besides the bucket: an MLflow server."""
    tensorboard: TensorBoard = TensorBoard()
    """A TensorBoard of the job's own, in the cluster."""
    run_policy: RunPolicy = RunPolicy()
    """How long a job runs, how often it is retried, what stays when it ends."""

    @property
    def rules(self) -> StrategyRules:
        """The rules of the job's strategy, for the job's form."""
        return RULES[self.strategy].of(self)

    @property
    def own_command(self) -> list[str]:
        """The command of each rank or replica, without args: `command`, else the entrypoint of `code`."""
        if not self.command and self.code is not None and self.code.entrypoint is not None:
            return ["python", self.code.entrypoint]
        return self.command

    @property
    def worker(self) -> ReplicaSpec:
        """The entry of the workers; the defaults of an entry where the spec has none."""
        return self.replica_specs.worker or ReplicaSpec()

    @property
    def horovod_options(self) -> Horovod:
        """The block `horovod`; its defaults where the spec has none."""
        return self.horovod or Horovod()

    @property
    def parameter_server_options(self) -> ParameterServer:
        """The block `parameterServer`; its defaults where the spec has none."""
        return self.parameter_server or ParameterServer()

    @property
    def torch_options(self) -> Torch:
        """The block `torch`; its defaults where the spec has none."""
        return self.torch or Torch()

    @property
    def by_mpi_operator(self) -> bool:
        """Whether mpi-operator makes the pods."""
        return self.horovod_options.launcher is HorovodLauncher.MPI_JOB

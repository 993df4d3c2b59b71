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
from dtj.api.identity import DOMAIN_PATH, MAX_LENGTH, other_manager
from dtj.api.schema_errors import pattern
from dtj.api.shown import enumerated
from dtj_trainer import contract
from dtj_trainer.contract.code_archive import DIGEST

# Models of `spec.data`: the data set, and the cache of its blocks.

DATA_URI = pattern(
    rf"^(s3://{contract.S3_BUCKET}(/[^\s?#]*)?|file:///[^\s?#]*)$",
    "an address s3://bucket/prefix, or file:///path of a volume that the template mounts",
)
NODE_FOLDER = pattern(
    r"^(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+$", "the path of a folder such as /var/cache/dtj, without . and .."
)


class CacheMedium(StrEnum):
    """What an emptyDir is stored on, where it is not the node's disk."""

    MEMORY = "Memory"


class CacheClaim(ApiModel):
    """A PersistentVolumeClaim of the job's namespace."""

    claim_name: Annotated[str, Field(pattern=OBJECT_NAME, max_length=253)]
    """Name of the claim. Pods on several nodes need a claim with access mode ReadWriteMany."""


class CacheEmptyDir(ApiModel):
    """A folder of each pod's own, which ends with the pod. Its sizeLimit follows from `size`."""

    medium: CacheMedium | None = None
    """Memory: a tmpfs, whose files count towards the container's memory. Not given: the node's disk."""


class CacheHostPath(ApiModel):
    """A folder of each node. Pod Security levels baseline and restricted forbid it."""

    path: Annotated[str, Field(pattern=NODE_FOLDER, max_length=1024)]
    """The folder on the node. Jobs use the folder <path>/<namespace>. Who runs the cluster has to allow the path
    (dataCache.hostPathPrefixes of the chart), and to make it writable for the pods' user."""


class DataCache(ApiModel):
    """A cache of blocks, on one of three kinds of volumes."""

    size: Quantity
    """Largest size of the cache, at least 1Gi. A full cache removes the blocks that were used least recently."""
    persistent_volume_claim: CacheClaim | None = None
    """A PersistentVolumeClaim, which all pods and later jobs share."""
    empty_dir: CacheEmptyDir | None = None
    """A folder of each pod's own, which its ranks share."""
    host_path: CacheHostPath | None = None
    """A folder of each node, which the node's pods and later jobs of the namespace share."""


class Data(ApiModel):
    """The data set."""

    uri: Annotated[str, Field(pattern=DATA_URI, max_length=1024)]
    """s3://bucket/prefix, or file:///path for a volume that the template mounts. Programs find the value in
    DTJ_DATA_URI."""
    cache: DataCache | None = None
    """Cache of blocks of the data set, for shards with an index: one of persistentVolumeClaim, emptyDir and hostPath.
    The built-in programs use the cache; others find its folder in DTJ_DATA_CACHE."""


# Models of `spec.runPolicy.schedulingPolicy`: how the pods of a job get their nodes.


class Gang(StrEnum):
    """Who places the pods of a job all together or not at all."""

    NONE = "None"
    COSCHEDULING = "Coscheduling"
    VOLCANO = "Volcano"
    KUEUE = "Kueue"


class SchedulingPolicy(ApiModel):
    """How the pods of a job get their nodes, as Kubeflow's `runPolicy.schedulingPolicy`."""

    gang: Gang = Gang.NONE
    """Who places the pods all together or not at all. None: the cluster's scheduler places them one by one.
    Coscheduling: a PodGroup of scheduler-plugins. Volcano: a PodGroup of Volcano. Kueue: a pod group in a queue of
    Kueue."""
    queue: Annotated[str, Field(pattern=OBJECT_NAME, max_length=63)] | None = None
    """The LocalQueue of Kueue, in the job's namespace, which Kueue needs; or the Queue of Volcano, whose default is
    default."""
    priority_class_name: Annotated[str, Field(pattern=OBJECT_NAME, max_length=253)] | None = None
    """PriorityClass of all pods, unless a template names another; and of Volcano's PodGroup."""
    min_available: Annotated[int, Field(ge=1), Number] | None = None
    """With Coscheduling and Volcano: how many pods are enough to begin with. Default: all that the job begins with,
    the workers and the ps."""


# Models of `spec.code`: the program as an archive, in place of a program in the image.

pattern(DIGEST, "sha256: and 64 hex digits in lower case")
CODE_URI = pattern(rf"^s3://{contract.S3_BUCKET}/[^\s?#]+$", "the address of an archive, s3://bucket/key")


class Packages(ApiModel):
    """Python packages: an archive of wheels that each pod installs to /dtj/packages, which follows the code in
    PYTHONPATH. `dtj submit` makes the archive of a requirements.txt.
    """

    config_map: Annotated[str, Field(pattern=OBJECT_NAME, max_length=253)] | None = None
    """ConfigMap of the job's namespace with the archive, under the key packages.tar.gz, 512 KiB at most."""
    uri: Annotated[str, Field(pattern=CODE_URI, max_length=1024)] | None = None
    """s3://bucket/key of the archive, in the store of artifacts.endpoint: 256 MiB at most, 1 GiB installed."""
    digest: Annotated[str, Field(pattern=DIGEST, max_length=71)]
    """`sha256:` and the SHA-256 of the archive in hex digits. A pod refuses an archive with another one."""


class Code(ApiModel):
    """The program: an archive (tar.gz) that each pod unpacks to /dtj/code, which becomes the working directory and
    the first entry of PYTHONPATH. The image needs dtj_trainer.
    """

    config_map: Annotated[str, Field(pattern=OBJECT_NAME, max_length=253)] | None = None
    """ConfigMap of the job's namespace with the archive in binaryData, under the key code.tar.gz: 512 KiB at most."""
    uri: Annotated[str, Field(pattern=CODE_URI, max_length=1024)] | None = None
    """s3://bucket/key of the archive, in the store of artifacts.endpoint: 256 MiB at most, 1 GiB unpacked."""
    digest: Annotated[str, Field(pattern=DIGEST, max_length=71)]
    """`sha256:` and the SHA-256 of the archive in hex digits. A pod refuses an archive with another one."""
    entrypoint: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """The script in the archive that runs as `python <entrypoint>` with args. With command: not used."""
    packages: Packages | None = None
    """Packages that the image does not have."""


def config_maps_of_code(job: Mapping[str, Any]) -> list[str]:
    """Return the ConfigMaps that the manifest of a job, which may have any form, names in `spec.code`: each once."""
    spec = job.get("spec")
    code = spec.get("code") if isinstance(spec, dict) else None
    parts = (code, code.get("packages")) if isinstance(code, dict) else ()
    names = (part.get("configMap") for part in parts if isinstance(part, dict))
    return list(dict.fromkeys(name for name in names if isinstance(name, str)))


# Models of `spec.tracking`: the server that records the runs of jobs.

TRACKER_URL = pattern(
    r"^https?://[^\s/?#]+(/[^\s?#]*)?$", "a URL such as https://mlflow.example.com, without ? and #"
)


class MLflow(ApiModel):
    """An MLflow tracking server. Each job is one run there, over all attempts."""

    uri: Annotated[str, Field(pattern=TRACKER_URL, max_length=1024)]
    """URL of the tracking server."""
    experiment: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    """Name of the experiment, which is made where it does not exist. Not given: MLFLOW_EXPERIMENT_NAME of env, else
    MLflow's experiment Default."""
    secret_name: Annotated[str, Field(pattern=OBJECT_NAME, max_length=253)] | None = None
    """Secret with MLFLOW_TRACKING_TOKEN, or with MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD. Only the pod
    of rank 0 or of the chief has it, as environment; with horovod.launcher: MPIJob all workers."""


class Tracking(ApiModel):
    """Where metrics, parameters and the addresses of artifacts are recorded besides the bucket."""

    mlflow: MLflow | None = None
    """An MLflow tracking server. A server that is down or hangs ends no training, and delays a job by seconds."""


Strings = Annotated[list[Annotated[str, Field(max_length=32768)]], Field(max_length=1024)]
StringMap = Annotated[dict[str, str], Field(max_length=64)]


Quantities = Annotated[dict[str, Quantity], Field(max_length=64)]
FreeObject = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]


DomainPath = Annotated[str, Field(pattern=DOMAIN_PATH, max_length=MAX_LENGTH)]
S3_URI = pattern(rf"^s3://{contract.S3_BUCKET}(/[^\s?#]*)?$", "an address s3://bucket/prefix")
HTTP_URL = pattern(r"^https?://[^\s/]+(/[^\s]*)?$", "a URL such as https://s3.example.com")
MOST_REPLICAS = 10_000
"""The largest number of replicas of a role."""
RESOURCE_NAME = pattern(
    r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
    "a name of a resource such as nvidia.com/gpu",
)


STRATEGIES: dict[str, Any] = {}
"""The rules of the registered strategies, by name. `dtj.api.strategies` fills this dict. This module reads only the
names and descriptions."""


class _StrategyName:
    """Restricts a string to the names of registered strategies, including strategies that are registered later."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"type": "string", "enum": list(STRATEGIES)}

    def _check(self, value: Any) -> str:
        if not isinstance(value, str) or value not in STRATEGIES:
            raise PydanticKnownError("enum", {"expected": enumerated(STRATEGIES, "or")})
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


class RestartStrategy(StrEnum):
    """What starts again after a failure of the program."""

    IN_PLACE_RESTART = "InPlaceRestart"
    RECREATE = "Recreate"


DEFAULT_RESTART_STRATEGY = RestartStrategy.IN_PLACE_RESTART


class WarmSpare(StrEnum):
    """Whether pods keep a waiting interpreter for each rank."""

    AUTO = "Auto"
    NEVER = "Never"


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
    """Value of the variable."""
    value_from: FreeObject | None = None
    """Source of the variable's value (secretKeyRef, configMapKeyRef, fieldRef), as in a container's `env`."""


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
        return {role: replica for role, replica in vars(self).items() if replica is not None}

    def with_pods(self) -> dict[str, ReplicaSpec]:
        """The roles that have an entry with pods. A chief, master or evaluator with replicas 0 has none."""
        return {role: replica for role, replica in self.given().items() if replica.replicas}


ROLES = tuple(ReplicaSpecs.model_fields)


class HorovodLauncher(StrEnum):
    """Who makes the launcher of a Horovod job."""

    NATIVE = "Native"
    MPI_JOB = "MPIJob"


class Horovod(ApiModel):
    """Settings of strategy Horovod."""

    launcher: HorovodLauncher = HorovodLauncher.NATIVE
    """Native: the operator makes the pods itself. MPIJob: it makes an MPIJob of kubeflow.org/v2beta1, and Kubeflow's
    mpi-operator, which has to be installed, makes the pods. Immutable."""
    slots_per_worker: Annotated[int, Field(ge=1, le=1024), Number] | None = None
    """Ranks in each worker pod. Default: the gpus of a worker, else 1."""


class Updates(StrEnum):
    """When the gradients of workers change the variables on the parameter servers."""

    ASYNCHRONOUS = "Asynchronous"
    SYNCHRONOUS = "Synchronous"


class ParameterServer(ApiModel):
    """Settings of strategy ParameterServer."""

    updates: Updates = Updates.ASYNCHRONOUS
    """Asynchronous: the gradients of a worker are applied as soon as they arrive. Synchronous: the gradients of all
    workers are applied together, once a step. Programs find the value in DTJ_UPDATES."""
    evaluator_timeout_seconds: Annotated[int, Field(ge=0), Number] = 300
    """Seconds after the success of the chief in which the evaluator must evaluate the last checkpoint."""


class StartedBy(StrEnum):
    """Who starts the ranks of a worker."""

    AUTO = "Auto"
    RANKS = "Ranks"
    COMMAND = "Command"


class Torch(ApiModel):
    """Settings of strategy TorchDistributed."""

    procs_per_worker: Annotated[int, Field(ge=1, le=1024), Number] | None = None
    """Ranks in each worker pod. Default: the gpus of a worker, else 1."""
    started_by: StartedBy = StartedBy.AUTO
    """Who starts the ranks of a worker. Ranks: dtj starts the command once for each rank. Command: dtj starts the
    command once in each worker, and the command starts the ranks, as torchrun does. Auto: Command where the command
    calls torchrun, `accelerate launch` or deepspeed, else Ranks."""


class Accelerator(ApiModel):
    """What kind of accelerator `gpus` counts, and where its nodes are. Applies to replicas with gpus."""

    resource_name: Annotated[str, Field(pattern=RESOURCE_NAME, max_length=253)] = "nvidia.com/gpu"
    """The extended resource that the device plugin offers, e.g. nvidia.com/gpu, amd.com/gpu."""
    runtime_class_name: Annotated[str, Field(pattern=OBJECT_NAME, max_length=253)] | None = None
    """RuntimeClass of the pods, e.g. nvidia."""
    node_selector: StringMap = {}
    """Labels that the nodes must have."""
    tolerations: Annotated[list[FreeObject], Field(max_length=64)] = []
    """Taints that the pods tolerate. Pods always tolerate resourceName:NoSchedule."""


class ArtifactStore(ApiModel):
    """Where checkpoints, TensorBoard logs, metrics, logs and the model go."""

    uri: Annotated[str, Field(pattern=S3_URI, max_length=1024)]
    """s3://bucket/prefix, below which the job has its own prefix <namespace>/<name>-<short uid>. Can only be changed
    while the job is suspended."""
    endpoint: Annotated[str, Field(pattern=HTTP_URL, max_length=1024)] | None = None
    """URL of an S3-compatible store, for artifacts and data. Not given: AWS. Can only be changed while the job is
    suspended."""
    secret_name: Annotated[str, Field(pattern=OBJECT_NAME, max_length=253)] | None = None
    """Secret with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY (and AWS_REGION), given to every replica as
    environment. Not given: the pod's service account (IRSA, Pod Identity)."""
    resume: Resume = Resume.AUTO
    """Auto: a retry continues from the job's newest complete checkpoint. Never: each attempt starts anew.
    FromURI: as Auto, and the first attempt starts from resumeUri."""
    resume_uri: Annotated[str, Field(pattern=S3_URI, max_length=1024)] | None = None
    """With FromURI: the artifacts prefix of another job, or its checkpoints/ folder."""


class TensorBoard(ApiModel):
    """A TensorBoard of the job's own: the Service <job>-tensorboard, port 6006. It shows the event files in the
    bucket, and stays after the end until the job is deleted.
    """

    enabled: StrictBool = False
    """True: the operator runs a TensorBoard for the job, except while the job is suspended. The training neither
    waits for the TensorBoard nor fails with it."""
    image: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Image of the TensorBoard. Default: the image dtj-tensorboard that the operator was installed with."""
    resources: Resources = Resources()
    """CPU and memory. Default: 100m and 256Mi asked for, 1Gi of memory at most."""
    template: FreeObject = {}
    """A partial PodTemplateSpec, merged over the pod that the operator makes, as a replica's; the container is called
    `tensorboard`."""


class RunPolicy(ApiModel):
    """Limits of the job's time and retries, suspension, and clean-up at its end."""

    suspend: StrictBool = False
    """True: the pods end as soon as their checkpoint is in the bucket, and the job waits. When the field becomes
    false, the job continues from the checkpoint. A job that is created with true waits from the start."""
    backoff_limit: Annotated[int, Field(ge=0, le=10000), Number] = 3
    """Retries after failures of the program. Lost nodes, evictions and preemptions are not counted."""
    active_deadline_seconds: Annotated[int, Field(ge=1), Number] | None = None
    """The job fails if it has not ended this many seconds after its start or resumption, including all retries."""
    start_deadline_seconds: Annotated[int, Field(ge=1), Number] | None = None
    """The job fails if not all replicas run this many seconds after its start, its resumption, or the begin of a
    retry. Pods that the cluster takes away before all replicas run do not extend this time. Time in a queue of Kueue
    is not counted."""
    stall_timeout_seconds: Annotated[int, Field(ge=1), Number] | None = None
    """If all pods run and the step has not changed for this many seconds, the condition Stalled becomes true, and the
    stacks of all ranks go to the bucket. Must cover the time to the first step and the longest pause (evaluation,
    checkpoint, data). Only for programs that report progress."""
    stall_policy: StallPolicy = StallPolicy.REPORT
    """What the operator does with a stalled job. Report: only set the condition Stalled. Restart: begin the next
    attempt after 30 s, as after a failure of the program."""
    restart_strategy: RestartStrategy | None = Field(
        default=None,
        description="What starts again after a failure of the program. InPlaceRestart: the ranks, in the pods that "
        "run; the pods, where the ranks alone can't. Recreate: the pods. ParameterServer jobs and MPIJobs always "
        f"recreate pods. Default: {DEFAULT_RESTART_STRATEGY}.",
    )
    warm_spare: WarmSpare | None = None
    """Auto: with InPlaceRestart, pods keep a waiting Python interpreter for each rank, which has imported the modules
    of the program. Never: each rank starts anew. Default: Auto."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0), Number] | None = None
    """The job is deleted with its pods this many seconds after it ended, as a Kubernetes Job; 0: at once. The files
    in the bucket stay. Not given: the job stays until somebody deletes it."""
    avoid_node_after_failures: Annotated[int, Field(ge=0, le=10000), Number] = 2
    """The next attempts avoid a node on which the job lost this many pods (crashes, evictions, silence; not drains or
    preemptions), while another node takes the pods. 0: nodes are never avoided."""
    clean_pod_policy: CleanPodPolicy = CleanPodPolicy.RUNNING
    """Pods deleted at the end: Running (those that still run), All, None."""
    scheduling_policy: SchedulingPolicy = SchedulingPolicy()
    """Whether pods are placed all together or not at all, by whom, and with which priority. gang and queue are
    immutable."""
    managed_by: DomainPath | None = None
    """The controller that runs the job, as managedBy of a Kubernetes Job. dtj.dev/operator, or not given: dtj's
    operator; any other: dtj's operator does not touch the job. Immutable."""

    @property
    def other_manager(self) -> str | None:
        """The controller that carries the job out where it is not dtj's operator."""
        return other_manager(self.managed_by)

    def avoided_nodes(self, lost: Mapping[str, int] | None) -> list[str]:
        """Names of the nodes that are avoided after so many losses on each."""
        limit = self.avoid_node_after_failures
        return sorted(node for node, times in (lost or {}).items() if 0 < limit <= times)


_REPLICA, _HOROVOD, _PARAMETER_SERVER, _TORCH = ReplicaSpec(), Horovod(), ParameterServer(), Torch()


def _describe_strategies(schema: dict[str, Any]) -> None:
    """Write the names and descriptions of all registered strategies into the schema, for the CRD."""
    sentences = [f"{name}: {rules.description}." for name, rules in STRATEGIES.items()]
    schema["description"] = " ".join([*sentences, "Immutable."])


class JobSpec(ApiModel):
    """What is to be trained, with what, where the result goes."""

    strategy: Annotated[StrategyName, Field(json_schema_extra=_describe_strategies)]
    image: Annotated[str, Field(min_length=1, max_length=1024)]
    """Container image of every replica, unless its template names another."""
    command: Strings = []
    """The program of each rank or replica, with its arguments. For Horovod: without mpirun, which the launcher
    adds."""
    args: Strings = []
    """Appended to command."""
    env: Annotated[list[EnvVar], Field(max_length=256)] = []
    """Environment of every replica."""
    code: Code | None = None
    """The program as an archive. Without command, each rank or replica runs the entrypoint of the archive."""
    replica_specs: ReplicaSpecs
    """The roles and their pods."""
    horovod: Horovod | None = None
    """Settings of strategy Horovod."""
    parameter_server: ParameterServer | None = None
    """Settings of strategy ParameterServer."""
    torch: Torch | None = None
    """Settings of strategy TorchDistributed."""
    accelerator: Accelerator = Accelerator()
    """The kind of accelerator that `gpus` counts, and the nodes that have it."""
    data: Data | None = None
    """The data set."""
    artifacts: ArtifactStore | None = None
    """Where checkpoints, TensorBoard logs, metrics, logs and the model go. Not given: nothing is kept."""
    tracking: Tracking | None = None
    """Where the job's run is recorded besides the bucket: an MLflow server."""
    tensorboard: TensorBoard = TensorBoard()
    """A TensorBoard in the cluster, only for this job."""
    run_policy: RunPolicy = RunPolicy()
    """Limits of the job's time and retries, suspension, and clean-up at its end."""

    @property
    def own_command(self) -> list[str]:
        """The command of each rank or replica, without args: `command`, else the entrypoint of `code`."""
        if not self.command and self.code is not None and self.code.entrypoint is not None:
            return ["python", self.code.entrypoint]
        return self.command

    @property
    def worker(self) -> ReplicaSpec:
        """The entry of the workers; the defaults of an entry where the spec has none."""
        return self.replica_specs.worker or _REPLICA

    @property
    def horovod_options(self) -> Horovod:
        """The block `horovod`; its defaults where the spec has none."""
        return self.horovod or _HOROVOD

    @property
    def parameter_server_options(self) -> ParameterServer:
        """The block `parameterServer`; its defaults where the spec has none."""
        return self.parameter_server or _PARAMETER_SERVER

    @property
    def torch_options(self) -> Torch:
        """The block `torch`; its defaults where the spec has none."""
        return self.torch or _TORCH

    @property
    def by_mpi_operator(self) -> bool:
        """Whether mpi-operator makes the pods."""
        return self.horovod is not None and self.horovod.launcher is HorovodLauncher.MPI_JOB

"""Names shared by the operator and the container: the one module both sides import.

Standard library only. `docs/contract.md` describes the same contract for people who bring
their own image; a test holds the two together.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal, TypedDict, TypeVar, get_args

# --- environment given to every replica -------------------------------------------------------

ENV_JOB = "DTJ_JOB"
ENV_NAMESPACE = "DTJ_NAMESPACE"
ENV_UID = "DTJ_UID"
ENV_ATTEMPT = "DTJ_ATTEMPT"
"""The attempt of the job, counted from 1, in which this pod was started."""
ENV_ROLE = "DTJ_ROLE"
ENV_INDEX = "DTJ_INDEX"
ENV_POD = "DTJ_POD"
"""What the pod is: a PodInfo as JSON."""
ENV_STRATEGY = "DTJ_STRATEGY"
ENV_WORLD_SIZE = "DTJ_WORLD_SIZE"
"""Number of ranks asked for; a job that would run on fewer is refused at its start."""
ENV_SLOTS_PER_WORKER = "DTJ_SLOTS_PER_WORKER"
ENV_GPUS = "DTJ_GPUS"
"""Accelerators that the replica asked for; unset: none. A pod that has none of them starts no program."""
ENV_GPU_RESOURCE = "DTJ_GPU_RESOURCE"
"""Under which name Kubernetes counts them, as nvidia.com/gpu."""
ENV_UPDATES = "DTJ_UPDATES"
"""`Asynchronous` or `Synchronous`: how a ParameterServer job's workers update the variables."""
ENV_TF_CONFIG = "TF_CONFIG"
"""TensorFlow's own: cluster, task and environment as Kubeflow's TFJob gives them."""
ENV_TF_CLUSTER = "DTJ_TF_CLUSTER"
"""The part `cluster` of TF_CONFIG, which all replicas share; from the job's ConfigMap."""
ENV_ARTIFACTS_URI = "DTJ_ARTIFACTS_URI"
"""The job's own prefix, `s3://bucket/prefix/<namespace>/<name>-<short uid>`; unset: nothing is kept."""
ENV_DATA_URI = "DTJ_DATA_URI"
ENV_RESUME = "DTJ_RESUME"
"""`Auto`, `Never`, or the `s3://` prefix of another job's checkpoints."""
ENV_PROGRESS_PORT = "DTJ_PROGRESS_PORT"
ENV_ROOT = "DTJ_ROOT"
"""Where the workspace lies; `/dtj` in a container, a folder of its own for a local process."""
ENV_CONFIG_DIR = "DTJ_CONFIG_DIR"
ENV_TERMINATION_LOG = "DTJ_TERMINATION_LOG"
"""Where the termination message goes instead of TERMINATION_LOG."""
ENV_PEER_TIMEOUT_SECONDS = "DTJ_PEER_TIMEOUT_SECONDS"
"""How long a launcher waits for its hosts to answer, and the built-in chief for the others; 300 by default."""
ENV_SYNC_TIMEOUT_SECONDS = "DTJ_SYNC_TIMEOUT_SECONDS"
"""How long a pod waits for S3 at its start (restore) and at its end (last uploads); 600 by default."""
ENV_CHECKPOINTS_KEEP = "DTJ_CHECKPOINTS_KEEP"
"""How many of the newest checkpoints are kept, besides the best by metric; 3 by default."""
ENV_CHECKPOINT_SETTLE_SECONDS = "DTJ_CHECKPOINT_SETTLE_SECONDS"
"""A checkpoint not made by `dtj_trainer` is complete when unchanged for so long; 5 by default."""
ENV_S3_SSE = "DTJ_S3_SSE"
"""`AES256` or `aws:kms`: the server-side encryption that every object is put with; unset: the bucket's default."""
ENV_S3_SSE_KMS_KEY_ID = "DTJ_S3_SSE_KMS_KEY_ID"
"""With ENV_S3_SSE `aws:kms`: the key that the store encrypts with; unset: the account's own for S3."""
ENV_S3_REQUEST_PAYER = "DTJ_S3_REQUEST_PAYER"
"""`requester`: this job pays for its requests to buckets whose owner does not."""
ENV_S3_ADDRESSING_STYLE = "DTJ_S3_ADDRESSING_STYLE"
"""`path`, `virtual` or `auto`: where in a URL the bucket is."""
S3_SETTINGS = (ENV_S3_SSE, ENV_S3_SSE_KMS_KEY_ID, ENV_S3_REQUEST_PAYER, ENV_S3_ADDRESSING_STYLE)
"""What every client of the job's store is made with, besides the AWS variables."""
ENV_UPLOAD_MB_PER_SECOND = "DTJ_UPLOAD_MB_PER_SECOND"
"""How many megabytes a second a pod uploads of checkpoints and models while its program runs; 40 by default, 0: no
limit."""
ENV_SSH_PORT = "DTJ_SSH_PORT"
"""The port of the workers' sshd where it is not SSH_PORT (tests on one machine)."""
ENV_SSH_AFTER_RESTORE = "DTJ_SSH_AFTER_RESTORE"
"""Given to workers whose ranks a launcher's own command starts: sshd waits for the restore, as such ranks do not."""
ENV_MPI_ARGS = "DTJ_MPI_ARGS"
"""More arguments for mpirun, in shell words."""
ENV_MPIRUN = "DTJ_MPIRUN"
"""The mpirun of the image that starts the ranks on the workers, where it is not the one on the PATH."""
ENV_LOCAL_WORKERS = "DTJ_LOCAL_WORKERS"
"""Given to the launcher and the workers of a Horovod job whose ranks all run on one machine, started without
ssh: worker n's workspace is this prefix followed by n."""
ENV_ROOT_VARIABLES = "DTJ_ROOT_VARIABLES"
"""Where ROOT is not the workspace's place: names, with spaces between, of the job's own variables that name ROOT."""
ENV_RANKS_BY = "DTJ_RANKS_BY"
"""`mpi` or `gloo`: what starts the ranks of such a job and connects them; `mpi` by default where mpirun is."""

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "HOROVOD_RANK", "RANK")
"""Where the starters of ranks put a rank's number: Open MPI, PMIx, PMI (MPICH), Horovod with gloo, torchrun."""


def rank_of(environment: Mapping[str, str]) -> int | None:
    """The rank of the process with this environment; None where no variable gives the process a rank."""
    found = (environment.get(name, "") for name in RANK_VARIABLES)
    return next((int(text) for text in found if text.isdecimal()), None)


# --- what a pod is -----------------------------------------------------------------------------

Part = Literal["primary", "evaluator", "other"]
"""A pod's part in the uploads. `primary`: checkpoints, model, TensorBoard and metrics. `evaluator`: TensorBoard and
metrics, of checkpoints that the pod follows in the bucket. All pods upload logs; `other` pods upload nothing else."""


@dataclass(frozen=True, kw_only=True)
class PodInfo:
    """What a pod is in its job, as the operator's plan says it to the pod in ENV_POD."""

    role: str
    index: int
    slots: int = 0
    """How many ranks run in each pod of the role; 0: none."""
    part: Part = "other"
    """Where ranks run in the pods of a role, the part is that of the pod with rank 0: see `uploads`."""
    restores: bool = False
    """Whether the pod restores the newest checkpoint, and the metrics of its part, before its program starts."""
    reads_data: bool = False
    """Whether the pod's program reads the data of ENV_DATA_URI."""

    @property
    def name(self) -> str:
        """The pod's name within its job, as its log has it."""
        return f"{self.role}-{self.index}"

    @property
    def ranks(self) -> range:
        """The ranks that run in this pod."""
        return range(self.index * self.slots, (self.index + 1) * self.slots)

    @property
    def uploads(self) -> Part:
        """The pod's own part: pods that run ranks, but not rank 0, upload their logs alone."""
        return "other" if self.slots and 0 not in self.ranks else self.part

    def to_json(self) -> str:
        """The value of ENV_POD."""
        return json.dumps(
            {
                "role": self.role,
                "index": self.index,
                "slots": self.slots,
                "part": self.part,
                "restores": self.restores,
                "readsData": self.reads_data,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> PodInfo:
        """Read the value of ENV_POD; raises ValueError, which names the field that can't be used.

        Fields of a later release are ignored: the operator may be newer than the image.
        """
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
        if (part := content.get("part", "other")) not in get_args(Part):
            raise ValueError(f"part must be one of {', '.join(get_args(Part))}, not {json.dumps(part)}")
        return cls(
            role=_field(content, "role", str),
            index=_field(content, "index", int),
            slots=_field(content, "slots", int, 0),
            part=part,
            restores=_field(content, "restores", bool, False),
            reads_data=_field(content, "readsData", bool, False),
        )


_Value = TypeVar("_Value", str, int, bool)


def _field(
    content: Mapping[str, Any], name: str, kind: type[_Value], default: _Value | None = None
) -> _Value:
    value: _Value | None = content.get(name, default)
    if value is None:
        raise ValueError(f"{name} is missing")
    if type(value) is not kind or (kind is int and value < 0):
        raise ValueError(f"{name} must be {_KINDS[kind]}, not {json.dumps(value)}")
    return value


_KINDS: Mapping[type, str] = {str: "a string", int: "a whole number of at least 0", bool: "true or false"}


# --- addresses in S3 ---------------------------------------------------------------------------

_BUCKET_NAME = r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]"
"""Also the alias of an access point. Some old buckets of AWS, and those of other stores, have an underscore."""
_TENANTS_BUCKET = r"[A-Za-z0-9_]+:[a-z][a-z0-9._-]{1,61}[a-z0-9]"
"""Of Ceph's object gateway. The bucket begins with a letter, so that `host:9000` is none."""
_ACCESS_POINT = r"arn:aws[a-z-]*:s3:[a-z0-9-]+:[0-9]{12}:accesspoint/[a-z0-9-]{3,50}"
S3_BUCKET = f"({_BUCKET_NAME}|{_TENANTS_BUCKET}|{_ACCESS_POINT})"
"""An expression for what stands for a bucket in an s3:// URI; Go's RE2 and CEL read it as well."""

# --- paths and ports ---------------------------------------------------------------------------

ROOT = PurePosixPath("/dtj")
_SEPARATORS = r"""\s:,;|&<>()\[\]{}'\""""
ROOT_IN_TEXT = re.compile(rf"(?<![^={_SEPARATORS}]){ROOT}(?![^/{_SEPARATORS}])")
"""ROOT as a word, or as the beginning of a path, in a command's word, a shell's command or a variable."""
CONFIG_DIR = PurePosixPath("/etc/dtj")
"""Read-only files from the job's ConfigMap: hostfile, sshd_config, ssh_config, start.sh, strategy.sh, rank.sh,
job.yaml."""
SSH_DIR = PurePosixPath("/etc/dtj-ssh")
"""The job's key pair: ssh_key, authorized_keys, known_hosts."""
TERMINATION_LOG = PurePosixPath("/dev/termination-log")
TERMINATION_MESSAGE_BYTES = 4096
"""What the kubelet keeps of a container's termination message."""

SSH_PORT = 2222
TENSORFLOW_PORT = 2222
"""Of every task in TF_CONFIG; the container's port is called `tfjob-port`, as a TFJob's."""
TENSORFLOW_SILENCE_SECONDS = 30
"""After so long without a sign of the other side a connection between tasks breaks, as ssh's do in a Horovod job."""
PROGRESS_PORT = 8474
TENSORBOARD_PORT = 6006
"""Of the TensorBoard that a job may have in the cluster."""
STACKS_PATH = "/stacks"
"""On PROGRESS_PORT: POST has the pod write STACKS_FILES of all its programs."""
TERMINATION_GRACE_SECONDS = 120
"""From SIGTERM to SIGKILL of a pod: ranks save a checkpoint, it is uploaded, and the end is told."""


def root() -> PurePosixPath:
    """The workspace of this process."""
    return PurePosixPath(os.environ.get(ENV_ROOT, str(ROOT)))


# Below `root()`:
CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"
MODEL = "model"
DATA = "data"
LOGS = "logs"
STACKS_FILES = "stacks-*.txt"
"""In LOGS: what every rank did when POST /stacks was asked for; `stacks-<rank>-<n>.txt`, or by role and index."""
METRICS_FILE = "metrics.jsonl"
EVALUATOR_METRICS_FILE = "metrics-evaluator.jsonl"
"""What the evaluator's METRICS_FILE is called in the bucket, beside the chief's."""
RUN = "run"
"""In memory, never uploaded."""
ENVIRONMENT_FILE = "run/environment"
"""The pod's environment as `export -p` prints it: ssh sessions start without it, rank.sh reads it back."""
PROGRESS_FILE = "run/progress.json"
"""What a program writes (atomically, by rename) and `launch` serves on `/progress`."""
FAILURE_FILE = "run/failure-{rank}.json"
"""What a program that knows its cause writes before it exits: `{"class": …, "message": …}`."""

# In the bucket, below ENV_ARTIFACTS_URI: checkpoints/<step>[-<claim>]/{…,manifest.json}, tensorboard/, model/,
# logs/attempt-<attempt>/{launcher-0,rank-<rank>,<role>-<index>}.log, metrics.jsonl, metrics-evaluator.jsonl,
# attempt.json, attempt-evaluator.json, job.yaml. Logs, metrics and event files go on in segments: metrics.jsonl,
# metrics.jsonl.00002, … (`dtj_trainer.artifacts.segments`).
MANIFEST_FILE = "manifest.json"
CLAIM_FILE = "attempt.json"
"""Which attempt may write (`dtj_trainer.artifacts.fence`): replaced by conditional writes only."""
EVALUATOR_CLAIM_FILE = "attempt-evaluator.json"
"""The same for the evaluator, whose attempts are counted apart."""
JOB_FILE = "job.yaml"

# --- exit codes of dtj's own checks (sysexits.h; a program's own code passes through) -----------

EXIT_CONFIG = 78
EXIT_UNAVAILABLE = 69
EXIT_DATA = 65
EXIT_COMMAND_NOT_FOUND = 127


class Bottleneck(TypedDict):
    """What holds the training up, as the program measured it."""

    kind: Literal["ParameterServers", "Worker"]
    message: str
    """A sentence with the figures and what to change; the job's condition `Bottleneck` shows it."""


class Progress(TypedDict, total=False):
    """How far a program is. Every field is optional; times are RFC 3339 in UTC."""

    step: int
    totalSteps: int
    epoch: int
    percent: float
    examplesPerSecond: float
    loss: float
    accuracy: float
    etaSeconds: float
    bottleneck: Bottleneck
    """Absent: none that is known of."""
    updatedTime: str


class CheckpointRef(TypedDict, total=False):
    """The newest checkpoint whose manifest is in the bucket."""

    step: int
    time: str
    uri: str


class Artifacts(TypedDict, total=False):
    """What is in the bucket already."""

    uri: str
    checkpoint: CheckpointRef
    model: str
    tensorboard: str


Phases = dict[str, str]
"""RFC 3339 times of what `launch` did: started, restored, peersReady, programStarted, firstStep, programEnded,
synced."""


class Report(TypedDict, total=False):
    """The answer of `/progress`."""

    progress: Progress
    artifacts: Artifacts
    phases: Phases


# `class` is a keyword, hence the functional form.
Termination = TypedDict(
    "Termination",
    {
        "class": str,
        "message": str,
        "role": str,
        "index": int,
        "rank": int,
        "host": str,
        "exitCode": int,
        "signal": int,
        "lastLogLines": list[str],
        "progress": Progress,
        "artifacts": Artifacts,
        "phases": Phases,
    },
    total=False,
)
"""The termination message, JSON of at most TERMINATION_MESSAGE_BYTES: `class` is absent after a success."""

RANK_EXIT_MARKER = "dtj-rank-exit: "
"""A rank's wrapper prints this and a Termination as JSON on a line of its own; the launcher reads it from mpirun."""

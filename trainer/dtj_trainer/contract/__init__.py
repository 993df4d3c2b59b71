"""The contract between the operator and the container: the one package that both sides import.

Standard library only. `docs/contract.md` describes the same contract for authors of images; a test compares the
document with this package.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Literal

from dtj_trainer.contract.history import END_FILE as END_FILE
from dtj_trainer.contract.history import ENV_END as ENV_END
from dtj_trainer.contract.history import ENV_HISTORY as ENV_HISTORY
from dtj_trainer.contract.history import RUN_FILE as RUN_FILE
from dtj_trainer.contract.history import History as History
from dtj_trainer.contract.pod_info import Part as Part
from dtj_trainer.contract.pod_info import Peers as Peers
from dtj_trainer.contract.pod_info import PodInfo as PodInfo
from dtj_trainer.contract.pod_info import Rounds as Rounds
from dtj_trainer.contract.report import EXPORT_ERROR_LENGTH as EXPORT_ERROR_LENGTH
from dtj_trainer.contract.report import Artifacts as Artifacts
from dtj_trainer.contract.report import Bottleneck as Bottleneck
from dtj_trainer.contract.report import CheckpointRef as CheckpointRef
from dtj_trainer.contract.report import Phases as Phases
from dtj_trainer.contract.report import PodCheckpoint as PodCheckpoint
from dtj_trainer.contract.report import Progress as Progress
from dtj_trainer.contract.report import Report as Report
from dtj_trainer.contract.report import RestoredRef as RestoredRef
from dtj_trainer.contract.report import RoundRestarts as RoundRestarts
from dtj_trainer.contract.report import Source as Source
from dtj_trainer.contract.report import Termination as Termination
from dtj_trainer.contract.report import Utilisation as Utilisation

# --- environment given to every replica -------------------------------------------------------

ENV_JOB = "DTJ_JOB"
ENV_NAMESPACE = "DTJ_NAMESPACE"
ENV_UID = "DTJ_UID"
ENV_ATTEMPT = "DTJ_ATTEMPT"
"""The attempt of the job in which this pod was created, counted from 1."""
ENV_ROLE = "DTJ_ROLE"
ENV_INDEX = "DTJ_INDEX"
ENV_POD = "DTJ_POD"
"""The pod's role, index and duties in its job: a PodInfo as JSON."""
ENV_STRATEGY = "DTJ_STRATEGY"
ENV_WORLD_SIZE = "DTJ_WORLD_SIZE"
"""The requested number of ranks. A job that would run on fewer ranks is refused at its start."""
ENV_SLOTS_PER_WORKER = "DTJ_SLOTS_PER_WORKER"
ENV_START_BARRIER = "DTJ_START_BARRIER"
"""`host:port` of the pod with rank 0, where the pods of a TorchDistributed job wait until all of them are ready to
start their ranks; unset: a pod starts its ranks at once. In a Horovod job that restarts in place, `host:port` is that
of the launcher."""
ENV_ROUND = "DTJ_ROUND"
"""The number of restarts in place before the start of this rank."""
ENV_GPUS = "DTJ_GPUS"
"""The number of requested accelerators; unset: none. A pod that has none of them does not start its program."""
ENV_GPU_RESOURCE = "DTJ_GPU_RESOURCE"
"""The resource name of the accelerators in Kubernetes, for example nvidia.com/gpu."""
ENV_UPDATES = "DTJ_UPDATES"
"""`Asynchronous` or `Synchronous`: how a ParameterServer job's workers update the variables."""
ENV_TF_CONFIG = "TF_CONFIG"
"""TensorFlow's own variable: cluster, task and environment as Kubeflow's TFJob sets them."""
ENV_TF_CLUSTER = "DTJ_TF_CLUSTER"
"""The part `cluster` of TF_CONFIG, which all replicas share; from the job's ConfigMap."""
ENV_ARTIFACTS_URI = "DTJ_ARTIFACTS_URI"
"""The job's own prefix, `s3://bucket/prefix/<namespace>/<name>-<short uid>`; unset: no artifacts are kept."""
ENV_DATA_URI = "DTJ_DATA_URI"
ENV_CODE_ARCHIVE = "DTJ_CODE_ARCHIVE"
"""The archive of `spec.code`: a path, or an `s3://` URI; unset: the program is in the image."""
ENV_CODE_DIGEST = "DTJ_CODE_DIGEST"
"""`sha256:` and the SHA-256 of this archive in hex digits."""
ENV_CODE_COMMIT = "DTJ_CODE_COMMIT"
"""The Git commit of the folder in this archive, in hex digits; unset: unknown."""
ENV_PACKAGES_ARCHIVE = "DTJ_PACKAGES_ARCHIVE"
"""The archive of wheels of `spec.code.packages`: a path, or an `s3://` URI; unset: the job has none."""
ENV_PACKAGES_DIGEST = "DTJ_PACKAGES_DIGEST"
"""`sha256:` and the SHA-256 of this archive in hex digits."""
ENV_PACKAGES_CACHE = "DTJ_PACKAGES_CACHE"
"""A folder that pods share, where each set of packages is installed once; unset: each pod installs its own."""
ENV_DATA_CACHE = "DTJ_DATA_CACHE"
"""The folder of the job's `spec.data.cache`, in pods that read data; unset: the job has none."""
ENV_DATA_CACHE_BYTES = "DTJ_DATA_CACHE_BYTES"
"""The number of bytes that the files in ENV_DATA_CACHE may have."""
ENV_RESTORE_PEERS = "DTJ_RESTORE_PEERS"
"""`true`, the default, or `false`: whether pods get files of a checkpoint from each other at a restore."""
ENV_TRACKING_URI = "DTJ_TRACKING_URI"
"""The URL of the MLflow server in `spec.tracking`, in the pod that uploads the metrics; unset: the job names none."""
ENV_TRACKING_EXPERIMENT = "DTJ_TRACKING_EXPERIMENT"
"""The name of the experiment in `spec.tracking`."""
ENV_TRACKING_START_SECONDS = "DTJ_TRACKING_START_SECONDS"
"""Seconds that the first attempt waits for its run before it starts its programs; 10 by default."""
ENV_TRACKING_END_SECONDS = "DTJ_TRACKING_END_SECONDS"
"""Seconds that a pod waits at its end for a tracking server to take the last metrics; 20 by default."""
ENV_RESUME = "DTJ_RESUME"
"""`Auto`, `Never`, or the `s3://` prefix of another job's checkpoints. With ENV_RESUME_SINCE: the URI of one of the
job's own checkpoints."""
ENV_RESUME_SINCE = "DTJ_RESUME_SINCE"
"""The first attempt after the user went back to the job's own checkpoint in ENV_RESUME. A restore ignores all other
checkpoints of the attempts before."""
ENV_RESUME_SKIP = "DTJ_RESUME_SKIP"
"""Folders of checkpoints, separated by spaces, from which earlier attempts could not resume. A restore takes other
checkpoints where it can."""
ENV_READ_OUTPUT = "DTJ_READ_OUTPUT"
"""`true`, the default: steps and measures are read from the output of a program that shows them nowhere else, and a
stall of such steps restarts nothing. `trusted`: such a stall counts as any other. `false`: the output is not read."""
ReadOutput = Literal["true", "false", "trusted"]
ENV_PROGRESS_PORT = "DTJ_PROGRESS_PORT"
ENV_ROOT = "DTJ_ROOT"
"""The workspace's path: `/dtj` in a container, a folder of its own for a local process."""
ENV_CONFIG_DIR = "DTJ_CONFIG_DIR"
ENV_TERMINATION_LOG = "DTJ_TERMINATION_LOG"
"""The path of the termination message, if not TERMINATION_LOG."""
ENV_PEER_TIMEOUT_SECONDS = "DTJ_PEER_TIMEOUT_SECONDS"
"""Seconds that a launcher waits for its hosts, the pods at the start barrier for each other, and the built-in chief
for the other replicas; 300 by default."""
ENV_SYNC_TIMEOUT_SECONDS = "DTJ_SYNC_TIMEOUT_SECONDS"
"""Seconds that a pod waits for S3 at its start (restore) and at its end (last uploads); 600 by default."""
ENV_CHECKPOINTS_DIR = "DTJ_CHECKPOINTS_DIR"
"""The folder that has the job's checkpoints instead of CHECKPOINTS, absolute or relative to the container's working
directory. `dtj-launch` makes the path absolute for the program."""
ENV_CHECKPOINTS_KEEP = "DTJ_CHECKPOINTS_KEEP"
"""How many of the newest checkpoints are kept in addition to the best one by metric; 3 by default."""
ENV_CHECKPOINTS_KEEP_EVERY_MINUTES = "DTJ_CHECKPOINTS_KEEP_EVERY_MINUTES"
"""The first checkpoint of each period of so many minutes is kept as well; 0, the default: none."""
ENV_CHECKPOINTS_KEEP_BYTES = "DTJ_CHECKPOINTS_KEEP_BYTES"
"""The number of bytes that one checkpoint may have: the oldest files of the most numerous kind are left out. 0, the
default: no limit."""
ENV_CHECKPOINT_SETTLE_SECONDS = "DTJ_CHECKPOINT_SETTLE_SECONDS"
"""Seconds without a change after which a checkpoint not made by `dtj_trainer` counts as complete; 5 by default."""
ENV_S3_SSE = "DTJ_S3_SSE"
"""The server-side encryption of every object, `AES256` or `aws:kms`; unset: the bucket's default."""
ENV_S3_SSE_KMS_KEY_ID = "DTJ_S3_SSE_KMS_KEY_ID"
"""The key for ENV_S3_SSE `aws:kms`; unset: the account's own key for S3."""
ENV_S3_SSE_BUCKET_KEY = "DTJ_S3_SSE_BUCKET_KEY"
"""`true` or `false`: whether ENV_S3_SSE `aws:kms` uses the bucket's key of S3; unset: the bucket's default."""
ENV_S3_SSE_CUSTOMER_KEY = "DTJ_S3_SSE_CUSTOMER_KEY"
"""The key of SSE-C, 32 bytes in base64, that each request for an object brings along. A secret."""
ENV_S3_REQUEST_PAYER = "DTJ_S3_REQUEST_PAYER"
"""`requester`: the job pays for its requests to requester-pays buckets."""
ENV_S3_ADDRESSING_STYLE = "DTJ_S3_ADDRESSING_STYLE"
"""The place of the bucket in a URL: `path`, `virtual` or `auto`."""
S3_SETTINGS = (
    ENV_S3_SSE,
    ENV_S3_SSE_KMS_KEY_ID,
    ENV_S3_SSE_BUCKET_KEY,
    ENV_S3_SSE_CUSTOMER_KEY,
    ENV_S3_REQUEST_PAYER,
    ENV_S3_ADDRESSING_STYLE,
)
"""The variables that every S3 client of a job reads in addition to the AWS variables."""
ENV_UPLOAD_MB_PER_SECOND = "DTJ_UPLOAD_MB_PER_SECOND"
"""The limit in megabytes a second of a pod's uploads of checkpoints and models while its program runs; 40 by
default, 0: no limit."""
ENV_SSH_PORT = "DTJ_SSH_PORT"
"""The port of the workers' sshd, if not SSH_PORT (tests on one machine)."""
ENV_SSH_AFTER_RESTORE = "DTJ_SSH_AFTER_RESTORE"
"""Set for workers whose ranks the launcher's own command starts. dtj-launch can't make such ranks wait for the
restore: sshd starts after the restore instead."""
ENV_MPI_ARGS = "DTJ_MPI_ARGS"
"""Additional arguments for mpirun, in shell words."""
ENV_MPIRUN = "DTJ_MPIRUN"
"""The mpirun that starts the ranks on the workers, if not the first one on the image's PATH."""
ENV_LOCAL_WORKERS = "DTJ_LOCAL_WORKERS"
"""Set if the ranks of a job all run on one machine and start without ssh: the workspace of the pod with index n, of
the role that runs ranks, is this prefix followed by n."""
ENV_ROOT_VARIABLES = "DTJ_ROOT_VARIABLES"
"""If the workspace is not at ROOT: names, separated by spaces, of the job's own variables that contain ROOT."""
ENV_RANKS_BY = "DTJ_RANKS_BY"
"""What starts and connects the ranks of a job with DTJ_LOCAL_WORKERS: `mpi` or `gloo`; the default is `mpi` if mpirun
is installed."""

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "HOROVOD_RANK", "RANK")
"""The variables with a rank's number: Open MPI, PMIx, PMI (MPICH), Horovod with gloo, torchrun."""

PER_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "ROLE_RANK", "TORCHELASTIC_ERROR_FILE")
"""The variables that dtj-launch sets for each rank of a TorchDistributed pod. `$(NAME)` in the words of the program
becomes the value of the rank: the operator's plan keeps the kubelet from expanding it."""

PER_ROUND_VARIABLES = ("MASTER_PORT", "PET_MASTER_PORT", "PET_RDZV_ENDPOINT", "TORCHELASTIC_RESTART_COUNT")
"""The variables that dtj-launch sets for each round of a job whose ranks are restarted in place. `$(NAME)` becomes
the value of the round, as for PER_RANK_VARIABLES."""


def rank_of(environment: Mapping[str, str]) -> int | None:
    """Return the rank of the process with this environment; None where no variable sets a rank."""
    found = (environment.get(name, "") for name in RANK_VARIABLES)
    return next((int(text) for text in found if text.isdecimal()), None)


# --- addresses in S3 ---------------------------------------------------------------------------

_BUCKET_NAME = r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]"
"""A bucket's name, or the alias of an access point. Old buckets of AWS and other stores' may have an underscore."""
_TENANTS_BUCKET = r"[A-Za-z0-9_]+:[a-z][a-z0-9._-]{1,61}[a-z0-9]"
"""Ceph's `tenant:bucket`. The bucket must begin with a letter, so that `host:9000` does not match."""
_ACCESS_POINT = r"arn:aws[a-z-]*:s3:[a-z0-9-]+:[0-9]{12}:accesspoint/[a-z0-9-]{3,50}"
S3_BUCKET = f"({_BUCKET_NAME}|{_TENANTS_BUCKET}|{_ACCESS_POINT})"
"""A regular expression for the bucket in an s3:// URI, also valid in Go's RE2 and in CEL."""

# --- paths and ports ---------------------------------------------------------------------------

ROOT = PurePosixPath("/dtj")
_SEPARATORS = r"""\s:,;|&<>()\[\]{}'\""""
ROOT_IN_TEXT = re.compile(rf"(?<![^={_SEPARATORS}]){ROOT}(?![^/{_SEPARATORS}])")
"""Matches ROOT as a word, or as the beginning of a path, in a word of a command, a shell command or a variable."""
CONFIG_DIR = PurePosixPath("/etc/dtj")
"""The mounted ConfigMap of the job: hostfile, sshd_config, ssh_config, start.sh, strategy.sh, rank.sh, job.yaml."""
SSH_DIR = PurePosixPath("/etc/dtj-ssh")
"""The job's key pair: ssh_key, authorized_keys, known_hosts."""
CODE_DIR = PurePosixPath("/etc/dtj-code")
"""The mounted ConfigMap of `spec.code`."""
CODE_FILE = "code.tar.gz"
"""The archive in CODE_DIR, its key in the ConfigMap, and the key of its copy in the bucket."""
PACKAGES_DIR = PurePosixPath("/etc/dtj-packages")
"""The mounted ConfigMap of `spec.code.packages`."""
PACKAGES_FILE = "packages.tar.gz"
"""The archive in PACKAGES_DIR, and its key in the ConfigMap."""
TERMINATION_LOG = PurePosixPath("/dev/termination-log")
TERMINATION_MESSAGE_BYTES = 4096
"""The longest termination message that the kubelet keeps."""

SSH_PORT = 2222
TENSORFLOW_PORT = 2222
"""The port of every task in TF_CONFIG. The container's port is called `tfjob-port`, as in a TFJob."""
TENSORFLOW_SILENCE_SECONDS = 30
"""A connection between tasks breaks after this long without an answer from the peer, as an ssh connection does."""
PROGRESS_PORT = 8474
START_BARRIER_PORT = 8475
"""The port of ENV_START_BARRIER. The container's port is called `start-barrier`."""
PEERS_PORT = 8476
"""The port where a pod gives files of the checkpoint that it restores to the job's other pods."""
TENSORBOARD_PORT = 6006
"""The port of the TensorBoard that a job may have in the cluster."""
STACKS_PATH = "/stacks"
"""POST to this path on PROGRESS_PORT makes the pod write STACKS_FILES of all its programs."""
TERMINATION_GRACE_SECONDS = 120
"""Seconds from SIGTERM to SIGKILL of a pod: for ranks to save a checkpoint, its upload, and the termination
message."""
STOP_SECONDS = 45
"""Seconds from SIGTERM for the programs of a pod to save a checkpoint and end by themselves."""


def root() -> PurePosixPath:
    """Return the workspace of this process."""
    return PurePosixPath(os.environ.get(ENV_ROOT, str(ROOT)))


def checkpoints() -> PurePosixPath:
    """Return the folder of checkpoints, by the path that the program uses."""
    return PurePosixPath(os.environ.get(ENV_CHECKPOINTS_DIR) or root() / CHECKPOINTS)


# These constants are paths of files and folders, relative to `root()`.
CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"
MODEL = "model"
CODE = "code"
"""The unpacked archive of `spec.code`, which is the working directory of the programs. Never uploaded."""
PACKAGES = "packages"
"""A link to the folder of the installed packages of `spec.code.packages`. Never uploaded."""
DATA = "data"
DATA_CACHE = "data-cache"
"""Blocks of data sets, and files of restored checkpoints, on the volume of `spec.data.cache`. Never uploaded."""
LOGS = "logs"
STACKS_FILES = "stacks-*.txt"
"""Stacks that a POST to /stacks wrote to LOGS: `stacks-<rank>-<n>.txt`, or `stacks-<role>-<index>-<n>.txt` for a
program that is no rank. `<n>` counts the dumps."""
METRICS_FILE = "metrics.jsonl"
EVALUATOR_METRICS_FILE = "metrics-evaluator.jsonl"
"""The evaluator's METRICS_FILE in the bucket, beside the chief's."""
UTILISATION = "utilisation"
"""Samples of the resources that the programs of the pod use: `<role>-<index>.jsonl`, and event files."""
RUN = "run"
"""A folder in memory for files of the running pod. Never uploaded."""
FOLDERS = (CHECKPOINTS, TENSORBOARD, MODEL, DATA, LOGS, RUN)
"""The folders that `dtj-launch` makes."""
ENVIRONMENT_FILE = "run/environment"
"""The pod's environment as `export -p` prints it. An ssh session starts without it: rank.sh reads the file."""
PROGRESS_FILE = "run/progress.json"
"""The progress that a program writes (atomically, by rename) and `launch` serves on `/progress`."""
FAILURE_FILE = "run/failure-{rank}.json"
"""The cause of its failure that a program may write before it exits: `{"class": …, "message": …}`."""
TORCH_ERROR_FILE = "run/torch-error-{rank}.json"
"""The value of TORCHELASTIC_ERROR_FILE. `torch.distributed.elastic.multiprocessing.errors.record` writes the
exception of a rank into the file."""

TRACKING_FILE = "tracking.json"
"""The job's run at a tracking server, and what was sent there. The file has the same name in the bucket."""
TRACKED_RUN_FILE = "run/tracked-run.json"
"""The run at the tracking server. dtj-launch sets variables of rank 0 from this file."""

# In the bucket, below ENV_ARTIFACTS_URI: checkpoints/<step>[-<claim>]/{…,manifest.json}, tensorboard/, model/,
# logs/attempt-<attempt>/{launcher-0,rank-<rank>,<role>-<index>}.log, metrics.jsonl, metrics-evaluator.jsonl,
# utilisation/attempt-<attempt>/<role>-<index>.jsonl, tensorboard/utilisation/attempt-<attempt>/<role>-<index>/,
# attempt.json, attempt-evaluator.json, tracking.json, run.json, end.json, job.yaml, code.tar.gz. Logs, metrics,
# utilisation and event files are stored in segments: metrics.jsonl, metrics.jsonl.00002, …
# (`dtj_trainer.artifacts.segments`).
MANIFEST_FILE = "manifest.json"
MODEL_DESCRIPTION_FILE = "model.json"
"""In MODEL: what a server needs to know of the model."""
MODEL_ONNX_FILE = "model.onnx"
"""In MODEL: the model in ONNX form, from the command `dtj export` or from an export at the end of the training."""
CLAIM_FILE = "attempt.json"
"""The attempt that may write (`dtj_trainer.artifacts.fence`). Only conditional writes replace the object."""
EVALUATOR_CLAIM_FILE = "attempt-evaluator.json"
"""The evaluator's CLAIM_FILE. The evaluator restarts alone, so that its attempts are counted separately."""
JOB_FILE = "job.yaml"

# --- exit codes of dtj's own checks (sysexits.h; a program's own code passes through) -----------

EXIT_CONFIG = 78
EXIT_UNAVAILABLE = 69
EXIT_DATA = 65
EXIT_COMMAND_NOT_FOUND = 127

RANK_EXIT_MARKER = "dtj-rank-exit: "
"""A rank's wrapper prints this marker and a Termination as JSON on one line, for the launcher to read from mpirun."""

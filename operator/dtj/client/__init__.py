"""The Python SDK, with which a program manages the jobs of a cluster."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dtj.api.errors import DtjError, NotFound, TimedOut, Unreachable, Unusable
from dtj.api.job import Fault
from dtj.api.spec import (
    Accelerator,
    ArtifactStore,
    CacheClaim,
    CacheEmptyDir,
    CacheHostPath,
    CacheMedium,
    ChiefSpec,
    CleanPodPolicy,
    Code,
    Data,
    DataCache,
    EnvVar,
    EvaluatorSpec,
    Gang,
    Horovod,
    HorovodLauncher,
    JobSpec,
    MLflow,
    Packages,
    ParameterServer,
    ReplicaSpec,
    ReplicaSpecs,
    Resources,
    RestartStrategy,
    Resume,
    RunPolicy,
    SchedulingPolicy,
    StallPolicy,
    StartedBy,
    TensorBoard,
    Torch,
    Tracking,
    Updates,
    WarmSpare,
)
from dtj.api.status import ConditionType, JobStatus, Phase, ProgressStatus
from dtj.api.strategies import Strategy
from dtj.client.artifacts import Artifacts, StoredCheckpoint
from dtj.client.history_query import HistoryQuery, SortBy
from dtj.client.objects import JobEvent, LogLine, LogQuery, Pod, PodUsage
from dtj.client.past_job import EndRecord, PastJob, PodPlace, RunRecord
from dtj.client.resource import DistributedTrainingJob, InvalidJobError, Metadata

if TYPE_CHECKING:
    from dtj.client.async_client import AsyncClient
    from dtj.client.history import History
    from dtj.client.sync_client import Client

__all__ = [
    "Accelerator",
    "ArtifactStore",
    "Artifacts",
    "AsyncClient",
    "CacheClaim",
    "CacheEmptyDir",
    "CacheHostPath",
    "CacheMedium",
    "ChiefSpec",
    "CleanPodPolicy",
    "Client",
    "Code",
    "ConditionType",
    "Data",
    "DataCache",
    "DistributedTrainingJob",
    "DtjError",
    "EndRecord",
    "EnvVar",
    "EvaluatorSpec",
    "Fault",
    "Gang",
    "History",
    "HistoryQuery",
    "Horovod",
    "HorovodLauncher",
    "InvalidJobError",
    "JobEvent",
    "JobSpec",
    "JobStatus",
    "LogLine",
    "LogQuery",
    "MLflow",
    "Metadata",
    "NotFound",
    "Packages",
    "ParameterServer",
    "PastJob",
    "Phase",
    "Pod",
    "PodPlace",
    "PodUsage",
    "ProgressStatus",
    "ReplicaSpec",
    "ReplicaSpecs",
    "Resources",
    "RestartStrategy",
    "Resume",
    "RunPolicy",
    "RunRecord",
    "SchedulingPolicy",
    "SortBy",
    "StallPolicy",
    "StartedBy",
    "StoredCheckpoint",
    "Strategy",
    "TensorBoard",
    "TimedOut",
    "Torch",
    "Tracking",
    "Unreachable",
    "Unusable",
    "Updates",
    "WarmSpare",
]

# Import these classes on first use: the Kubernetes client takes half a second of CPU to import. A program that reads
# a job file or a local run does not need the Kubernetes client.
_LAZY_MODULES = {
    "AsyncClient": "dtj.client.async_client",
    "Client": "dtj.client.sync_client",
    "History": "dtj.client.history",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return getattr(import_module(_LAZY_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The Python SDK, with which a program manages the jobs of a cluster."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dtj.api.code import Code, Packages
from dtj.api.condition_types import ConditionType
from dtj.api.data import CacheClaim, CacheEmptyDir, CacheHostPath, CacheMedium, Data, DataCache
from dtj.api.errors import DtjError, NotFound, TimedOut, Unreachable, Unusable
from dtj.api.horovod import Horovod, HorovodLauncher
from dtj.api.job import Fault
from dtj.api.parameter_server import ParameterServer, Updates
from dtj.api.scheduling import Gang, SchedulingPolicy
from dtj.api.spec import (
    Accelerator,
    ArtifactStore,
    ChiefSpec,
    CleanPodPolicy,
    EnvVar,
    EvaluatorSpec,
    JobSpec,
    ReplicaSpec,
    ReplicaSpecs,
    Resources,
    Resume,
    RunPolicy,
    StallPolicy,
    TensorBoard,
)
from dtj.api.status import JobStatus, Phase, ProgressStatus
from dtj.api.strategies import Strategy
from dtj.api.torch_distributed import StartedBy, Torch
from dtj.api.tracking import MLflow, Tracking
from dtj.client.artifacts import Artifacts, StoredCheckpoint
from dtj.client.history_query import HistoryQuery, SortBy
from dtj.client.past_job import EndRecord, PastJob, PodPlace, RunRecord
from dtj.client.resource import DistributedTrainingJob, InvalidJobError, Metadata
from dtj.client.views import JobEvent, LogLine, LogQuery, Pod, PodUsage

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

"""The Python SDK: jobs of a cluster, from a program."""

from __future__ import annotations

from dtj.api.errors import DtjError, NotFound, TimedOut, Unreachable, Unusable
from dtj.api.job import Fault
from dtj.api.spec import (
    Accelerator,
    ArtifactStore,
    ChiefSpec,
    CleanPodPolicy,
    Data,
    EnvVar,
    EvaluatorSpec,
    Horovod,
    HorovodLauncher,
    JobSpec,
    ParameterServer,
    ReplicaSpec,
    ReplicaSpecs,
    Resources,
    Resume,
    RunPolicy,
    Strategy,
    Updates,
)
from dtj.api.status import ConditionType, JobStatus, Phase
from dtj.client.artifacts import Artifacts, StoredCheckpoint
from dtj.client.async_client import AsyncClient
from dtj.client.resource import DistributedTrainingJob, InvalidJobError, Metadata
from dtj.client.sync_client import Client
from dtj.client.views import JobEvent, LogLine, PodUsage
from dtj.status.pods import PodView

__all__ = [
    "Accelerator",
    "ArtifactStore",
    "Artifacts",
    "AsyncClient",
    "ChiefSpec",
    "CleanPodPolicy",
    "Client",
    "ConditionType",
    "Data",
    "DistributedTrainingJob",
    "DtjError",
    "EnvVar",
    "EvaluatorSpec",
    "Fault",
    "Horovod",
    "HorovodLauncher",
    "InvalidJobError",
    "JobEvent",
    "JobSpec",
    "JobStatus",
    "LogLine",
    "Metadata",
    "NotFound",
    "ParameterServer",
    "Phase",
    "PodUsage",
    "PodView",
    "ReplicaSpec",
    "ReplicaSpecs",
    "Resources",
    "Resume",
    "RunPolicy",
    "StoredCheckpoint",
    "Strategy",
    "TimedOut",
    "Unreachable",
    "Unusable",
    "Updates",
]

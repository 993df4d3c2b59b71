"""`spec.data` of a DistributedTrainingJob: the data set, and the cache of its blocks."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from dtj.api.base import OBJECT_NAME, ApiModel, Quantity
from dtj_trainer import contract

DATA_URI = rf"^(s3://{contract.S3_BUCKET}(/[^\s?#]*)?|file:///[^\s?#]*)$"
NODE_FOLDER = r"^(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+$"


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
    """Not given: the node's disk. Memory: the node's memory, which counts as the container's."""


class CacheHostPath(ApiModel):
    """A folder of each node. Pod Security levels baseline and restricted forbid it."""

    path: Annotated[str, Field(pattern=NODE_FOLDER, max_length=1024)]
    """The folder on the node. Jobs use the folder <path>/<namespace>. Who runs the cluster has to allow the path
    (dataCache.hostPathPrefixes of the chart), and to make it writable for the pods' user."""


class DataCache(ApiModel):
    """A cache of blocks, on one of three kinds of volumes."""

    size: Quantity
    """How much it may hold, at least 1Gi. Blocks that were used least recently make room for others."""
    persistent_volume_claim: CacheClaim | None = None
    """A PersistentVolumeClaim, which all pods and later jobs share."""
    empty_dir: CacheEmptyDir | None = None
    """A folder of each pod's own, which its ranks share."""
    host_path: CacheHostPath | None = None
    """A folder of each node, which the node's pods and later jobs of the namespace share."""


class Data(ApiModel):
    """The data set."""

    uri: Annotated[str, Field(pattern=DATA_URI, max_length=1024)]
    """s3://bucket/prefix, or file:///path for a volume mounted by the template. Given as DTJ_DATA_URI."""
    cache: DataCache | None = None
    """Where pods keep blocks of shards with an index: one of persistentVolumeClaim, emptyDir and hostPath. Given as
    DTJ_DATA_CACHE to pods that read data; the built-in programs use it by themselves."""

"""The volume for blocks of the data set, in the pods of every strategy that read data."""

from __future__ import annotations

from typing import assert_never

from dtj.api.data import CacheClaim, CacheEmptyDir, CacheHostPath, DataCache
from dtj.api.data_rules import cache_bytes, cache_of
from dtj.api.job import Job, Manifest
from dtj.api.pod_template import DATA_CACHE_VOLUME, TRAINER_CONTAINER
from dtj_trainer import contract

_FOLDER = str(contract.ROOT / contract.DATA_CACHE)


def cache_environment(job: Job) -> dict[str, str]:
    """Return the variables that name the cache and its size; empty where the job has none."""
    cache = cache_of(job)
    if cache is None:
        return {}
    return {contract.ENV_DATA_CACHE: _FOLDER, contract.ENV_DATA_CACHE_BYTES: str(cache_bytes(cache))}


def cache_pod_spec(job: Job) -> Manifest:
    """Return what a pod spec needs for the cache; empty where the job has none."""
    cache = cache_of(job)
    if cache is None:
        return {}
    mount = {"name": DATA_CACHE_VOLUME, "mountPath": _FOLDER}
    security: Manifest = {}
    source = cache.persistent_volume_claim or cache.empty_dir or cache.host_path
    volume: Manifest
    match source:
        case CacheClaim():
            volume = {"persistentVolumeClaim": {"claimName": source.claim_name}}
            # Otherwise the kubelet would set the group of each block at the start of each pod.
            security = {"securityContext": {"fsGroupChangePolicy": "OnRootMismatch"}}
        case CacheEmptyDir():
            volume = {"emptyDir": _empty_dir(cache, source)}
        case CacheHostPath():
            volume = {"hostPath": {"path": source.path, "type": "DirectoryOrCreate"}}
            # Jobs of one namespace must not see the files of another. The kubelet creates the folder with the mode of
            # the folder around it.
            mount["subPath"] = job.namespace
        case None:
            raise ValueError("a cache without a volume: the job has faults")
        case _:
            assert_never(source)
    return {
        "containers": [{"name": TRAINER_CONTAINER, "volumeMounts": [mount]}],
        "volumes": [{"name": DATA_CACHE_VOLUME, **volume}],
        **security,
    }


def _empty_dir(cache: DataCache, source: CacheEmptyDir) -> Manifest:
    # The kubelet evicts a pod beyond the limit. The ranks of a pod may exceed the size for a moment, because each of
    # them makes room only after some blocks of its own.
    limit = {"sizeLimit": str(cache_bytes(cache) * 5 // 4)}
    return {"medium": source.medium.value, **limit} if source.medium else limit

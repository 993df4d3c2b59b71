"""What can't work of `spec.data`, and what who runs the cluster has to allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal

from dtj.api.data import DataCache
from dtj.api.job import Fault, Job
from dtj.api.pod_schema import QUANTITY
from dtj.api.quantities import amount
from dtj.api.shown import enumerated, key_shown, shown

LEAST_BYTES = 1024**3
"""The smallest cache: several ranks write some blocks each before one of them makes room."""
MOST_BYTES = 1024**5
_LONGEST_SIZE = 32
_CACHE = "spec.data.cache"
_VOLUMES = ("persistentVolumeClaim", "emptyDir", "hostPath")
_PATH = f"{_CACHE}.hostPath.path"


def cache_of(job: Job) -> DataCache | None:
    """The cache of a job's data set, where the job asks for one."""
    return job.spec.data.cache if job.spec.data else None


def cache_bytes(cache: DataCache) -> int:
    """The bytes that a cache without faults may hold."""
    return int(amount(cache.size))


def data_faults(job: Job) -> Iterator[Fault]:
    """Yield what is wrong with a job's `spec.data`."""
    cache = cache_of(job)
    if cache is None:
        return
    volumes = (cache.persistent_volume_claim, cache.empty_dir, cache.host_path)
    given = [name for name, volume in zip(_VOLUMES, volumes, strict=True) if volume is not None]
    if len(given) != 1:
        got = enumerated(given, "and") if given else "none"
        yield Fault(_CACHE, f"give one of {enumerated(_VOLUMES, 'and')}, got {got}")
    yield from _size(cache)


def data_notes(job: Job) -> Iterator[str]:
    """Yield what a job without faults needs of its cluster for `spec.data`."""
    cache = cache_of(job)
    if cache is not None and cache.host_path is not None:
        yield (
            f"data.cache.hostPath: the operator refuses the job unless its dataCache.hostPathPrefixes allow "
            f"{cache.host_path.path}; Pod Security levels baseline and restricted forbid the pods"
        )


def _size(cache: DataCache) -> Iterator[Fault]:
    path = f"{_CACHE}.size"
    size = _bytes(cache.size)
    if size is None:
        yield Fault(path, f"{shown(cache.size)} is not a quantity of bytes such as 100Gi")
    elif not LEAST_BYTES <= size <= MOST_BYTES:
        yield Fault(path, f"must be from 1Gi to 1Pi, got {key_shown(cache.size)}")


def _bytes(size: int | str) -> Decimal | None:
    """Return the bytes that a quantity means; None for what is none."""
    if isinstance(size, int):
        return Decimal(size)
    if len(size) > _LONGEST_SIZE or not QUANTITY.fullmatch(size):
        return None
    try:
        return amount(size)
    except ArithmeticError:  # an exponent that no number has
        return None


def host_path_faults(job: Job, allowed: Sequence[str]) -> Iterator[Fault]:
    """Yield why an operator refuses a cache in a folder of the node.

    allowed: folders of nodes below which jobs may have a cache, or which they may be; empty: none.
    """
    cache = cache_of(job)
    if cache is None or cache.host_path is None:
        return
    path = cache.host_path.path
    if any(f"{path}/".startswith(f"{prefix.rstrip('/')}/") for prefix in allowed):
        return
    if allowed:
        yield Fault(_PATH, f"must be {enumerated(allowed, 'or')}, or a folder below, got {shown(path)}")
    else:
        yield Fault(
            _PATH,
            "this cluster's operator allows no folder of a node: use persistentVolumeClaim or emptyDir, or ask "
            "who runs the cluster to allow the folder (dataCache.hostPathPrefixes of the chart)",
        )

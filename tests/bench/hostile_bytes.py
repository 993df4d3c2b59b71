"""Objects of one tenant that are as large as the API server takes them, and an honest job beside them."""

from __future__ import annotations

import time

from dtj.api.identity import API_VERSION, KIND, LABEL_JOB, LABEL_MANAGED_BY, MANAGER
from dtj.api.manifest_check import MOST_ENTRIES
from dtj.api.nesting import MOST_LEVELS
from tests.bench.api_client import ApiClient, Manifest
from tests.bench.control_plane import ControlPlane
from tests.bench.crowd import at_once, crowd, namespace
from tests.bench.ended_jobs import megabytes_of_ended
from tests.bench.honest import BARE, MADE, RATIO, Figures, bare_process, honest_figures, honest_targets
from tests.bench.jobs import collection, job, jobs_path
from tests.bench.operator_process import Operator, cpu_seconds, operating, until
from tests.bench.pod_mover import AT_ONCE
from tests.bench.targets import Target
from tests.cluster.progress import ClusterError, step

_STRATEGY = "Horovod"
_PLACE = "hostile-bytes"
_HUGE, _AT_LIMITS, _CONFIGS = 100, 1_000, 500
_ENDED = 10_000
_HONEST = 10
_SENT_AT_ONCE = 2
_WAIT_SECONDS = 900.0
# Of the 1.5 MiB that etcd takes, what remains for the rest of a job and for its managedFields.
_HUGE_BYTES = 1_400_000
_MORE = f"{_ENDED} ended jobs: memory, MB"

TARGETS = (
    *honest_targets("hostile-bytes"),
    Target("ended-jobs/memory/120MB", _MORE, 120),
)


async def hostile_bytes(plane: ControlPlane, admin: ApiClient, part: float = 1.0) -> dict[str, Figures]:
    """The figures without the hostile tenant, with it, and of an operator that starts beside it.

    part: of the number of the tenant's objects, for a slow machine.
    """
    with step(f"{_ENDED} ended jobs"):
        ended = {_MORE: await megabytes_of_ended(_ENDED)}
    async with operating(plane) as operator, bare_process() as bare:
        with step("an honest job alone"):
            alone = await _honest(plane, admin, operator, "honest-alone") | {BARE: await bare()}
        await admin.create("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": _PLACE}})
        with step("the objects of a hostile tenant"):
            seconds = await _attack(admin, part)
        with step("an honest job beside them"):
            await until("an empty queue", operator.idle, _WAIT_SECONDS)
            beside = await _honest(plane, admin, operator, "honest-beside") | seconds
            beside[BARE] = await bare()
    begun = time.perf_counter()
    async with bare_process() as bare, operating(plane) as operator:
        with step("the operator starts again"):

            async def caught_up() -> bool:
                jobs = round((_HUGE + _AT_LIMITS) * part)
                return await operator.idle() and (await operator.counts())[1] >= jobs

            await until("a pass over every job", caught_up, _WAIT_SECONDS)
            started = {"start-up until every job was looked at, s": time.perf_counter() - begun}
            started |= await _honest(plane, admin, operator, "honest-again") | {BARE: await bare()}
    for figures in (beside, started):
        figures[RATIO] = figures[MADE] / alone[MADE]
    return {"alone": alone | ended, "beside": beside, "a new operator": started}


async def _honest(plane: ControlPlane, admin: ApiClient, operator: Operator, place: str) -> Figures:
    made_ms = []
    cpu, server = operator.cpu_seconds, sum(map(cpu_seconds, plane.pids.values()))
    async with namespace(admin, place):
        for number in range(_HONEST):
            name = f"honest-{number}"
            async with crowd(admin, place, _STRATEGY, [name], AT_ONCE) as jobs:
                applied = await jobs.apply()
                made_ms.append(((await jobs.made())[name] - applied[name]) * 1000)
                await jobs.phase("Running")
                await jobs.succeed()
                await jobs.phase("Succeeded")
    return {
        **await honest_figures(made_ms, operator),
        "operator: CPU of these jobs, s": operator.cpu_seconds - cpu,
        "API server and etcd: CPU meanwhile, s": sum(map(cpu_seconds, plane.pids.values())) - server,
    }


async def _attack(admin: ApiClient, part: float) -> Figures:
    begun, at_limits = time.perf_counter(), (of_bytes, of_entries, of_levels, of_managed_fields)
    jobs, configs = jobs_path(_PLACE), collection(_PLACE, "ConfigMap")

    async def create(path: str, manifest: Manifest) -> None:
        # The API server gives up a request that takes 34 s, or etcd does, and may have stored its object.
        while True:
            try:
                return await admin.create(path, manifest)
            except ClusterError as error:
                if ": 409 " in str(error):
                    return None
                if not any(word in str(error) for word in (": 504 ", "deadline exceeded", "timed out")):
                    raise

    async def create_huge(number: str) -> None:
        await create(jobs, huge(f"huge-{number}"))

    async def create_at_limit(number: str) -> None:
        kind = at_limits[int(number) % len(at_limits)]
        await create(jobs, kind(f"{kind.__name__.replace('_', '-')}-{number}"))

    async def create_config(number: str) -> None:
        await create(configs, config(f"config-{number}"))

    for count, do in ((_HUGE, create_huge), (_AT_LIMITS, create_at_limit), (_CONFIGS, create_config)):
        await at_once(map(str, range(round(count * part))), do, _SENT_AT_ONCE)
    return {"hostile tenant: all of it made, s": time.perf_counter() - begun}


def huge(name: str) -> Manifest:
    """A job of 1.4 MB that is 30 MB as data."""
    return _job(name, {"tolerations": [{}] * (_HUGE_BYTES // len("{},"))})


def of_bytes(name: str) -> Manifest:
    """A job of long texts, as large as the API server takes it."""
    manifest = _job(name, {})
    texts = [{"name": f"N{number}", "value": "x" * 32_000} for number in range(_HUGE_BYTES // 32_000)]
    manifest["spec"]["env"] = texts
    return manifest


def of_entries(name: str) -> Manifest:
    """A job with as many entries as a job may have."""
    return _job(name, {"tolerations": [{}] * (MOST_ENTRIES - 100)})


def of_levels(name: str) -> Manifest:
    """A job that is nested as deeply as a job may be, in thousands of places."""
    inner: Manifest = {}
    for _ in range(MOST_LEVELS - 10):
        inner = {"a": inner}
    return _job(name, {"overhead": [inner] * (MOST_ENTRIES // MOST_LEVELS)})


def of_managed_fields(name: str) -> Manifest:
    """A job whose annotations and managedFields are most of it."""
    manifest = _job(name, {})
    manifest["metadata"]["annotations"] = {f"annotation-{number}": "" for number in range(14_000)}
    return manifest


def _job(name: str, pod: Manifest) -> Manifest:
    """A job that makes no pods, so that it is the operator alone that has work."""
    manifest = job(name, _PLACE, _STRATEGY)
    assert (manifest["apiVersion"], manifest["kind"]) == (API_VERSION, KIND)
    manifest["spec"]["runPolicy"] = {"suspend": True}
    manifest["spec"]["replicaSpecs"]["worker"]["template"] = {"spec": pod}
    return manifest


def config(name: str) -> Manifest:
    """A ConfigMap with the labels of a job's own."""
    labels = {LABEL_MANAGED_BY: MANAGER, LABEL_JOB: "huge-0"}
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": "huge-0", "uid": "1", "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
        "data": {"text": name + "x" * 1_000_000},
    }

"""The log of a job: sources and order of lines, and a reader that follows pods over cuts and restarts.

* lines of a pod, of a file, and their order by time
* pods and files for a role, an index or a rank
* following over a restart, a cut connection and the deletion of the job
* the lines of one round, also followed
* jobs without pods and without artifacts
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from dtj.api.job import Job
from dtj.client import AsyncClient, LogLine, LogQuery, NotFound, Unusable
from dtj.client.logs import LogSelection, file_line, pod_line
from dtj.client.pod_logs import in_order
from tests.patience import PATIENCE
from tests.unit.support import jobs
from tests.unit.support.http_cluster import HttpCluster
from tests.unit.support.jobs import stored
from tests.unit.support.pods import stored_pod
from tests.unit.support.waiting import until

PS = {
    "strategy": "ParameterServer",
    "replicaSpecs": {"worker": {"replicas": 2}, "ps": {"replicas": 1}, "chief": {}},
}
ENDED = {"phase": "Succeeded", "completionTime": "2026-11-21T13:00:00Z", "conditions": [
    {"type": "Succeeded", "status": "True", "reason": "R", "lastTransitionTime": "2026-11-21T13:00:00Z"}
]}  # fmt: skip


def stamp(second: float, text: str) -> str:
    whole, part = divmod(second, 1)
    return f"2026-11-21T12:00:{int(whole):02}.{round(part * 1e9):09}Z {text}"


async def read(client: AsyncClient, **query: Any) -> list[tuple[str, str]]:
    return [(line.source, line.text) async for line in client.logs("mnist", LogQuery(**query))]


def test_a_line_is_apart_from_its_time_and_its_rank() -> None:
    assert pod_line("2026-11-21T12:00:01.123456789Z [rank 3] loss 0.5", "launcher-0") == LogLine(
        "rank 3", "loss 0.5", datetime(2026, 11, 21, 12, 0, 1, 123456, UTC)
    )
    assert pod_line("2026-11-21T14:00:01+02:00 hello  world", "ps-0") == LogLine(
        "ps-0", "hello  world", datetime(2026, 11, 21, 12, 0, 1, tzinfo=UTC)
    )
    assert pod_line("2026-11-21T12:00:01Z ", "ps-0").text == ""
    assert pod_line("no time", "ps-0") == LogLine("ps-0", "no time")
    assert file_line("[rank 12] [rank 1] x", "launcher-0") == LogLine("rank 12", "[rank 1] x")


def test_logs_are_merged_by_time_and_each_keeps_its_order() -> None:
    one = [pod_line(text, "a") for text in (stamp(1, "a1"), stamp(5, "a2"), "a3", stamp(4, "a4"))]
    two = [pod_line(text, "b") for text in ("b0", stamp(2, "b1"), stamp(5.5, "b2"))]
    assert [line.text for line in in_order([one, two, []])] == ["b0", "a1", "b1", "a2", "a3", "a4", "b2"]


HOROVOD_FILES = ["launcher-0", "rank-0", "rank-1", "rank-2", "rank-3"]
PS_FILES = ["chief-0", "ps-0", "worker-0", "worker-1"]


@pytest.mark.parametrize(
    ("job", "choice", "pods", "files"),
    [
        ({}, {}, ["launcher-0"], ["launcher-0"]),
        ({}, {"rank": 2}, ["launcher-0"], ["rank-2"]),
        ({}, {"role": "launcher"}, ["launcher-0"], ["launcher-0"]),
        ({}, {"role": "worker"}, ["launcher-0", "worker-0", "worker-1"], HOROVOD_FILES[1:]),
        ({}, {"role": "worker", "index": 1}, ["launcher-0", "worker-1"], ["rank-2", "rank-3"]),
        (PS, {}, PS_FILES, PS_FILES),
        (PS, {"role": "worker"}, ["worker-0", "worker-1"], ["worker-0", "worker-1"]),
        (PS, {"role": "worker", "index": 1}, ["worker-1"], ["worker-1"]),
    ],
)
def test_what_is_read_for_a_choice(
    job: dict[str, Any], choice: dict[str, Any], pods: list[str], files: list[str]
) -> None:
    selection = LogSelection(a_job(**job), LogQuery(**choice))
    names = PS_FILES if job else ["launcher-0", "worker-0", "worker-1"]
    assert [name for name in names if selection.has_pod(*split(name))] == pods
    assert selection.files(PS_FILES if job else HOROVOD_FILES) == files


TORCH = {"strategy": "TorchDistributed", "torch": {"procsPerWorker": 2}}
TORCH_PODS = ["worker-0", "worker-1"]


@pytest.mark.parametrize(
    ("choice", "pods", "files"),
    [
        ({}, TORCH_PODS, ["rank-0", "rank-1", "rank-2", "rank-3", *TORCH_PODS]),
        ({"rank": 2}, ["worker-1"], ["rank-2", "worker-1"]),
        ({"role": "worker"}, TORCH_PODS, ["rank-0", "rank-1", "rank-2", "rank-3", *TORCH_PODS]),
        ({"role": "worker", "index": 0}, ["worker-0"], ["rank-0", "rank-1", "worker-0"]),
    ],
)
def test_what_is_read_for_a_choice_where_pods_run_several_ranks_each(
    choice: dict[str, Any], pods: list[str], files: list[str]
) -> None:
    selection = LogSelection(a_job(**TORCH), LogQuery(**choice))

    assert [name for name in TORCH_PODS if selection.has_pod(*split(name))] == pods
    # Ranks that the job's own command starts, as torchrun, share the log of their pod.
    assert selection.files(["rank-0", "rank-1", "rank-2", "rank-3", *TORCH_PODS]) == files


def test_the_ranks_files_are_read_where_the_launchers_is_missing() -> None:
    assert LogSelection(a_job()).files(["rank-0", "rank-1"]) == ["rank-0", "rank-1"]


def test_a_worker_that_the_job_has_no_longer_keeps_its_lines() -> None:
    smaller = a_job(replicaSpecs={"worker": {"replicas": 2}})
    assert LogSelection(smaller, LogQuery("worker", 3)).files(["rank-1", "rank-3"]) == ["rank-3"]


@pytest.mark.parametrize(
    ("job", "choice", "message"),
    [
        (PS, {"rank": 0}, "has no ranks"),
        ({}, {"role": "ps"}, "strategy Horovod has no role ps: its roles are launcher, worker"),
        ({}, {"rank": 0, "role": "worker"}, "can't be combined"),
        ({}, {"index": 0}, "an index needs a role"),
    ],
)
def test_a_choice_that_means_nothing_is_refused(
    job: dict[str, Any], choice: dict[str, Any], message: str
) -> None:
    with pytest.raises(Unusable, match=message):
        LogSelection(a_job(**job), LogQuery(**choice))


async def test_the_launchers_log_has_all_ranks(server: HttpCluster, client: AsyncClient) -> None:
    server.cluster.put(stored())
    for name in ("mnist-launcher-0", "mnist-worker-0", "mnist-worker-1"):
        server.cluster.put(stored_pod(name))
    server.logs.print(
        "mnist-launcher-0",
        stamp(1, "starts"),
        stamp(2, "[rank 1] one"),
        stamp(3, "[rank 0] zero"),
        stamp(4, "[rank 1] two"),
    )
    server.logs.print("mnist-worker-1", stamp(2.5, "ssh"))
    ranks = [("rank 1", "one"), ("rank 0", "zero"), ("rank 1", "two")]
    assert await read(client) == [("launcher-0", "starts"), *ranks]
    assert await read(client, tail=2) == ranks[1:]
    assert await read(client, rank=1) == [ranks[0], ranks[2]]
    assert await read(client, rank=0, tail=1) == [ranks[1]]
    assert await read(client, role="launcher") == [("launcher-0", "starts")]
    assert await read(client, role="worker", index=1) == [ranks[0], ("worker-1", "ssh"), ranks[2]]


async def test_a_rank_is_found_in_the_log_of_its_pod(server: HttpCluster, client: AsyncClient) -> None:
    server.cluster.put(stored(**TORCH))
    for name in TORCH_PODS:
        server.cluster.put(stored_pod(f"mnist-{name}"))
    server.logs.print("mnist-worker-0", stamp(1, "[rank 0] zero"), stamp(2, "[rank 1] one"))
    server.logs.print(
        "mnist-worker-1", stamp(1.5, "restores"), stamp(3, "[rank 3] three"), stamp(4, "[rank 2] two")
    )
    of_1 = [("worker-1", "restores"), ("rank 3", "three"), ("rank 2", "two")]

    assert await read(client) == [("rank 0", "zero"), of_1[0], ("rank 1", "one"), *of_1[1:]]
    assert await read(client, rank=3) == of_1[:2]
    assert await read(client, rank=3, tail=1) == of_1[1:2], "not the last line of the pod, which is rank 2's"
    assert await read(client, role="worker", index=1) == of_1
    assert await read(client, role="worker", index=1, tail=1) == of_1[2:]


async def test_replicas_logs_are_merged_by_time(server: HttpCluster, client: AsyncClient) -> None:
    server.cluster.put(stored(**PS))
    for name in PS_FILES[:3]:
        server.cluster.put(stored_pod(f"mnist-{name}"))
    server.cluster.put(stored_pod("mnist-worker-1", phase="Pending"))
    server.logs.print("mnist-worker-0", stamp(1, "w1"), stamp(3, "w2"))
    server.logs.print("mnist-chief-0", stamp(2, "c1"))
    assert await read(client) == [("worker-0", "w1"), ("chief-0", "c1"), ("worker-0", "w2")]


async def test_a_log_is_followed_over_a_restart_until_the_job_has_ended(
    server: HttpCluster, client: AsyncClient
) -> None:
    told: list[tuple[str, str]] = []

    async def follow() -> None:
        async for line in client.logs("mnist", LogQuery(follow=True)):
            told.append((line.source, line.text))

    server.cluster.put(stored())
    following = asyncio.create_task(follow())
    # Its pods are still to come.
    await until(lambda: any("/pods?" in path for path in server.paths))
    server.cluster.put(stored_pod("mnist-launcher-0"))
    server.logs.print("mnist-launcher-0", stamp(1, "[rank 0] first"))
    await until(lambda: any("follow=true" in path for path in server.paths))
    server.logs.print("mnist-launcher-0", stamp(2, "[rank 0] dies"))
    # Lines come in the order of their arrival: the line of a later pod may overtake one that is not read yet.
    await until(lambda: ("rank 0", "dies") in told)
    server.cluster.put(stored_pod("mnist-launcher-0", attempt=2))
    server.logs.lines["mnist-launcher-0"] = []
    server.logs.print("mnist-launcher-0", stamp(10, "[rank 0] again"))
    server.cluster.put(stored_pod("mnist-launcher-0", attempt=2, phase="Succeeded"))
    server.set_status("mnist", **ENDED)
    await asyncio.wait_for(following, 20 * PATIENCE)
    assert told == [("rank 0", "first"), ("rank 0", "dies"), ("rank 0", "again")]


async def test_a_follower_that_is_cut_misses_nothing_and_tells_nothing_twice(
    server: HttpCluster, client: AsyncClient
) -> None:
    server.cluster.put(stored())
    server.cluster.put(stored_pod("mnist-launcher-0"))
    # Several in the second in which it is cut: the kubelet can only be asked from a whole second on.
    server.logs.print("mnist-launcher-0", *(stamp(1 + n / 10, f"line {n}") for n in range(5)))
    server.logs.cut_after = 3
    following = asyncio.create_task(read(client, follow=True))
    await until(lambda: any("sinceTime" in path for path in server.paths))
    server.cluster.put(stored_pod("mnist-launcher-0", phase="Succeeded"))
    server.set_status("mnist", **ENDED)
    assert await asyncio.wait_for(following, 20 * PATIENCE) == [("launcher-0", f"line {n}") for n in range(5)]


async def test_following_from_the_last_lines_on(server: HttpCluster, client: AsyncClient) -> None:
    server.cluster.put(stored())
    server.cluster.put(stored_pod("mnist-launcher-0"))
    server.logs.print("mnist-launcher-0", *(stamp(n, f"[rank {n % 2}] {n}") for n in range(6)))
    following = asyncio.create_task(read(client, follow=True, rank=1, tail=1))
    await until(lambda: any("follow=true" in path for path in server.paths))
    server.logs.print("mnist-launcher-0", stamp(7, "[rank 1] 7"))
    server.cluster.put(stored_pod("mnist-launcher-0", phase="Succeeded"))
    server.set_status("mnist", **ENDED)
    assert await asyncio.wait_for(following, 20 * PATIENCE) == [("rank 1", "5"), ("rank 1", "7")]


ROUNDS = (
    stamp(1, "starts"),
    stamp(2, "[rank 0] zero"),
    stamp(3, "[rank 1] one"),
    stamp(4, "dtj: round 1 begins, after the failure of worker-1: killed"),
    stamp(5, "[rank 0] dtj: round 1 begins"),
    stamp(6, "[rank 0] zero again"),
    stamp(7, "[rank 1] dtj: round 1 begins"),
    stamp(8, "[rank 1] one again"),
)


async def test_the_lines_of_one_round_are_read(server: HttpCluster, client: AsyncClient) -> None:
    server.cluster.put(stored())
    for name in ("mnist-launcher-0", "mnist-worker-0", "mnist-worker-1"):
        server.cluster.put(stored_pod(name))
    server.logs.print("mnist-launcher-0", *ROUNDS)
    server.logs.print("mnist-worker-1", stamp(3.5, "dtj: INFO: round 1 begins with checkpoint 3"))

    assert await read(client, round=0) == [
        ("launcher-0", "starts"),
        ("rank 0", "zero"),
        ("rank 1", "one"),
    ]
    assert await read(client, round=1, rank=0) == [
        ("rank 0", "dtj: round 1 begins"),
        ("rank 0", "zero again"),
    ]
    assert await read(client, round=1, rank=1, tail=1) == [("rank 1", "one again")]
    assert await read(client, round=0, tail=1) == [("rank 1", "one")], "not the last line of the log"
    assert await read(client, round=0, role="worker", index=1) == [("rank 1", "one")]
    with pytest.raises(NotFound, match="newest attempt of mnist have no round 3: they have rounds 0, 1"):
        await read(client, round=3)


async def test_a_log_without_its_beginning_has_the_rounds_that_are_left(
    server: HttpCluster, client: AsyncClient
) -> None:
    server.cluster.put(stored())
    server.cluster.put(stored_pod("mnist-launcher-0"))
    server.logs.print(
        "mnist-launcher-0",
        stamp(1, "[rank 0] in 4"),
        stamp(2, "dtj: round 5 begins, after the failure of worker-1: killed"),
        stamp(3, "[rank 0] dtj: round 5 begins"),
    )
    assert await read(client, round=4) == [("rank 0", "in 4")]
    with pytest.raises(NotFound, match="no round 0: they have rounds 4, 5"):
        await read(client, round=0)


@pytest.mark.parametrize("tail", [None, 1])
async def test_a_round_is_followed_from_its_begin_to_its_end(
    server: HttpCluster, client: AsyncClient, tail: int | None
) -> None:
    server.cluster.put(stored())
    server.cluster.put(stored_pod("mnist-launcher-0"))
    server.logs.print("mnist-launcher-0", *ROUNDS[:4])
    following = asyncio.create_task(read(client, follow=True, rank=0, round=1, tail=tail))
    await until(lambda: any("follow=true" in path for path in server.paths))
    server.logs.print("mnist-launcher-0", *ROUNDS[4:], stamp(9, "dtj: round 2 begins, after the failure of"))

    assert await asyncio.wait_for(following, 20 * PATIENCE) == [
        ("rank 0", "dtj: round 1 begins"),
        ("rank 0", "zero again"),
    ], "the job runs on"


async def test_a_round_is_not_followed_into_a_later_attempt(server: HttpCluster, client: AsyncClient) -> None:
    server.cluster.put(stored())
    server.cluster.put(stored_pod("mnist-launcher-0"))
    server.logs.print("mnist-launcher-0", *ROUNDS[:3])
    followings = [asyncio.create_task(read(client, follow=True, round=number)) for number in (0, 1)]
    await until(lambda: sum("follow=true" in path for path in server.paths) == 2)
    server.cluster.put(stored_pod("mnist-launcher-0", attempt=2))

    assert len(await asyncio.wait_for(followings[0], 20 * PATIENCE)) == 3
    with pytest.raises(NotFound, match="no round 1: they have round 0"):
        await asyncio.wait_for(followings[1], 20 * PATIENCE)


async def test_a_follower_ends_when_the_job_is_deleted(server: HttpCluster, client: AsyncClient) -> None:
    server.cluster.put(stored())
    server.cluster.put(stored_pod("mnist-launcher-0"))
    server.logs.print("mnist-launcher-0", stamp(1, "x"))
    following = asyncio.create_task(read(client, follow=True))
    await until(lambda: any("follow=true" in path for path in server.paths))
    server.delete_job("mnist")
    assert await asyncio.wait_for(following, 20 * PATIENCE) == [("launcher-0", "x")]


async def test_a_job_without_pods_and_artifacts_has_no_log(server: HttpCluster, client: AsyncClient) -> None:
    server.cluster.put(stored())
    with pytest.raises(NotFound, match="mnist keeps no artifacts"):
        await read(client)
    with pytest.raises(Unusable, match="only the present attempt"):
        await read(client, follow=True, attempt=1)
    # What the operator has refused has no plan either.
    server.cluster.put(stored(image="no image"))
    with pytest.raises(NotFound, match="mnist keeps no artifacts"):
        await read(client)


def a_job(**spec: Any) -> Job:
    return jobs.job(**(spec or {"horovod": {"slotsPerWorker": 2}}))


def split(name: str) -> tuple[str, int]:
    role, index = name.split("-")
    return role, int(index)

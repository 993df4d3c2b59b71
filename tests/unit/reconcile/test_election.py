"""Leader election: never two leaders, whatever the API server, the network and the clocks do.

* the life of a Lease: claimed, renewed, released, taken over
* leaders that cannot renew, do no work or see another holder
* lost answers, jumps of the clock, two claims at once
* random faults: never two leaders, and one in the end
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtj.reconcile.election import Elector, LeaseLost, Timing
from tests.unit.support import virtual_time
from tests.unit.support.lease_api import LeaseApi, Link

TIMING = Timing()
PLACE = {"namespace": "dtj-system", "name": "dtj-operator"}
LEASE = {"kind": "Lease", "metadata": PLACE}
EPOCH = datetime(2026, 11, 21, 12, tzinfo=UTC)


def now() -> float:
    return asyncio.get_running_loop().time()


def candidate(
    api: LeaseApi | Link,
    identity: str,
    rate: float = 1.0,
    wall: Callable[[], datetime] = lambda: EPOCH,
    alive: Callable[[], bool] = lambda: True,
) -> Elector:
    """rate: how fast its clock runs."""
    loop = asyncio.get_running_loop()

    def date() -> datetime:
        return wall() + timedelta(seconds=loop.time())

    return Elector(api, PLACE, identity, TIMING, lambda: loop.time() * rate, date, alive)  # type: ignore[arg-type]


async def lead(elector: Elector) -> None:
    await elector.acquire()
    await elector.keep()


async def begin(elector: Elector) -> asyncio.Task[None]:
    """Its process, after a second in which it has claimed the lease or found it held."""
    process = asyncio.create_task(lead(elector))
    await asyncio.sleep(1)
    return process


async def kill(process: asyncio.Task[None]) -> None:
    """What a process is cut off from in the middle is never finished, and nothing is released."""
    process.cancel()
    await asyncio.wait([process])


async def until(there: Callable[[], bool], seconds: float) -> float:
    """Wait until something is so; how long that took."""
    begin = now()
    while not there():
        assert now() - begin <= seconds, f"waited {seconds} s"
        await asyncio.sleep(0.01)
    return now() - begin


def in_virtual_time(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        virtual_time.run(test())  # type: ignore[arg-type]

    run.__name__ = test.__name__
    return run


@in_virtual_time
async def test_the_first_candidate_makes_the_lease_and_renews_it() -> None:
    api = LeaseApi()
    process = asyncio.create_task(lead(candidate(api, "a")))
    await asyncio.sleep(7)

    assert api.lease is not None
    assert api.lease["metadata"].items() >= PLACE.items()
    assert len(api.cluster.log) == 4, "each request but the first stored a version"
    assert api.lease["spec"] == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 10,
        "acquireTime": "2026-11-21T12:00:00.000000Z",
        "renewTime": "2026-11-21T12:00:06.000000Z",
        "leaseTransitions": 0,
    }
    assert api.requests == ["get", "create", "replace", "replace", "replace"], "a renewal is one request"
    await kill(process)


@in_virtual_time
async def test_a_standby_reads_every_two_seconds_and_writes_nothing() -> None:
    api = LeaseApi()
    leader = await begin(candidate(api, "a"))
    standby = candidate(api, "b")
    waiting = asyncio.create_task(lead(standby))
    await asyncio.sleep(60)

    assert api.requests.count("get") - 1 == pytest.approx(30, abs=1)
    assert api.holder == "a"
    assert not standby.leading()
    await kill(leader)
    await kill(waiting)


@in_virtual_time
async def test_a_killed_leader_is_replaced_within_the_duration_and_one_look() -> None:
    for moment in range(20, 41):
        api = LeaseApi()
        leader = asyncio.create_task(lead(candidate(api, "a")))
        await asyncio.sleep(0.7)
        standby = candidate(api, "b")
        waiting = asyncio.create_task(lead(standby))
        await asyncio.sleep(moment / 10)
        await kill(leader)

        took = await until(standby.leading, 12.1)
        assert took >= TIMING.lease_duration - TIMING.retry_period
        assert api.lease is not None
        assert api.lease["spec"]["leaseTransitions"] == 1
        await kill(waiting)


@in_virtual_time
async def test_a_released_lease_is_taken_at_the_next_look() -> None:
    api = LeaseApi()
    elector, standby = candidate(api, "a"), candidate(api, "b")
    leader = await begin(elector)
    waiting = asyncio.create_task(lead(standby))
    await asyncio.sleep(5)
    await kill(leader)
    await elector.release()

    assert not elector.leading()
    assert api.holder == ""
    await until(standby.leading, TIMING.retry_period + 0.1)
    await kill(waiting)


@in_virtual_time
async def test_who_never_claimed_the_lease_asks_nothing_at_its_end() -> None:
    api = LeaseApi()
    leader = await begin(candidate(api, "a"))
    standby = candidate(api, "b")
    waiting = await begin(standby)
    await kill(waiting)
    before = list(api.requests)
    await standby.release()

    assert api.requests == before
    assert api.holder == "a"
    await kill(leader)


@in_virtual_time
async def test_a_claim_that_was_stored_while_its_process_was_told_to_end_is_released() -> None:
    api = LeaseApi()
    api.delay = lambda: 0.5
    elector = candidate(api, "a")
    process = asyncio.create_task(lead(elector))
    await asyncio.sleep(1.6)  # the claim is stored, its answer under way
    await kill(process)
    assert api.holder == "a"
    await elector.release()

    assert api.holder == ""


@in_virtual_time
async def test_a_lease_that_a_successor_has_is_not_released() -> None:
    api = LeaseApi()
    elector = candidate(api, "a")
    process = await begin(elector)
    await kill(process)
    successor = asyncio.create_task(lead(candidate(api, "b")))
    await asyncio.sleep(15)
    await elector.release()

    assert api.holder == "b"
    await kill(successor)


def cut_off(api: LeaseApi) -> None:
    api.away = True


def hanging(api: LeaseApi) -> None:
    api.delay = lambda: 1000.0


def deaf(api: LeaseApi) -> None:
    api.lossy = lambda: True


@pytest.mark.parametrize("fault", [cut_off, hanging])
def test_a_leader_that_can_not_renew_ends_before_another_may_begin(fault: Callable[[LeaseApi], None]) -> None:
    async def story() -> None:
        api = LeaseApi()
        elector = candidate(api, "a")
        process = await begin(elector)
        fault(api)

        # Its last renewal was sent at 0.
        await asyncio.sleep(5.9)
        assert elector.leading()
        await asyncio.sleep(0.15)
        assert not elector.leading()
        assert process.done()
        with pytest.raises(LeaseLost, match=r"not renewed for 7 s"):
            await process

    virtual_time.run(story())


@in_virtual_time
async def test_a_leader_that_can_do_no_work_renews_no_more_and_takes_no_lease() -> None:
    api = LeaseApi()
    alive = True
    elector = candidate(api, "a", alive=lambda: alive)
    process = await begin(elector)
    await asyncio.sleep(4)
    alive = False
    renewals = api.requests.count("replace")
    with pytest.raises(LeaseLost, match="not renewed for 7 s"):
        await process

    assert api.requests.count("replace") == renewals
    again = candidate(api, "b", alive=lambda: alive)
    waiting = asyncio.create_task(lead(again))
    await asyncio.sleep(30)
    assert not again.leading()
    alive = True
    await until(again.leading, 12.1)
    await kill(waiting)


@in_virtual_time
async def test_a_leader_that_moves_again_in_time_keeps_the_lease() -> None:
    api = LeaseApi()
    alive = True
    elector = candidate(api, "a", alive=lambda: alive)
    process = await begin(elector)
    alive = False
    await asyncio.sleep(4)
    alive = True
    await asyncio.sleep(20)

    assert elector.leading()
    await kill(process)


@in_virtual_time
async def test_a_leader_whose_answers_are_lost_for_a_while_goes_on() -> None:
    api = LeaseApi()
    elector = candidate(api, "a")
    process = await begin(elector)
    deaf(api)
    await asyncio.sleep(4)
    api.lossy = lambda: False
    await asyncio.sleep(20)

    assert not process.done()
    assert elector.leading()
    await kill(process)


@in_virtual_time
async def test_one_answer_that_never_comes_costs_no_lease() -> None:
    api = LeaseApi()
    elector = candidate(api, "a")
    process = await begin(elector)
    hanging(api)
    await asyncio.sleep(2)
    api.delay = lambda: 0.0
    await asyncio.sleep(20)

    assert elector.leading()
    await kill(process)


@in_virtual_time
async def test_a_leader_that_sees_another_in_its_place_ends_at_once() -> None:
    api = LeaseApi()
    process = await begin(candidate(api, "a"))
    lease = await api.get(LEASE)
    assert lease is not None
    lease["spec"]["holderIdentity"] = "b"
    await api.replace(lease)

    with pytest.raises(LeaseLost, match="b holds the lease now"):
        await asyncio.wait_for(process, 2 * TIMING.retry_period + 0.1)


@in_virtual_time
async def test_of_two_who_claim_at_once_one_is_refused() -> None:
    api = LeaseApi()
    api.delay = lambda: 0.2
    both = [candidate(api, "a"), candidate(api, "b")]
    processes = [asyncio.create_task(lead(each)) for each in both]
    await asyncio.sleep(1)

    assert api.requests[:4] == ["get", "get", "create", "create"]
    assert [each.leading() for each in both].count(True) == 1
    for process in processes:
        await kill(process)


@in_virtual_time
async def test_a_standby_that_was_cut_off_longer_than_the_lease_lasts_takes_no_living_leaders_place() -> None:
    server = LeaseApi()
    leader = await begin(candidate(server, "a"))

    link = Link(server)
    standby = candidate(link, "b")
    waiting = await begin(standby)
    link.cut = True
    await asyncio.sleep(100)
    link.cut = False
    await asyncio.sleep(30)

    assert server.holder == "a"
    assert not standby.leading()
    await kill(leader)
    await kill(waiting)


@pytest.mark.parametrize("jump", [timedelta(days=-400), timedelta(days=400)])
def test_a_wall_clock_that_jumps_or_differs_changes_nothing(jump: timedelta) -> None:
    async def story() -> None:
        api = LeaseApi()
        jumped = False
        leader = candidate(api, "a", wall=lambda: EPOCH + jump * jumped)
        process = asyncio.create_task(lead(leader))
        standby = candidate(api, "b", wall=lambda: EPOCH - jump)
        await asyncio.sleep(1)
        waiting = asyncio.create_task(lead(standby))
        await asyncio.sleep(5)
        jumped = True
        await asyncio.sleep(30)

        assert leader.leading()
        assert not standby.leading()
        await kill(process)
        assert await until(standby.leading, 12.1) > 7
        await kill(waiting)

    virtual_time.run(story())


@in_virtual_time
async def test_the_holders_own_duration_counts() -> None:
    """During an update the old leader may have been told another one."""
    api = LeaseApi()
    leader = await begin(candidate(api, "a"))
    await kill(leader)
    lease = await api.get(LEASE)
    assert lease is not None
    lease["spec"]["leaseDurationSeconds"] = 40
    await api.replace(lease)
    standby = candidate(api, "b")
    waiting = asyncio.create_task(lead(standby))

    assert await until(standby.leading, 41) >= 40
    await kill(waiting)


@in_virtual_time
async def test_a_lease_that_somebody_emptied_by_hand_is_taken() -> None:
    api = LeaseApi()
    await api.create(LEASE | {"spec": {}})
    elector = candidate(api, "a")
    process = await begin(elector)

    assert elector.leading()
    await kill(process)


@pytest.mark.parametrize("seconds", [(10, 10, 2), (10, 7, 7), (7, 10, 2), (10, 7, 0)])
def test_seconds_that_do_not_keep_two_leaders_apart_are_refused(seconds: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="must be longer"):
        Timing(*seconds)


class Replica:
    """A process that starts again, under another identity, each time it has ended."""

    def __init__(self, api: LeaseApi, name: str, rate: float) -> None:
        self.link = Link(api)
        self._name, self._rate = name, rate
        self._lives = 0
        self.start()

    def start(self) -> None:
        self._lives += 1
        self.elector = candidate(self.link, f"{self._name}{self._lives}", self._rate)
        self._process = asyncio.create_task(lead(self.elector))

    async def end(self, *, clean: bool) -> None:
        ended = self.elector
        await kill(self._process)
        self.start()
        if clean:
            await ended.release()

    def restart_if_it_ended(self) -> None:
        if self._process.done():
            assert isinstance(self._process.exception(), LeaseLost)
            self.start()

    async def kill(self) -> None:
        await kill(self._process)


FAULTS = st.sampled_from(
    [
        "kill 0",
        "kill 1",
        "end 0",
        "end 1",
        "cut 0",
        "cut 1",
        "join 0",
        "join 1",
        "slow",
        "quick",
        "lossy",
        "lossless",
    ]
)
STORY = st.lists(st.tuples(st.floats(0.0, 20.0), FAULTS), max_size=25)


@settings(max_examples=50)
@given(story=STORY, rates=st.tuples(st.floats(0.9, 1.1), st.floats(0.9, 1.1)), seed=st.integers(0, 2**32))
def test_never_two_lead_and_in_the_end_one_does(
    story: list[tuple[float, str]], rates: tuple[float, float], seed: int
) -> None:
    virtual_time.run(_play(story, rates, random.Random(seed)))


async def _play(story: list[tuple[float, str]], rates: tuple[float, float], rng: random.Random) -> None:
    api = LeaseApi()
    api.delay = lambda: rng.uniform(0, 0.2)
    replicas = [Replica(api, name, rate) for name, rate in zip("ab", rates, strict=True)]

    async def watch() -> None:
        while True:
            assert [replica.elector.leading() for replica in replicas].count(True) <= 1
            for replica in replicas:
                replica.restart_if_it_ended()
            await asyncio.sleep(0.05)

    watching = asyncio.create_task(watch())
    for pause, fault in [*story, (0, "join 0"), (0, "join 1"), (0, "quick"), (0, "lossless")]:
        await asyncio.sleep(pause)
        match fault.split():
            case ["kill" | "end" as how, number]:
                await replicas[int(number)].end(clean=how == "end")
            case ["cut" | "join" as how, number]:
                replicas[int(number)].link.cut = how == "cut"
            case ["slow" | "quick"]:
                longest = 6.0 if fault == "slow" else 0.2
                api.delay = lambda longest=longest: rng.uniform(0, longest)  # type: ignore[misc]
            case ["lossy" | "lossless"]:
                api.lossy = (lambda: rng.random() < 0.4) if fault == "lossy" else lambda: False
    await until(lambda: any(replica.elector.leading() for replica in replicas), 20)
    watching.cancel()
    await asyncio.wait([watching])
    assert watching.cancelled(), watching.exception()
    for replica in replicas:
        await replica.kill()

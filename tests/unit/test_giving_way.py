"""Jobs that hold a part of the cluster each: one gives way, and in the end every job that fits alone has run.

The cluster here is a number of equal places and a scheduler that takes pods in any order; the rules are the
operator's.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import Phase, example, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from dtj.status.turns import Contender, Turn, turn

START = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
PATIENCE = 60.0
STEP_SECONDS = 5
RUNS_STEPS = 6
GPU = frozenset({"nvidia.com/gpu"})


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def stuck(
    name: str, *, made: float, since: float = 0, times: int = 0, kinds: frozenset[str] = GPU
) -> Contender:
    return Contender(f"ml/{name}", name, at(made), kinds, times=times, stuck_since=at(since))


def waiting(name: str, *, gave_way: float, times: int = 1) -> Contender:
    return Contender(f"ml/{name}", name, at(gave_way), GPU, times=times, gave_way=True)


# --- the rules, one by one ---------------------------------------------------------------------------


def test_the_younger_of_two_that_block_each_other_gives_way_once_its_patience_is_over() -> None:
    older, younger = stuck("older", made=0), stuck("younger", made=1)

    assert turn(younger, [older], at(59), PATIENCE) == Turn(look_again=1.0)
    assert turn(younger, [older], at(60), PATIENCE) == Turn(gives_way_to="ml/older")
    assert turn(older, [younger], at(1000), PATIENCE) == Turn()


def test_a_job_that_needs_nothing_more_takes_no_part() -> None:
    placed = Contender("ml/a", "a", at(0), GPU)
    assert turn(stuck("b", made=1), [placed], at(1000), PATIENCE) == Turn()
    assert turn(placed, [stuck("b", made=1)], at(1000), PATIENCE) == Turn()


def test_one_that_is_stuck_gives_way_also_to_one_that_holds_nothing_and_not_the_other_way_round() -> None:
    starved = Contender("ml/b", "b", at(1), GPU, starved_since=at(10))
    assert turn(stuck("a", made=0), [starved], at(69), PATIENCE) == Turn(look_again=1.0)
    assert turn(stuck("a", made=0), [starved], at(70), PATIENCE) == Turn(gives_way_to="ml/b")
    assert turn(starved, [stuck("a", made=0)], at(1000), PATIENCE) == Turn()


def test_jobs_that_want_different_things_do_not_block_each_other() -> None:
    others = [stuck("a", made=0, kinds=frozenset({"cpu"}))]
    assert turn(stuck("b", made=1), others, at(1000), PATIENCE) == Turn()


def test_patience_begins_anew_with_each_pod_that_gets_a_place() -> None:
    older, younger = stuck("older", made=0, since=50), stuck("younger", made=1)
    assert turn(younger, [older], at(100), PATIENCE) == Turn(look_again=10.0)


def test_a_job_is_more_patient_each_time_but_not_without_end() -> None:
    older = stuck("older", made=0)
    for times, seconds in ((0, 60), (1, 120), (4, 960), (9, 960)):
        younger = stuck("younger", made=1, times=times)
        assert turn(younger, [older], at(seconds - 1), PATIENCE).gives_way_to is None
        assert turn(younger, [older], at(seconds), PATIENCE).gives_way_to == "ml/older"


def test_one_that_gave_way_waits_while_the_other_is_stuck_and_goes_on_when_it_is_not() -> None:
    mine = waiting("b", gave_way=100)
    waits = turn(mine, [stuck("a", made=0, since=100)], at(140), PATIENCE)
    assert waits.waits == "it gave its nodes back, and ml/a is before it"
    assert waits.look_again is not None
    assert turn(mine, [], at(140), PATIENCE) == Turn()


def test_one_that_gave_way_leaves_the_other_time_to_be_placed() -> None:
    assert turn(waiting("b", gave_way=100), [], at(110), PATIENCE).waits == "it gave its nodes back"


def test_nobody_waits_longer_than_a_while_for_others() -> None:
    others = [stuck("a", made=0, since=100)]
    assert turn(waiting("b", gave_way=100), others, at(339), PATIENCE).waits is not None
    assert turn(waiting("b", gave_way=100), others, at(340), PATIENCE) == Turn()


def test_one_that_is_stuck_although_another_gave_way_gives_way_in_its_turn() -> None:
    too_large = stuck("a", made=0, since=10)
    behind = [waiting("b", gave_way=100)]
    assert turn(too_large, behind, at(159), PATIENCE) == Turn(look_again=1.0)
    assert turn(too_large, behind, at(160), PATIENCE) == Turn(gives_way_to="ml/b")


# --- a cluster of them ------------------------------------------------------------------------------------


@dataclass
class Model:
    """A job: where its pods are, and what is stored of it."""

    name: str
    size: int
    made: int
    """Step."""
    placed: int = 0
    pods: bool = False
    judged: datetime | None = None
    gave_way: datetime | None = None
    times: int = 0
    ending: int = 0
    """Places that its old pods still have."""
    ran: int = 0
    waits: bool = False

    @property
    def runs(self) -> bool:
        return self.pods and self.placed == self.size

    def contender(self) -> Contender | None:
        if self.runs:
            return None
        partial = self.pods and 0 < self.placed < self.size
        turned = self.gave_way or at(self.made * STEP_SECONDS)
        return Contender(
            self.name,
            self.name,
            turned,
            GPU,
            times=self.times,
            stuck_since=self.judged if partial else None,
            starved_since=self.judged if self.pods and not self.placed else None,
            gave_way=self.gave_way is not None and not self.pods,
        )


@dataclass
class ModelCluster:
    """Places, and jobs that want some of them each, all at once."""

    places: int
    jobs: list[Model]
    order: random.Random
    checked: bool = True
    step: int = 0
    done: list[str] = field(default_factory=list)
    gave_way: int = 0

    @property
    def now(self) -> datetime:
        return at(self.step * STEP_SECONDS)

    @property
    def there(self) -> list[Model]:
        return [job for job in self.jobs if job.made <= self.step and job.name not in self.done]

    def live(self) -> None:
        """A step: programs run, the operator looks at each job, the scheduler places pods in any order."""
        self.step += 1
        for job in self.there:
            job.ending = 0
            job.ran += job.runs
            if job.ran >= RUNS_STEPS:
                self.done.append(job.name)
        for job in self.order.sample(self.there, len(self.there)):
            self._pass(job)
        self._schedule()

    def _pass(self, job: Model) -> None:
        mine = job.contender()
        if mine is not None and self.checked:
            found = turn(mine, [c for other in self.there if (c := other.contender())], self.now, PATIENCE)
            if found.gives_way_to is not None:
                job.ending, job.placed, job.pods = job.placed, 0, False
                job.gave_way, job.times = self.now, job.times + 1
                self.gave_way += 1
                return
            if found.waits is not None:
                return
        if job.runs:
            job.gave_way, job.times = None, 0
        elif not job.ending:
            job.pods = True

    def _schedule(self) -> None:
        free = self.places - sum(job.placed + job.ending for job in self.there)
        assert free >= 0
        queue = [job for job in self.there if job.pods for _ in range(job.size - job.placed)]
        self.order.shuffle(queue)
        for job in queue:
            if free:
                free -= 1
                job.placed += 1
                job.judged = self.now
            elif job.judged is None:
                job.judged = self.now

    def run(self, steps: int, until: set[str] | None = None) -> set[str]:
        """Names of the jobs that came to their end in so many steps, or until those did."""
        wanted = {job.name for job in self.jobs} if until is None else until
        while self.step < steps and not wanted <= {*self.done}:
            self.live()
        return {*self.done}


# Jobs that fit alone, and at most one that fits nowhere.
CLUSTERS = st.integers(2, 10).flatmap(
    lambda places: st.tuples(
        st.just(places),
        st.tuples(
            st.lists(st.tuples(st.integers(1, places), st.integers(0, 8)), min_size=1, max_size=6),
            st.lists(st.tuples(st.integers(places + 1, places + 3), st.integers(0, 8)), max_size=1),
        ).map(lambda parts: parts[0] + parts[1]),
        st.integers(0, 2**32 - 1),
    )
)
Case = tuple[int, list[tuple[int, int]], int]


def cluster(case: Case, *, checked: bool = True) -> ModelCluster:
    places, sizes, seed = case
    jobs = [Model(f"job-{number}", size, made) for number, (size, made) in enumerate(sizes)]
    return ModelCluster(places, jobs, random.Random(seed), checked)


def fitting(case: Case) -> set[str]:
    places, sizes, _ = case
    return {f"job-{number}" for number, (size, _) in enumerate(sizes) if size <= places}


@settings(max_examples=100, deadline=None)
@given(CLUSTERS)
@example((4, [(3, 0), (3, 0)], 1))
@example((4, [(6, 0), (3, 1), (3, 1)], 3))
def test_every_job_that_fits_alone_runs_to_its_end(case: Case) -> None:
    assert cluster(case).run(10_000, until=fitting(case)) >= fitting(case)


def test_without_the_check_some_wait_for_ever() -> None:
    def deadlock(case: Case) -> bool:
        return not cluster(case, checked=False).run(300, until=fitting(case)) >= fitting(case)

    try:
        places, sizes, _ = find(
            CLUSTERS, deadlock, settings=settings(max_examples=500, deadline=None, phases=[Phase.generate])
        )
    except NoSuchExample:
        pytest.fail("the model has no deadlock: it shows nothing")
    assert sum(size for size, _ in sizes) > places


@settings(max_examples=30, deadline=None)
@given(CLUSTERS)
def test_jobs_that_all_fit_never_give_way(case: Case) -> None:
    places, sizes, seed = case
    total = sum(size for size, _ in sizes)
    model = cluster((max(places, total), sizes, seed))
    model.run(100)
    assert model.gave_way == 0


def test_a_job_that_fits_nowhere_gives_way_ever_more_rarely() -> None:
    model = cluster((4, [(9, 0), (9, 0)], 1))
    model.run(5_000)
    seconds = 5_000 * STEP_SECONDS
    assert model.gave_way < 10 + 2 * seconds / (16 * PATIENCE)

"""The memory that the operator has for the jobs of a namespace: what is kept of a job, and which jobs wait.

* what is kept of a job, and how much that is
* the order in which jobs have room
* the cache: jobs that lose their room and get it again
* what jobs own
"""

from __future__ import annotations

import asyncio
import json
import pickle
import random
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dtj.api.identity import API_VERSION, KIND, LABEL_JOB, LABEL_RECORD
from dtj.api.job import Manifest, read_job
from dtj.api.json_text import ObjectText
from dtj.api.manifest_check import MOST_ENTRIES
from dtj.api.mpijob import QUEUE_ANNOTATIONS, QUEUE_LABELS
from dtj.api.nesting import MOST_LEVELS, TOO_DEEP
from dtj.api.stored_job import NOT_KEPT, UnreadableJob, read_stored_job
from dtj.cluster.interface import Selection
from dtj.plan.tensorboard import ANNOTATION_DIGEST
from dtj.reconcile import informers as informers_module
from dtj.reconcile import owned_cache
from dtj.reconcile.budget import Budget
from dtj.reconcile.informers import Informers, Lister
from dtj.reconcile.job_cache import JobCache, no_room
from dtj.reconcile.kept_job import keep, weight, without_spec
from dtj.reconcile.owned_cache import MOST_STRAYS
from dtj.reconcile.view import Key
from tests.unit.support.jobs import manifest

MOST = 1_000_000


def job(name: str, second: int = 0, text: int = 0, namespace: str = "ml", **status: Any) -> Manifest:
    """A job that was created in this second, with a text of so many characters."""
    given = manifest(name, args=["x" * min(text - done, 30_000) for done in range(0, text, 30_000)])
    given["metadata"] = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{name}",
        "generation": 1,
        "resourceVersion": "1",
        "creationTimestamp": f"2026-11-21T12:00:{second:02}Z",
        "managedFields": [{"manager": "kubectl"}],
    }
    return given | {"status": status}


def tolerating(count: int) -> Manifest:
    given = job("many")
    given["spec"]["replicaSpecs"]["worker"]["template"] = {"spec": {"tolerations": [{}] * count}}
    return given


def nested(levels: int) -> Manifest:
    given = job("deep")
    inner: Manifest = {}
    for _ in range(levels):
        inner = {"a": inner}
    given["spec"]["replicaSpecs"]["worker"]["template"] = {"spec": inner}
    return given


# --- what is kept of a job ---------------------------------------------------------------------------------


def test_a_job_that_is_kept_is_read_as_the_job_itself() -> None:
    given = job("a", text=100, phase="Running", attempt=3)
    given["spec"]["env"] = [{"name": "A", "value": "é😀\ud800"}]
    kept = keep(given)

    assert kept["spec"] == given["spec"]
    assert kept["status"] == given["status"]
    assert read_stored_job(kept)[1] == read_stored_job(given)[1]
    assert "managedFields" not in kept["metadata"]


@pytest.mark.parametrize("count", [0, 100, MOST_ENTRIES, 400_000])
def test_of_a_text_the_same_is_kept_as_of_its_data(count: int) -> None:
    given = tolerating(count) | {
        "status": {"phase": "Running", "replicaStatuses": {"worker": {"desired": 7}}}
    }
    given["spec"]["runPolicy"] = {"managedBy": "a.b/c", "schedulingPolicy": {"queue": "gold"}}
    given["spec"]["replicaSpecs"]["worker"]["replicas"] = 9
    given["metadata"]["labels"] = dict.fromkeys(QUEUE_LABELS, "a")
    kept, of_text = keep(given), keep(ObjectText(json.dumps(given).encode()))

    assert [getattr(of_text, name) for name in kept.__slots__] == [
        getattr(kept, name) for name in kept.__slots__
    ]
    assert (kept.replicas, kept.other_manager) == (9, "a.b/c")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (tolerating(MOST_ENTRIES), f"more than {MOST_ENTRIES} fields and list entries"),
        (tolerating(400_000), f"more than {MOST_ENTRIES} fields and list entries"),
        (nested(MOST_LEVELS), TOO_DEEP),
        (nested(5_000), TOO_DEEP),
    ],
)
def test_the_spec_of_a_job_that_no_check_takes_is_not_kept(given: Manifest, told: str) -> None:
    given["metadata"]["annotations"] = dict.fromkeys(("x", *QUEUE_ANNOTATIONS), "q" * 200_000)
    policy = {"cleanPodPolicy": "All", "ttlSecondsAfterFinished": 9, "managedBy": "x" * 5_000, "unknown": 1}
    scheduling = {"gang": "Kueue", "queue": "gold", "minAvailable": {"a": 1}}
    given["spec"]["runPolicy"] = policy | {"schedulingPolicy": scheduling}

    kept = keep(given)
    read, faults = read_stored_job(kept)

    assert len(kept.spec) < 300
    assert len(json.dumps(kept.metadata)) < 1_000
    assert weight(kept) < 3_000
    assert isinstance(read, UnreadableJob)
    assert told in str(faults[0])
    assert read.faults == faults == read_stored_job(given)[1]
    assert read.run_policy.ttl_seconds_after_finished == 9
    assert read.run_policy.clean_pod_policy == "All"
    assert read.run_policy.scheduling_policy.queue == "gold"
    assert read.rules == read_job(job("a")).rules
    assert read.namespace == "ml"


@pytest.mark.parametrize("entry", [{}, {"operator": "Exists"}, {"key": "name", "value": "été"}])
def test_the_weight_of_a_job_is_what_its_data_takes(entry: Manifest) -> None:
    given = job("a")
    given["spec"]["replicaSpecs"]["worker"]["template"] = {"spec": {"tolerations": [entry] * 4_000}}
    kept = keep(given)
    tracemalloc.start()
    data = kept["spec"]
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert data == given["spec"]
    assert held + len(kept.spec) == pytest.approx(weight(kept), rel=0.05)


def test_of_a_job_that_has_ended_the_texts_count() -> None:
    running, ended = (keep(job("a", text=1_000, phase=phase)) for phase in ("Running", "Succeeded"))
    assert weight(running) > 2 * weight(ended) > 2 * 1_000


# --- which jobs have room ----------------------------------------------------------------------------------


def room(*jobs: tuple[str, float, int, bool], most: int = 640) -> list[str]:
    budget = Budget(most)
    for uid, created, size, ended in jobs:
        budget.put(uid, created, size, ended=ended)
    assert budget.held <= most
    return [uid for uid, *_ in jobs if budget.has_room(uid)]


def test_the_newest_large_job_is_the_first_without_room() -> None:
    old, new = ("old", 1, 300, False), ("new", 2, 300, False)
    assert room(old, new, ("newest", 3, 300, False)) == ["old", "new"]
    assert room(old, new, ("small", 9, 10, False)) == ["old", "new", "small"]
    assert room(old, new, *((f"small-{n}", 9.0 + n, 10, False) for n in range(6)))[:2] == ["old", "small-0"]


def test_jobs_that_have_ended_are_first_without_room_and_the_oldest_of_them() -> None:
    ended = [("a", 1, 300, True), ("b", 2, 300, True), ("c", 3, 300, True)]
    assert room(*ended) == ["b", "c"]
    assert room(*ended, ("large", 4, 300, False)) == ["c", "large"]


def test_each_leader_decides_the_same_whatever_it_hears_first() -> None:
    rng = random.Random(3)
    for _ in range(300):
        sizes = [rng.choice([1, 9, 10, 11, 40, 100, 300, 700]) for _ in range(12)]
        jobs = [(f"u{n}", float(rng.randint(0, 5)), size, rng.random() < 0.3) for n, size in enumerate(sizes)]
        there = sorted(room(*jobs))
        rng.shuffle(jobs)
        assert sorted(room(*jobs)) == there
        budget = Budget(640)
        for uid, created, *_ in jobs:
            budget.put(uid, created + 1, rng.choice([0, 700]), ended=False)
        for extra in range(5):
            budget.put(f"extra-{extra}", 0.0, 200, ended=False)
        for uid, created, size, ended in jobs:
            budget.put(uid, created, size, ended=ended)
        for extra in range(5):
            budget.drop(f"extra-{extra}")
        assert sorted(uid for uid, *_ in jobs if budget.has_room(uid)) == there
        assert len(budget) == len(jobs)


# --- the cache ---------------------------------------------------------------------------------------------


class Seen:
    """A cache of jobs with little room, and what it told."""

    def __init__(self) -> None:
        self.changed: list[Key] = []
        self.judged: list[Key] = []
        self.missing: list[Key] = []
        self.jobs = JobCache(self.changed.append, self.judged.append, self.missing.append, MOST)

    def whole(self, name: str, namespace: str = "ml") -> bool:
        [cached] = self.jobs.of((namespace, name))
        read, faults = read_stored_job(cached.manifest)
        assert cached.whole == (not faults) == (not isinstance(read, UnreadableJob))
        return cached.whole


def test_a_job_loses_its_room_to_older_ones_and_gets_it_again() -> None:
    seen = Seen()
    seen.jobs.put(job("new", 2, 300_000))
    assert seen.whole("new")
    seen.jobs.put(job("old", 1, 300_000))
    assert (seen.whole("old"), seen.whole("new")) == (True, False)
    assert seen.judged == [("ml", "new")]

    seen.jobs.drop("uid-old")
    assert seen.missing == [("ml", "new")]
    seen.jobs.put(job("new", 2, 300_000))
    assert seen.whole("new")
    assert seen.judged == [("ml", "new")] * 2
    assert seen.changed == [("ml", "new"), ("ml", "old"), ("ml", "old")]


def test_a_job_is_large_while_a_pass_takes_much_memory() -> None:
    seen = Seen()
    seen.jobs.put(job("small", 1, 1_000))
    seen.jobs.put(job("large", 2, 300_000))
    seen.jobs.put(job("ended-small", 4, 100, phase="Failed"))
    seen.jobs.put(job("ended-large", 5, 20_000, phase="Failed"))
    names = ["small", "large", "ended-small", "ended-large", "no-room"]
    assert [name for name in names if seen.jobs.is_large(("ml", name))] == ["large", "ended-large"]
    seen.jobs.put(job("no-room", 3, 300_000))
    assert [name for name in names if seen.jobs.is_large(("ml", name))] == ["large"]


def test_a_job_without_room_says_what_would_help() -> None:
    seen = Seen()
    for second in (1, 2):
        seen.jobs.put(job(f"job-{second}", second, 300_000))
    [cached] = seen.jobs.of(("ml", "job-2"))
    assert str(cached.manifest[NOT_KEPT]) == (
        "spec: the jobs of namespace ml take more than 1 MB of the operator's memory, and this job is among the "
        "largest or newest: make the job smaller, wait until other jobs of the namespace have ended or are "
        "deleted, or ask the administrator of the operator to raise --namespace-memory"
    )


@pytest.mark.bound(
    "operator",
    "Who may create jobs",
    "Memory for the jobs of a namespace",
    "64 MB, `namespaceMemoryMegabytes`; the newest large jobs wait for room",
)
def test_no_tenant_takes_the_room_of_another() -> None:
    seen = Seen()
    for number in range(20):
        seen.jobs.put(job(f"evil-{number}", number, 300_000, "evil"))
    seen.jobs.put(job("good", 59, 300_000))
    assert seen.whole("good")
    assert [n for n in range(20) if seen.whole(f"evil-{n}", "evil")] == [0]


@pytest.mark.bound(
    "operator",
    "Who may create jobs",
    "Memory for a job without room",
    "A kilobyte",
)
def test_of_what_is_over_the_room_a_kilobyte_is_kept_however_much_it_is() -> None:
    seen = Seen()
    seen.jobs.put(job("first", 0, 300_000))
    tracemalloc.start()
    for number in range(200):
        seen.jobs.put(job(f"job-{number}", 1, 300_000))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not seen.whole("job-0")
    assert held < 200 * 6_000


def test_a_job_that_ends_gives_its_room_to_others() -> None:
    seen = Seen()
    seen.jobs.put(job("old", 1, 300_000))
    seen.jobs.put(job("new", 2, 300_000))
    ended = job("old", 1, 300_000, phase="Succeeded")
    ended["metadata"]["resourceVersion"] = "2"
    seen.jobs.put(ended)
    assert seen.missing == [("ml", "new")]


class Source:
    """A namespace whose jobs are listed and not watched."""

    def __init__(self, *jobs: Manifest) -> None:
        self.jobs = {job["metadata"]["name"]: job for job in jobs}
        self.asked: list[str] = []
        self.refuses = 0

    async def pages(self, selection: Selection) -> AsyncIterator[tuple[list[Manifest], str]]:
        if selection.kind == KIND:
            if selection.name:
                self.asked.append(selection.name)
                self.refuses -= 1
                if self.refuses >= 0:
                    raise informers_module.ApiError(500, "InternalError", "no")
            yield [job for name, job in self.jobs.items() if selection.name in ("", name)], ""
        yield [], "7"

    async def changes(self, _selection: Selection, _version: str) -> AsyncIterator[tuple[str, Manifest]]:
        await asyncio.Event().wait()
        yield "", {}


async def test_the_spec_of_a_job_that_has_room_again_is_listed_until_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(informers_module, "_AGAIN_SECONDS", 0.0)
    source = Source(job("new", 2, 300_000), job("old", 1, 300_000))
    source.refuses = 2
    queued: list[Key] = []
    informers = Informers(source, (), queued.append, queued.append, lambda _: None, MOST)
    informers.start()
    try:
        async with asyncio.timeout(60):
            await informers.synced()
            assert queued == [("ml", "new")]
            del source.jobs["old"]
            informers.jobs.drop("uid-old")
            while len(queued) < 2:
                await asyncio.sleep(0)
    finally:
        await informers.stop()
    assert source.asked == ["new"] * 3
    shown = Lister(informers).job(("ml", "new"))
    assert shown is not None
    assert shown["spec"] == source.jobs["new"]["spec"]


# --- what jobs own -----------------------------------------------------------------------------------------

OWNED = {
    "Pod": "pods",
    "Service": "services",
    "ConfigMap": "configs",
    "Deployment": "deployments",
    "record": "records",
}
"""Each kind, and its cache in `Informers`."""


def owned(name: str, owner: str | None, large: str = "", uid: str = "uid-a") -> Manifest:
    """An object with the labels of job a, and `large` wherever a tenant may write it."""
    reference = {
        "apiVersion": API_VERSION,
        "kind": owner,
        "name": "a",
        "uid": uid + large,
        "controller": True,
    }
    names = [f"x.org/{number}" for number in range(len(large) // 7)]
    return {
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-11-21T12:00:00Z",
            "deletionTimestamp": "2026-11-21T12:00:00Z",
            "labels": {LABEL_JOB: "a", LABEL_RECORD: "a"},
            "annotations": {ANNOTATION_DIGEST: name + large},
            "finalizers": names,
            "ownerReferences": [reference] if owner else [],
            "resourceVersion": "1",
        },
        "data": {"a": name + large},
        "spec": {
            "schedulingGates": [{"name": each} for each in names],
            "containers": [{"name": "trainer", "resources": {"limits": dict.fromkeys(names, "1")}}],
        },
        "status": {"phase": "Failed"},
    }


@pytest.mark.bound(
    "operator",
    "Who may create pods, Services, ConfigMaps or Deployments with the labels of a job",
    "Memory for one of them",
    "2 kB, however large it is; nothing of one that no job controls",
)
@pytest.mark.parametrize("cache", OWNED.values(), ids=OWNED)
def test_of_an_object_little_is_kept_and_of_others_than_jobs_nothing(cache: str) -> None:
    kept = getattr(Informers(Source(), (), *3 * [lambda _: None]), cache)
    for kind in (KIND, "Deployment", None):
        kept.put(owned(str(kind), kind, "x" * 70_000))
    assert len(kept) == 1
    assert len(pickle.dumps(kept.items())) < 2_000


def test_config_maps_of_other_data_differ() -> None:
    informers = Informers(Source(), (), *3 * [lambda _: None])
    for name in ("a", "b"):
        informers.configs.put(owned(name, KIND))
    assert len({kept.digest for kept in informers.configs.of(("ml", "a"))}) == 2


@pytest.mark.bound(
    "operator",
    "Who may create pods, Services, ConfigMaps or Deployments, and names an owner that does not exist",
    "Objects in memory",
    "1,000 of a kind in a namespace; the newest stay",
)
@pytest.mark.parametrize("cache", OWNED.values(), ids=OWNED)
def test_of_objects_whose_job_nobody_knows_the_newest_stay(cache: str) -> None:
    informers = Informers(Source(), (), *3 * [lambda _: None])
    kept = getattr(informers, cache)
    informers.jobs.put(job("a"))
    kept.put(owned("first", KIND))
    for number in range(MOST_STRAYS + 100):
        stray = owned(f"stray-{number}", KIND, uid=f"uid-{number}")
        stray["metadata"]["labels"] = dict.fromkeys((LABEL_JOB, LABEL_RECORD), f"b-{number}")
        kept.put(stray)
    assert len(kept) == 1 + MOST_STRAYS
    assert [len(kept.of(("ml", name))) for name in ("a", "b-0", "b-99", "b-100", "b-1099")] == [1, 0, 0, 1, 1]


def test_an_object_whose_job_comes_later_is_no_stray_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader may hear of a pod before it hears of the pod's job."""
    monkeypatch.setattr(owned_cache, "MOST_STRAYS", 3)
    informers = Informers(Source(), (), *3 * [lambda _: None])
    informers.pods.put(owned("early", KIND))
    informers.jobs.put(job("a"))
    for number in range(9):
        informers.pods.put(owned(f"stray-{number}", KIND, uid="nobody"))
    assert [pod.view.name for pod in informers.pods.of(("ml", "a"))] == [
        "early", "stray-6", "stray-7", "stray-8",
    ]  # fmt: skip
    for number in range(9):
        informers.pods.drop(f"uid-stray-{number}")
    assert [pod.view.name for pod in informers.pods.of(("ml", "a"))] == ["early"]


@pytest.mark.bound(
    "operator",
    "Who may create pods, Services, ConfigMaps or Deployments, and names a job as their owner",
    "Objects of one job in memory",
    "64 of each kind; of pods 100 and two for each replica",
)
@pytest.mark.parametrize(
    ("cache", "most"), [*((each, 64) for each in OWNED.values() if each != "pods"), ("pods", 104)]
)
def test_of_the_objects_of_a_job_a_few_are_kept(cache: str, most: int) -> None:
    informers = Informers(Source(), (), *3 * [lambda _: None])
    kept = getattr(informers, cache)
    informers.jobs.put(job("a"))
    for number in range(50):  # They are not counted as the job's.
        kept.put(owned(f"stray-{number}", KIND, uid="nobody"))
    for number in range(200):
        kept.put(owned(f"o-{number}", KIND))
    assert len(kept) == 50 + most

    for number in range(200):
        kept.drop(f"uid-o-{number}")
    kept.put(owned("later", KIND))
    assert len(kept) == 51


def test_a_job_has_room_for_the_pods_of_replicas_that_it_no_longer_has() -> None:
    informers = Informers(Source(), (), *3 * [lambda _: None])
    given = job("a", replicaStatuses={"worker": {"desired": 300}})
    informers.jobs.put(given)
    assert informers.jobs.most_pods(("ml", "a")) == 700
    given["spec"] = tolerating(MOST_ENTRIES)["spec"]
    given["metadata"] |= {"resourceVersion": "2", "generation": 2}
    given["spec"]["replicaSpecs"]["worker"]["replicas"] = 10**30
    informers.jobs.put(given)
    assert informers.jobs.most_pods(("ml", "a")) == 20_100, "although its spec is not kept"


def test_the_spec_of_a_job_is_read_once_for_each_generation() -> None:
    first = keep(job("a", text=100))
    again = job("a", second=1, phase="Succeeded", replicaStatuses={"worker": {"desired": 7}})
    earlier = {"uid-a": first}.get
    kept = keep(again | {"spec": {"never": "read"}}, earlier)
    assert kept.spec is first.spec
    assert (kept["status"], kept.metadata, kept.ended) == (again["status"], keep(again).metadata, True)
    assert kept.replicas == 7
    for change in ({"generation": 2}, {"uid": "uid-of-another-job"}):
        changed = again | {"metadata": again["metadata"] | change}
        assert keep(changed, earlier) == keep(changed)
    dropped = without_spec(first, no_room("ml", 1))
    assert keep(again, {"uid-a": dropped}.get)["spec"] == again["spec"]


def test_an_object_that_leaves_its_job_is_dropped() -> None:
    informers = Informers(Source(), (), *3 * [lambda _: None])
    informers.configs.put(owned("c", KIND))
    informers.configs.put(owned("c", None))
    assert len(informers.configs) == 0

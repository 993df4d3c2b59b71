"""The lister: the operator's view of jobs in the cache of an informer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dtj.api.job import Manifest
from dtj.api.mpijob import QUEUE_ANNOTATIONS, QUEUE_LABELS
from dtj.reconcile.informers import Informers, Lister
from dtj.reconcile.view import Key

KEY = ("ml", "mnist")


class Seen:
    """A lister of jobs alone, and the keys of the jobs that changed."""

    def __init__(self) -> None:
        self.changed: list[Key] = []
        self.informers = Informers(
            SimpleNamespace(),  # type: ignore[arg-type]
            [],
            self._never,
            self._never,
            self.changed.append,
        )
        self.jobs = self.informers.jobs
        self.lister = Lister(self.informers)

    def _never(self, key: Key) -> None:
        raise AssertionError(f"an object of {key} changed")


def job(uid: str = "1", version: str = "1", *, name: str = "mnist", **parts: Any) -> Manifest:
    metadata = {"namespace": "ml", "name": name, "uid": uid, "resourceVersion": version}
    return {"metadata": metadata | parts.pop("metadata", {}), "spec": {}, **parts}


def test_the_cache_keeps_of_a_job_what_a_pass_reads() -> None:
    seen = Seen()
    (label, other), (annotation,) = QUEUE_LABELS, QUEUE_ANNOTATIONS
    metadata = {
        "generation": 3,
        "managedFields": [{"manager": "kubectl"}],
        "labels": {label: "gold", "team": "vision"},
        "annotations": {annotation: "silver", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
    }
    seen.jobs.put(job(metadata=metadata, spec={"image": "a"}, status={"phase": "Running"}) | {"kind": "Job"})

    kept = seen.lister.job(KEY)

    assert kept == {
        "metadata": {
            **{"namespace": "ml", "name": "mnist", "uid": "1", "resourceVersion": "1"},
            **{"generation": 3, "creationTimestamp": None, "deletionTimestamp": None},
            "labels": {label: "gold"},
            "annotations": {annotation: "silver"},
        },
        "spec": {"image": "a"},
        "status": {"phase": "Running"},
    }
    assert other not in str(kept)


def test_each_version_of_a_job_is_a_change_and_the_same_version_is_none() -> None:
    seen = Seen()
    for version in ("1", "1", "2"):
        seen.jobs.put(job(version=version))
    assert seen.changed == [KEY, KEY]
    seen.jobs.drop("1")
    assert seen.changed == [KEY, KEY, KEY]
    assert seen.lister.job(KEY) is None


def test_a_job_without_spec_or_status_can_be_read() -> None:
    seen = Seen()
    seen.jobs.put({"metadata": job()["metadata"], "status": None})
    assert seen.lister.active() == [KEY]


def test_a_job_nested_without_end_can_be_listed_again() -> None:
    seen, deep = Seen(), 0
    spec: Manifest = {}
    inner = spec
    while (deep := deep + 1) < 5_000:
        inner["a"] = inner = {}
    seen.jobs.put(job(spec=spec))
    seen.jobs.put(job(spec=dict(spec)))
    assert seen.changed == [KEY]


def test_a_new_job_hides_the_deleted_job_of_its_name_while_a_list_is_read() -> None:
    seen = Seen()
    seen.jobs.put(job("old"))
    seen.jobs.put(job("new", "7"))
    seen.jobs.put(job("old", "1"))
    shown = seen.lister.job(KEY)
    assert shown is not None
    assert shown["metadata"]["uid"] == "new"
    seen.jobs.keep({"new"}, None)
    assert len(seen.jobs) == 1


def test_jobs_that_ended_are_not_active() -> None:
    seen = Seen()
    for name, phase in (("a", "Running"), ("b", "Succeeded"), ("c", "Failed"), ("d", "Suspended")):
        seen.jobs.put(job(name, name=name, status={"phase": phase}))
    assert seen.lister.active() == [("ml", "a"), ("ml", "d")]

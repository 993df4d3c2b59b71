"""Jobs of the past in a bucket: index, run.json and end.json, as the pods of jobs write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from dtj_trainer.artifacts import s3
from dtj_trainer.artifacts.store import ABSENT, Store
from dtj_trainer.contract.history import END_FILE, RUN_FILE, IndexEntry, index_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

NEWEST = datetime(2026, 11, 1, 12, tzinfo=UTC)
PHASES = ("Succeeded", "Failed", "Succeeded", "Succeeded")
WRITERS = 16


def entry(number: int = 0, name: str = "", namespace: str = "ml", uid: str = "") -> IndexEntry:
    """The job that is so many hours older than the newest one."""
    return IndexEntry(
        NEWEST - timedelta(hours=number),
        namespace,
        name or f"mnist-{number}",
        uid or f"{number:08x}-7b3c-4d1e-9f2a-0123456789ab",
    )


def text(time: datetime) -> str:
    """A time as the API writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def status(job: IndexEntry, phase: str = "Succeeded", **more: Any) -> dict[str, Any]:
    """The status of a job that took so many minutes as its restarts and one more are."""
    restarts = more.pop("restarts", 0)
    end = job.created + timedelta(minutes=1 + restarts)
    condition = {
        "type": phase,
        "status": "True",
        "reason": "JobFailed" if phase == "Failed" else "JobSucceeded",
        "message": "the job has ended",
        "lastTransitionTime": text(end),
    }
    failure = {
        "attempt": 1 + restarts,
        "role": "worker",
        "index": 1,
        "rank": 1,
        "node": "node-1",
        "exitCode": 1,
        "class": "ApplicationError",
        "message": "ValueError: loss is nan",
        "lastLogLines": ["Traceback (most recent call last):", "ValueError: loss is nan"],
    }
    found = {
        "phase": phase,
        "conditions": [condition],
        "startTime": text(job.created),
        "completionTime": text(end),
        "attempt": 1 + restarts,
        "restarts": {"application": restarts, "infrastructure": 0},
        "progress": {"step": 938, "totalSteps": 938, "percent": 100.0, "examplesPerSecond": 1234.5},
    }
    of_the_operator = {
        "replicaStatuses": {"launcher": {"desired": 1}, "worker": {"desired": 2}},
        "failure": failure,
    }
    # The pod that records a success does not know them.
    return found | (of_the_operator if phase == "Failed" else {}) | more


def end(job: IndexEntry, phase: str = "Succeeded", **more: Any) -> dict[str, Any]:
    """The content of end.json. more: fields of the status."""
    stored = status(job, phase, **more)
    pods = [
        {"name": f"{job.name}-{pod}", "node": f"node-{number}"}
        for number, pod in enumerate(("launcher-0", "worker-0", "worker-1"))
    ]
    time = stored["completionTime"]
    by = "launcher-0" if phase == "Succeeded" else "record"
    pods = pods if by == "record" else []
    return {"version": 1, "uid": job.uid, "time": time, "by": by, "pods": pods, "status": stored}


def run(job: IndexEntry) -> dict[str, Any]:
    """The content of run.json."""
    return {
        "version": 1,
        "namespace": job.namespace,
        "name": job.name,
        "uid": job.uid,
        "created": text(job.created),
        "specDigest": "0" * 64,
        "strategy": "Horovod",
        "world": 2,
        "attempts": [{"attempt": 1, "time": text(job.created)}],
    }


def put(store: Store, job: IndexEntry, ended: dict[str, Any] | bytes | None) -> None:
    """Write the objects of a job. ended: the content of end.json, or None for a job without a recorded end."""
    store.put_bytes(index_key(*job), b"", replaces=ABSENT)
    store.put_bytes(f"{job.prefix}/{RUN_FILE}", json.dumps(run(job)).encode())
    if ended is not None:
        content = ended if isinstance(ended, bytes) else json.dumps(ended).encode()
        store.put_bytes(f"{job.prefix}/{END_FILE}", content)


def put_many(store: Store, count: int) -> list[IndexEntry]:
    """Write ended jobs, one an hour, in two namespaces: every fourth has failed, every tenth was restarted."""
    store.put_bytes(".ready", b"")
    jobs = [entry(number, namespace=("ml", "vision")[number % 2]) for number in range(count)]

    def write(number: int) -> None:
        ended = end(jobs[number], PHASES[number % 4], restarts=int(number % 10 == 0))
        store.put_bytes(index_key(*jobs[number]), b"")
        store.put_bytes(f"{jobs[number].prefix}/{END_FILE}", json.dumps(ended).encode())

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(count)))
    return jobs


@contextmanager
def counted_requests(patch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The S3 requests of the clients that are made meanwhile: method and path of each."""
    requests: list[str] = []
    make: Callable[..., Any] = s3.make_client

    def watched(*arguments: Any) -> Any:
        client = make(*arguments)
        client.meta.events.register(
            "before-send.s3", lambda request, **_: requests.append(f"{request.method} {request.url}")
        )
        return client

    with patch.context() as inner:
        inner.setattr(s3, "make_client", watched)
        yield requests


def names(jobs: Iterable[Any]) -> list[str]:
    """The names of jobs."""
    return [job.name for job in jobs]

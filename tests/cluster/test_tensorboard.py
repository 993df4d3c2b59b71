"""`spec.tensorboard` on a real cluster, in a real browser."""

from __future__ import annotations

import json
import re
import time

import pytest

from tests.cluster.browser import forwarded, page, read
from tests.cluster.jobs import Job, Manifest, Namespace, stub, until

pytestmark = pytest.mark.cluster
NAME, PORT = "shown-tensorboard", 6006
NEW_SECONDS = 30
"""So soon after it was written an event is shown."""


def scalars(url: str, tag: str) -> list[tuple[float, int, float]]:
    """Time, step and value of every point, as TensorBoard answers a browser; none while it does not know the tag."""
    text = read(f"{url}/data/plugin/scalars/scalars?tag={tag}&run=.")
    return [(point[0], point[1], point[2]) for point in json.loads(text or "[]")]


def tensorboard(job: Job) -> Manifest:
    return dict(job.status.get("tensorboard") or {})


def pods(namespace: Namespace) -> list[Manifest]:
    return namespace.list("pods", "dtj.dev/tensorboard=shown")


def test_a_job_shows_its_scalars_while_it_trains_and_after_its_end(namespace: Namespace) -> None:
    # It trains until it is told to hurry.
    options = ("--steps=3000", "--step-seconds=0.2", "--tensorboard")
    job = namespace.apply(stub("shown", *options, tensorboard={"enabled": True}))
    until("TensorBoard to answer", lambda: tensorboard(job).get("ready"), 120)
    assert tensorboard(job)["url"] == f"http://{NAME}.{namespace.name}.svc:{PORT}"
    with forwarded(namespace, NAME, PORT) as url:

        def age() -> float | None:
            """Of the newest point, while the job trains."""
            assert job.status["phase"] not in ("Succeeded", "Failed"), job.story()
            points = scalars(url, "train/loss")
            return time.time() - points[-1][0] if points else None

        until("a new event", lambda: (now := age()) is not None and now < NEW_SECONDS, 120)
        first = scalars(url, "train/loss")[-1][1]

        def newer() -> bool:
            points = scalars(url, "train/loss")
            return points[-1][1] > first and time.time() - points[-1][0] < NEW_SECONDS

        until("a newer event", newer, 60)

        job.tell("worker-0", "hurry")
        status = job.wait(180)
        assert status["replicaStatuses"].keys() == {"launcher", "worker"}
        last = job.artifacts().metrics()[-1]["step"]
        until("the last event", lambda: scalars(url, "train/loss")[-1][1] == last, 60)
        shown = re.sub(r"<[^>]+>", " ", page(f"{url}/?smoothing=0"))
        _, step, accuracy = scalars(url, "test/accuracy")[-1]
        value = f"{accuracy:.4f}".rstrip("0")
        assert re.search(rf"\b{re.escape(value)}\s+{step:,}\s", shown), "the browser shows no such point"

    (pod,) = pods(namespace)
    (container,) = pod["status"]["containerStatuses"]
    assert (container["ready"], container["restartCount"]) == (True, 0)
    namespace.kubectl(
        "patch", "dtj", "shown", "--type=merge", '--patch={"spec":{"tensorboard":{"enabled":false}}}'
    )
    until("TensorBoard to be turned off", lambda: not pods(namespace) and not tensorboard(job), 60)
    assert job.status["phase"] == "Succeeded"

    namespace.kubectl("delete", "dtj", "shown")
    until("its objects to be gone", lambda: not _objects(namespace), 60)


def _objects(namespace: Namespace) -> list[str]:
    return namespace.kubectl("get", "deployments,services", "--output=name").split()

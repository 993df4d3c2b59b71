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

        def new() -> int | None:
            """The step of the newest point, where the point is new."""
            assert job.status["phase"] not in ("Succeeded", "Failed"), job.story()
            points = scalars(url, "train/loss")
            return points[-1][1] if points and time.time() - points[-1][0] < NEW_SECONDS else None

        first = until("a new event", new, 120)
        until("a newer event", lambda: (step := new()) is not None and step > first, 60)

        job.tell("worker-0", "hurry")
        status = job.wait(180)
        assert status["replicaStatuses"].keys() == {"launcher", "worker"}
        last = job.artifacts().metrics()[-1]["step"]

        def at_the_end(tag: str) -> float | None:
            """The value of the last step."""
            points = scalars(url, tag)
            return points[-1][2] if points and points[-1][1] == last else None

        until("the last loss", lambda: at_the_end("train/loss"), 60)
        accuracy = until("the accuracy", lambda: at_the_end("test/accuracy"), 60)
        value = f"{accuracy:.4f}".rstrip("0")

        def shown() -> bool:
            """Whether the page shows the point. A busy machine may end the page's time before its data is there."""
            text = re.sub(r"<[^>]+>", " ", page(f"{url}/?smoothing=0"))
            return re.search(rf"\b{re.escape(value)}\s+{last:,}\s", text) is not None

        until("the browser to show the last point", shown, 120)

    (pod,) = pods(namespace)
    (container,) = pod["status"]["containerStatuses"]
    assert container["restartCount"] == 0
    namespace.kubectl(
        "patch", "dtj", "shown", "--type=merge", '--patch={"spec":{"tensorboard":{"enabled":false}}}'
    )
    until("TensorBoard to be turned off", lambda: not pods(namespace) and not tensorboard(job), 60)
    assert job.status["phase"] == "Succeeded"

    namespace.kubectl("delete", "dtj", "shown")
    until("its objects to be gone", lambda: not _objects(namespace), 60)


def _objects(namespace: Namespace) -> list[str]:
    return namespace.kubectl("get", "deployments,services", "--output=name").split()

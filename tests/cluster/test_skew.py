"""Two versions of dtj in one cluster: images of one with the operator of the other, upgrades and rollbacks.

The jobs run a script that knows nothing of dtj. DTJ_SKEW_FROM names the commit of the earlier version.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster import images, install
from tests.cluster.jobs import Job, Manifest, Namespace, until
from tests.cluster.operator_pods import replicas
from tests.cluster.restarted import (
    SAVES_EVERY,
    STRATEGIES,
    begun,
    bring_script,
    job_of,
    kill_rank,
    steps_of,
    wait_for_step,
)
from tests.cluster.switches import is_kind
from tests.earlier import tree_of

pytestmark = [pytest.mark.cluster, pytest.mark.skew]
EARLIER_TAG = "0.0.1"
TRAINER = "dtj-trainer-horovod"
IN_PLACE = {"restartStrategy": "InPlaceRestart"}


@dataclass(frozen=True)
class Version:
    """A version of dtj, whose images are on all nodes."""

    manifests: Path
    tag: str

    @property
    def trainer(self) -> str:
        """The image of the ranks."""
        return f"{TRAINER}:{self.tag}"

    def operate(self) -> None:
        """Put this version's operator in the place of the one that runs. The CRD stays."""
        image = f"{install.DEPLOYMENT}:{self.tag}"
        install.roll_out(install.operator_objects(image, manifests=self.manifests))
        until(f"only operators of {self.tag} to run", lambda: _running() == {self.tag}, 120)


def _running() -> set[str]:
    return {pod["spec"]["containers"][0]["image"].rpartition(":")[2] for pod in replicas()}


@pytest.fixture(scope="module")
def current() -> Version:
    (tag,) = _running()
    return Version(install.MANIFESTS, tag)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Version:
    tree = tree_of(os.environ["DTJ_SKEW_FROM"], tmp_path_factory.mktemp("earlier") / "dtj")
    project = tree / "pyproject.toml"
    project.write_text(re.sub(r'(?m)^version = ".*"', f'version = "{EARLIER_TAG}"', project.read_text()))
    images.load("kind" if is_kind() else "local", ["operator", "trainer-horovod"], tree)
    return Version(tree / "manifests", EARLIER_TAG)


@pytest.fixture
def operated(current: Version) -> Iterator[Version]:
    """This version, whose operator runs again at the end."""
    yield current
    current.operate()


def started(namespace: Namespace, *manifests: Manifest) -> list[Job]:
    """Jobs of which each has a checkpoint."""
    bring_script(namespace)
    jobs = [namespace.apply(manifest) for manifest in manifests]
    for job in jobs:
        wait_for_step(job)
    return jobs


def ends_with_new_pods(job: Job, before: dict[str, str]) -> None:
    """The job succeeds from a checkpoint, in pods of a second attempt."""
    status = job.wait(300)
    assert status["attempt"] == 2, job.story()
    assert status["restarts"] == {"application": 1, "infrastructure": 0}, job.story()
    assert {*job.uids().values()}.isdisjoint(before.values())
    (again,) = begun(job, attempt=2)
    assert again > 0 == again % SAVES_EVERY


def ends_in_place(job: Job, before: dict[str, str]) -> None:
    """The job succeeds from a checkpoint, in the same pods."""
    job.wait(300)
    assert job.uids() == before, job.story()
    first, again = begun(job)
    assert first == 0 < again
    assert again % SAVES_EVERY == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_pods_of_the_earlier_image_are_recreated(
    namespace: Namespace, earlier: Version, strategy: str
) -> None:
    (job,) = started(namespace, job_of(strategy, image=earlier.trainer, runPolicy=IN_PLACE))
    before = job.uids()
    kill_rank(job)
    ends_with_new_pods(job, before)


@pytest.mark.parametrize("earlier_launcher", [True, False])
def test_pods_of_a_job_with_both_images_are_recreated(
    namespace: Namespace, earlier: Version, current: Version, earlier_launcher: bool
) -> None:
    manifest = job_of("Horovod", runPolicy=IN_PLACE)
    launcher, worker = (earlier, current) if earlier_launcher else (current, earlier)
    specs = manifest["spec"]["replicaSpecs"]
    specs["worker"]["template"]["spec"]["containers"][0]["image"] = worker.trainer
    specs["launcher"] = {
        "template": {"spec": {"containers": [{"name": "trainer", "image": launcher.trainer}]}}
    }
    (job,) = started(namespace, manifest)
    before = job.uids()
    kill_rank(job)
    ends_with_new_pods(job, before)


def test_this_image_under_the_earlier_operator_has_new_pods(
    namespace: Namespace, earlier: Version, operated: Version
) -> None:
    earlier.operate()
    jobs = started(namespace, *(job_of(strategy, image=operated.trainer) for strategy in STRATEGIES))
    before = {job: job.uids() for job in jobs}
    for job in jobs:
        kill_rank(job)
    for job in jobs:
        ends_with_new_pods(job, before[job])


def test_upgrade_and_rollback_touch_no_pod_of_a_job_that_began_before(
    namespace: Namespace, earlier: Version, operated: Version
) -> None:
    earlier.operate()
    jobs = started(namespace, *(job_of(strategy) for strategy in STRATEGIES))
    before = {job: job.uids() for job in jobs}
    for version in (operated, earlier, operated):
        version.operate()
        for job in jobs:
            wait_for_step(job, steps_of(job, 1)[-1]["step"] + SAVES_EVERY)
            assert job.uids() == before[job], f"{version.tag}: {job.story()}"
    for job in jobs:
        kill_rank(job)
    for job in jobs:
        ends_with_new_pods(job, before[job])


@pytest.mark.parametrize("upgraded_again", [True, False])
def test_ranks_restart_in_place_after_a_rollback(
    namespace: Namespace, earlier: Version, operated: Version, upgraded_again: bool
) -> None:
    """The agents restart the ranks, whichever operator there is; the next one counts the restart."""
    more = 3000 if upgraded_again else SAVES_EVERY
    jobs = started(namespace, *(job_of(strategy, more, runPolicy=IN_PLACE) for strategy in STRATEGIES))
    before = {job: job.uids() for job in jobs}
    earlier.operate()
    for job in jobs:
        kill_rank(job)
        until(
            "a step of rank 1's new process",
            lambda job=job: len({s["pid"] for s in steps_of(job, 1)}) == 2,
            120,
        )
    if upgraded_again:
        operated.operate()
    for job in jobs:
        ends_in_place(job, before[job])
        if upgraded_again:
            counted = {"application": 1, "inPlace": 1, "infrastructure": 0}
            assert job.status["restarts"] == counted, job.story()

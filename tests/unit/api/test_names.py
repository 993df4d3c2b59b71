"""The names of a job's objects, and the names that a job may have."""

from __future__ import annotations

import pytest

from dtj.api.job import InvalidJob, read_job
from dtj.api.names import is_dns_label, pod_name, ssh_secret_name
from dtj.api.validation import faults
from tests.unit.support.jobs import job, manifest


def test_names_say_whose_they_are() -> None:
    assert pod_name("mnist", "worker", 3) == "mnist-worker-3"
    assert job().domain == "mnist.ml.svc"
    assert ssh_secret_name("mnist", job().short_uid) == "mnist-ssh-5b6a1f0e"


@pytest.mark.parametrize("name", ["a", "a1", "a-b", "resnet50-run-7"])
def test_names_that_a_service_may_have(name: str) -> None:
    assert is_dns_label(name)
    assert faults(job(name)) == []


@pytest.mark.parametrize("name", ["", "A", "1a", "a.b", "a_b", "-a", "a-", "a\n", "ä"])
def test_names_that_a_service_may_not_have(name: str) -> None:
    assert [fault.field for fault in faults(job(name))] == ["metadata.name"]


@pytest.mark.parametrize(
    ("workers", "longest"),
    [(1, 63 - len("-launcher-0")), (10, 63 - len("-launcher-0")), (5_000, 63 - len("-worker-4999"))],
)
def test_the_longest_name_is_the_one_whose_pods_still_have_dns_labels(workers: int, longest: int) -> None:
    roles = {"worker": {"replicas": workers}}

    assert faults(job("a" * longest, replicaSpecs=roles)) == []
    (fault,) = faults(job("a" * (longest + 1), replicaSpecs=roles))
    assert f"use a job name of at most {longest}" in fault.message


def test_a_manifest_of_something_else_is_refused_with_both_reasons() -> None:
    wrong = manifest() | {"apiVersion": "kubeflow.org/v1", "kind": "MPIJob"}

    with pytest.raises(InvalidJob) as caught:
        read_job(wrong)

    assert [str(fault) for fault in caught.value.faults] == [
        "apiVersion: 'kubeflow.org/v1' is not dtj.dev/v1alpha1",
        "kind: 'MPIJob' is not DistributedTrainingJob",
    ]

"""The volume of `spec.data.cache`: in the pods that read data, with its size and the variables."""

from __future__ import annotations

from typing import Any

import pytest

from dtj.api.job import Manifest
from dtj.api.validation import faults
from dtj.plan.job import plan_job
from dtj.plan.pods import trainer_container
from tests.unit.support.jobs import job
from tests.unit.support.pod_security import restricted_faults

SERVERS = {"worker": {"replicas": 2}, "ps": {"replicas": 1}, "evaluator": {}}
VARIABLES = {"DTJ_DATA_CACHE": "/dtj/data-cache", "DTJ_DATA_CACHE_BYTES": str(1024**3)}


def pods(volume: Manifest, size: Any = "1Gi", **spec: Any) -> dict[str, Manifest]:
    """The pods by name, with a cache on this volume."""
    made = job(data={"uri": "s3://datasets/fruits", "cache": {"size": size, **volume}}, **spec)
    assert faults(made) == []
    return {pod["metadata"]["name"].removeprefix("mnist-"): pod for pod in plan_job(made).pods}


def volume_of(pod: Manifest) -> Manifest:
    return next((v for v in pod["spec"]["volumes"] if v["name"] == "dtj-data-cache"), {})


def mount_of(pod: Manifest) -> Manifest:
    mounts = trainer_container(pod)["volumeMounts"]
    return next((mount for mount in mounts if mount["name"] == "dtj-data-cache"), {})


@pytest.mark.parametrize(
    ("spec", "readers", "others"),
    [
        ({}, {"worker-0", "worker-1"}, {"launcher-0"}),
        ({"horovod": {"launcher": "MPIJob"}}, {"worker-0", "worker-1"}, {"launcher-0"}),
        ({"strategy": "TorchDistributed"}, {"worker-0", "worker-1"}, set()),
        (
            {"strategy": "ParameterServer", "replicaSpecs": SERVERS},
            {"worker-0", "worker-1", "chief-0", "evaluator-0"},
            {"ps-0"},
        ),
    ],
    ids=["Horovod", "MPIJob", "TorchDistributed", "ParameterServer"],
)
def test_the_pods_that_read_data_have_the_cache(spec: Manifest, readers: set[str], others: set[str]) -> None:
    made = pods({"emptyDir": {}}, **spec)

    assert made.keys() == readers | others
    for name, pod in made.items():
        given = {v["name"]: v.get("value") for v in trainer_container(pod)["env"]}
        cached = {variable: given.get(variable) for variable in VARIABLES}
        assert bool(volume_of(pod)) is bool(mount_of(pod)) is (name in readers), name
        assert cached == (VARIABLES if name in readers else dict.fromkeys(VARIABLES)), name


def test_an_mpijob_has_the_cache_in_the_template_of_its_workers() -> None:
    made = job(
        horovod={"launcher": "MPIJob"},
        data={"uri": "s3://datasets/fruits", "cache": {"size": "1Gi", "emptyDir": {}}},
    )
    mpijob = plan_job(made).mpijob
    assert mpijob
    templates = {name: spec["template"] for name, spec in mpijob["spec"]["mpiReplicaSpecs"].items()}

    assert volume_of(templates["Worker"])
    assert mount_of(templates["Worker"])
    assert not volume_of(templates["Launcher"])


def test_a_claim_is_mounted_and_its_files_keep_their_group() -> None:
    pod = pods({"persistentVolumeClaim": {"claimName": "cache"}})["worker-0"]

    assert volume_of(pod) == {
        "name": "dtj-data-cache",
        "persistentVolumeClaim": {"claimName": "cache"},
    }
    assert mount_of(pod) == {"name": "dtj-data-cache", "mountPath": "/dtj/data-cache"}
    security = pod["spec"]["securityContext"]
    assert (security["fsGroup"], security["fsGroupChangePolicy"]) == (1000, "OnRootMismatch")
    assert list(restricted_faults(pod)) == []


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({}, {"sizeLimit": str(125 * 1024**3)}),
        ({"medium": "Memory"}, {"medium": "Memory", "sizeLimit": str(125 * 1024**3)}),
    ],
)
def test_an_empty_dir_has_a_quarter_more_than_the_cache(given: Manifest, made: Manifest) -> None:
    pod = pods({"emptyDir": given}, "100Gi")["worker-0"]

    assert volume_of(pod)["emptyDir"] == made
    assert list(restricted_faults(pod)) == []


def test_a_folder_of_the_node_is_one_of_the_namespace() -> None:
    pod = pods({"hostPath": {"path": "/var/cache/dtj"}})["worker-0"]

    assert volume_of(pod)["hostPath"] == {"path": "/var/cache/dtj", "type": "DirectoryOrCreate"}
    assert mount_of(pod)["subPath"] == "ml"
    assert list(restricted_faults(pod)) == ["volume dtj-data-cache is a hostPath"]


def test_without_a_cache_nothing_of_it_is_there() -> None:
    for pod in plan_job(job(data={"uri": "s3://datasets/fruits"})).pods:
        assert "cache" not in str(pod).lower()


def test_a_container_beside_the_trainer_may_mount_the_cache() -> None:
    beside = {
        "name": "looks",
        "image": "busybox:1",
        "volumeMounts": [{"name": "dtj-data-cache", "mountPath": "/c"}],
    }
    roles = {"worker": {"template": {"spec": {"containers": [beside]}}}}
    pod = pods({"emptyDir": {}}, replicaSpecs=roles)["worker-0"]
    assert [c["name"] for c in pod["spec"]["containers"]] == ["trainer", "looks"]

    (fault,) = faults(job(replicaSpecs=roles))
    assert "the pod has no volume 'dtj-data-cache'" in fault.message


def test_a_template_can_not_take_the_cache_s_place() -> None:
    mount = {"name": "own", "mountPath": "/dtj/data-cache"}
    template = {
        "spec": {
            "containers": [{"name": "trainer", "volumeMounts": [mount]}],
            "volumes": [{"name": "own", "emptyDir": {}}, {"name": "dtj-data-cache", "emptyDir": {}}],
        }
    }

    assert [str(fault) for fault in faults(job(replicaSpecs={"worker": {"template": template}}))] == [
        "spec.replicaSpecs.worker.template.spec.volumes[1].name: dtj-data-cache belongs to the operator",
        "spec.replicaSpecs.worker.template.spec.containers[trainer].volumeMounts: "
        "/dtj/data-cache belongs to the operator",
    ]

"""`spec.code`: its rules, what its pods have, and the end of a job whose archive can't be used."""

from __future__ import annotations

from typing import Any

import pytest

from dtj.api.job import InvalidJob, Job, Manifest
from dtj.api.validation import faults, notes
from dtj.plan.job import plan_job
from dtj.plan.pods import trainer_container
from tests.unit.support.jobs import job

DIGEST = "sha256:" + "5" * 64


def coded(**fields: Any) -> Manifest:
    return {"configMap": "mnist-code", "digest": DIGEST, "entrypoint": "train.py"} | fields


def with_code(code: Manifest, **spec: Any) -> Job:
    return job(code=code, **{"command": [], "args": []} | spec)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (coded(uri="s3://training/code.tar.gz"), "spec.code: give one of configMap and uri, got both"),
        (coded(configMap=None), "spec.code: give one of configMap and uri, got neither"),
        (
            coded(entrypoint=None),
            "spec.code.entrypoint: required: the script in the archive, e.g. train.py, or spec.command",
        ),
        (
            coded(packages={"digest": DIGEST}),
            "spec.code.packages: give one of configMap and uri, got neither",
        ),
        *(
            (
                coded(entrypoint=path),
                f"spec.code.entrypoint: '{path}' is not the path of a script in the archive, e.g. train.py",
            )
            for path in ("/train.py", "../train.py", "-c")
        ),
    ],
)
def test_what_code_must_be(code: Manifest, message: str) -> None:
    assert [str(fault) for fault in faults(with_code(code))] == [message]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (coded(digest="md5:1"), "must be sha256: and 64 hex digits in lower case"),
        (coded(configMap=None, uri="s3://bucket"), "must be the address of an archive, s3://bucket/key"),
        ({"configMap": "a", "entrypoint": "train.py"}, "spec.code.digest: required"),
    ],
)
def test_what_the_schema_refuses(code: Manifest, message: str) -> None:
    with pytest.raises(InvalidJob) as refusal:
        with_code(code)
    assert message in str(refusal.value)


def test_a_command_runs_in_the_code_without_an_entrypoint() -> None:
    made = with_code(coded(entrypoint=None), command=["python", "-m", "pkg.train"])
    assert faults(made) == []
    assert made.spec.own_command == ["python", "-m", "pkg.train"]


def test_validate_says_what_the_image_needs() -> None:
    (note,) = notes(with_code(coded()))
    assert note.endswith("needs dtj_trainer, which dtj's own images have")
    assert list(notes(job())) == []


def test_the_volume_and_the_folders_of_the_code_are_reserved() -> None:
    mount = {"name": "dtj-code", "mountPath": "/dtj/code"}
    template = {"spec": {"containers": [{"name": "trainer", "volumeMounts": [mount]}]}}
    made = with_code(coded(), replicaSpecs={"worker": {"replicas": 1, "template": template}})
    assert [fault.field for fault in faults(made)] == [
        "spec.replicaSpecs.worker.template.spec.containers[trainer].volumeMounts"
    ]


@pytest.mark.parametrize(
    ("cache", "shared"),
    [({"persistentVolumeClaim": {"claimName": "blocks"}}, True), ({"emptyDir": {}}, False), (None, False)],
)
def test_pods_share_packages_where_they_share_a_cache(cache: Manifest | None, shared: bool) -> None:
    data = {"uri": "s3://training/data"} | ({"cache": {"size": "10Gi", **cache}} if cache else {})
    packages = {"uri": "s3://training/packages.tar.gz", "digest": DIGEST}
    made = with_code(coded(packages=packages), data=data)
    assert faults(made) == []
    for pod in plan_job(made).pods:
        environment = {each["name"]: each.get("value") for each in trainer_container(pod)["env"]}
        assert environment["DTJ_PACKAGES_ARCHIVE"] == "s3://training/packages.tar.gz"
        assert environment["DTJ_PACKAGES_DIGEST"] == DIGEST
        # The launcher reads no data, and has no volume of the cache.
        mounted = shared and environment["DTJ_ROLE"] == "worker"
        assert environment.get("DTJ_PACKAGES_CACHE") == ("/dtj/data-cache/packages" if mounted else None)
    assert "SetEnv PYTHONPATH=/dtj/code:/dtj/packages\n" in plan_job(made).config["data"]["sshd_config"]


def test_an_archive_in_a_bucket_mounts_nothing() -> None:
    made = with_code(coded(configMap=None, uri="s3://training/code.tar.gz"))
    for pod in plan_job(made).pods:
        environment = {each["name"]: each.get("value") for each in trainer_container(pod)["env"]}
        assert environment["DTJ_CODE_ARCHIVE"] == "s3://training/code.tar.gz"
        assert environment["DTJ_CODE_DIGEST"] == DIGEST
        assert "dtj-code" not in [volume["name"] for volume in pod["spec"]["volumes"]]

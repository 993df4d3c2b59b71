"""The rules of `spec.data.cache`: one volume, a size, and folders of nodes that the operator allows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtj.admission.review import review
from dtj.api.job import InvalidJob, Job, Manifest, read_job
from dtj.api.validation import LEAST_BYTES, MOST_BYTES, cache_bytes, faults, host_path_faults, notes
from dtj.operator_flags import read_flags
from dtj.plan.job import plan_job
from tests.unit.support.admission import request
from tests.unit.support.jobs import job, manifest
from tests.unit.support.world import World

ON_NODE = {"hostPath": {"path": "/var/cache/dtj/blocks"}}


def cached(size: Any = "100Gi", **volumes: Any) -> Manifest:
    return {"uri": "s3://datasets/fruits", "cache": {"size": size, **volumes}}


def said(made: Job) -> list[str]:
    return [str(fault) for fault in faults(made)]


@pytest.mark.parametrize("size", ["1Gi", "100Gi", "1.5Ti", "1e12", 1024**3, "1Pi"])
def test_sizes_that_a_cache_may_have(size: Any) -> None:
    made = job(data=cached(size, emptyDir={}))

    assert said(made) == []
    cache = made.cache
    assert cache
    assert LEAST_BYTES <= cache_bytes(cache) <= MOST_BYTES


@pytest.mark.parametrize("size", ["1023Mi", 0, -1, "-5Gi", "2Pi", "1e30", 10**40])
def test_sizes_that_are_too_small_or_too_large(size: Any) -> None:
    (fault,) = said(job(data=cached(size, emptyDir={})))

    assert fault.startswith("spec.data.cache.size: must be from 1Gi to 1Pi, got ")


@pytest.mark.parametrize(
    "size", ["", "100GB", "100 Gi", "much", "1e99999999999999", pytest.param("9" * 5000, id="long")]
)
def test_sizes_that_are_no_quantities(size: str) -> None:
    (fault,) = said(job(data=cached(size, emptyDir={})))

    assert fault.startswith("spec.data.cache.size: '")
    assert fault.endswith(" is not a quantity of bytes such as 100Gi")


@given(st.integers() | st.text() | st.from_regex(r"[0-9.]{1,6}([KMGTPE]i?|e[0-9]{1,9})?", fullmatch=True))
def test_a_job_with_any_size_has_a_fault_or_a_plan(size: Any) -> None:
    made = job(data=cached(size, emptyDir={}))

    if not faults(made):
        assert plan_job(made).pods


def test_a_cache_is_on_exactly_one_volume() -> None:
    begin = "spec.data.cache: give one of persistentVolumeClaim, emptyDir and hostPath, got"
    claim = {"persistentVolumeClaim": {"claimName": "cache"}}

    assert said(job(data=cached())) == [f"{begin} none"]
    assert said(job(data=cached(emptyDir={}, **ON_NODE))) == [f"{begin} emptyDir and hostPath"]
    assert said(job(data=cached(**claim))) == []


@pytest.mark.parametrize("path", ["cache", "/", "/var/../etc", "/var/./cache", "/var//cache", "/a b", ""])
def test_a_folder_of_a_node_is_an_absolute_path_without_tricks(path: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        read_job(manifest(data=cached(hostPath={"path": path})))

    (fault,) = caught.value.faults
    assert fault.field == "spec.data.cache.hostPath.path"
    assert "/var/cache/dtj" in fault.message


@pytest.mark.parametrize("allowed", ["/var/cache/dtj", "/var/cache/dtj/blocks", "/var"])
def test_a_folder_below_an_allowed_one_is_allowed(allowed: str) -> None:
    assert list(host_path_faults(job(data=cached(**ON_NODE)), [allowed, "/mnt"])) == []


def test_a_folder_beside_the_allowed_ones_is_refused() -> None:
    made = job(data=cached(**ON_NODE))

    assert list(map(str, host_path_faults(made, ["/var/cache/d", "/mnt"]))) == [
        "spec.data.cache.hostPath.path: must be /var/cache/d or /mnt, or a folder below, got '/var/cache/dtj/blocks'"
    ]


def test_a_cache_on_another_volume_needs_nobodys_leave() -> None:
    assert list(host_path_faults(job(data=cached(emptyDir={})), [])) == []
    assert list(host_path_faults(job(), [])) == []


def test_the_flag_names_the_allowed_folders() -> None:
    words = ["--data-cache-host-path=/mnt/a", "--data-cache-host-path=/mnt/b", "--webhook-port=9443"]
    flags = read_flags([*words, "--webhook-namespace=dtj-system"])

    assert flags.data_cache_host_paths == ["/mnt/a", "/mnt/b"]
    assert flags.webhook
    assert flags.webhook.host_paths == ["/mnt/a", "/mnt/b"]
    assert read_flags([]).data_cache_host_paths == []


@pytest.mark.parametrize("wrong", ["cache", "/", "/a/../b"])
def test_a_flag_that_names_no_folder_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_flags([f"--data-cache-host-path={wrong}"])

    assert "must be the path of a folder such as /var/cache/dtj" in capsys.readouterr().err


def test_the_webhook_refuses_a_folder_of_a_node_unless_it_is_allowed() -> None:
    asked = request("CREATE", manifest(data=cached(**ON_NODE)), None)

    assert review(asked, ["/var/cache/dtj"])["response"]["allowed"] is True
    refused = review(asked)["response"]
    assert refused["allowed"] is False
    assert "allows no folder of a node: use persistentVolumeClaim or emptyDir" in refused["status"]["message"]


@pytest.mark.parametrize(("allowed", "pods"), [((), 0), (("/var/cache/dtj",), 3)])
async def test_the_operator_makes_pods_only_where_the_folder_is_allowed(
    allowed: tuple[str, ...], pods: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "host_paths", allowed)
    world = World(data=cached(**ON_NODE))
    await world.until(lambda: world.phase in ("Failed", "Running"))

    assert len(world.pod_names()) == pods
    if not pods:
        failure = world.status["failure"]
        assert failure["class"] == "ValidationFailed"
        assert "dataCache.hostPathPrefixes of the chart" in failure["message"]


def test_a_file_is_valid_but_says_what_its_cluster_has_to_allow() -> None:
    made = job(data=cached(**ON_NODE))

    assert said(made) == []
    (note,) = notes(made)
    assert "/var/cache/dtj/blocks; Pod Security levels baseline and restricted forbid the pods" in note
    assert list(notes(job(data=cached(emptyDir={})))) == []

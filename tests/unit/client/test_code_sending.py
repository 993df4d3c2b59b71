"""The archive of a submitted job: its ConfigMap, whoever owns it, and what becomes of it after a failure."""

from __future__ import annotations

import asyncio
import io
import os
from base64 import b64decode
from pathlib import Path

import pytest
from aiohttp import web

from dtj.api.identity import LABEL_CODE
from dtj.api.job import Manifest
from dtj.api.spec import Code
from dtj.client import AsyncClient, DistributedTrainingJob, DtjError, Unreachable, Unusable
from dtj.client.code_job import Wishes, job_manifest, packed_code, packed_packages, read_program
from dtj.client.failures import NameTaken
from dtj.client.packages import Wheels
from dtj_trainer.contract.package_set import PackageSet
from tests.unit.support.http_cluster import Answer, HttpCluster
from tests.unit.support.waiting import until
from tests.wheels import wheel


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "code.tar.gz"


@pytest.fixture
def job(tmp_path: Path, archive: Path) -> DistributedTrainingJob:
    folder = tmp_path / "my-training"
    folder.mkdir()
    (folder / "train.py").write_text("import horovod.torch\n")
    program = read_program(folder)
    with archive.open("wb") as file:
        _, code = packed_code(program, file, None)
    return DistributedTrainingJob.from_manifest(job_manifest("mnist", program, code, "i", Wishes(), {}))


def configs(server: HttpCluster) -> list[Manifest]:
    return [each for each in server.cluster.of_kind("ConfigMap") if LABEL_CODE in each["metadata"]["labels"]]


async def test_the_config_map_of_the_code_belongs_to_the_job(
    server: HttpCluster, client: AsyncClient, job: DistributedTrainingJob, archive: Path
) -> None:
    submitted = await client.submit(job, archive=archive)
    (config,) = configs(server)
    assert job.spec.code is not None
    assert config["metadata"]["name"] == job.spec.code.config_map
    assert config["metadata"]["labels"] == {LABEL_CODE: "mnist"}, "none by which the operator caches it"
    assert config["immutable"] is True
    assert b64decode(config["binaryData"]["code.tar.gz"]) == archive.read_bytes()
    (owner,) = config["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("DistributedTrainingJob", submitted.uid)


async def test_packages_are_in_the_config_map_of_the_code(
    server: HttpCluster, client: AsyncClient, job: DistributedTrainingJob, archive: Path, tmp_path: Path
) -> None:
    code = job.spec.code
    assert code is not None
    wheels, packages = Wheels((wheel(tmp_path, "tiny"),), PackageSet("3.11")), tmp_path / "packages"
    with packages.open("wb") as file:
        _, code = packed_packages(wheels, file, code, None)
    spec = job.spec.model_copy(update={"code": code})
    await client.submit(job.model_copy(update={"spec": spec}), archive=archive, packages=packages)
    (config,) = configs(server)
    sent = {key: b64decode(content) for key, content in config["binaryData"].items()}
    assert sent == {"code.tar.gz": archive.read_bytes(), "packages.tar.gz": packages.read_bytes()}


def test_large_packages_need_a_bucket(tmp_path: Path) -> None:
    large = wheel(tmp_path, "large", files={"large.bin": os.urandom(600 * 1024)})
    wheels, code = Wheels((large,), PackageSet("3.11")), Code(digest=f"sha256:{'0' * 64}", config_map="c")
    packed, found = packed_packages(wheels, io.BytesIO(), code, "s3://bucket/jobs/")
    assert found.packages is not None
    assert found.packages.config_map is None
    assert found.packages.uri == f"s3://bucket/jobs/_code/{packed.digest[7:]}.tar.gz"
    with pytest.raises(
        Unusable, match=r"of packages has [\d,]+ bytes, and a ConfigMap takes at most 524,288"
    ):
        packed_packages(wheels, io.BytesIO(), code, None)


async def test_a_taken_name_is_refused_before_anything_is_sent(
    server: HttpCluster, client: AsyncClient, job: DistributedTrainingJob, archive: Path
) -> None:
    await client.submit(job)
    before = len(server.posts)
    with pytest.raises(NameTaken):
        await client.submit(job, archive=archive)
    assert (configs(server), len(server.posts)) == ([], before)


async def test_a_refused_job_takes_its_config_map_back(
    server: HttpCluster, client: AsyncClient, job: DistributedTrainingJob, archive: Path
) -> None:
    server.refusals[("POST", "distributedtrainingjobs")] = [(422, "Invalid", "spec.args: too many")]
    with pytest.raises(Unusable, match="too many"):
        await client.submit(job, archive=archive)
    assert configs(server) == []
    assert any("configmaps" in each.path for each in server.requests if each.method == "DELETE")


@pytest.mark.parametrize("created", [True, False])
async def test_an_answer_that_does_not_arrive_leaves_no_config_map_without_a_job(
    server: HttpCluster,
    client: AsyncClient,
    job: DistributedTrainingJob,
    archive: Path,
    created: bool,
) -> None:
    async def breaks(request: web.Request, answer: Answer) -> web.StreamResponse:
        if request.method == "POST" and "distributedtrainingjobs" in request.path:
            if created:
                await answer()
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        return await answer()

    server.fault = breaks
    with pytest.raises(Unreachable):
        await client.submit(job, archive=archive)
    assert [bool(each["metadata"].get("ownerReferences")) for each in configs(server)] == [True] * created
    assert len(server.jobs) == created


async def test_who_interrupts_leaves_no_config_map(
    server: HttpCluster, client: AsyncClient, job: DistributedTrainingJob, archive: Path
) -> None:
    hold = asyncio.Event()

    async def waits(request: web.Request, answer: Answer) -> web.StreamResponse:
        if request.method == "POST" and "distributedtrainingjobs" in request.path:
            hold.set()
            await asyncio.sleep(60)
        return await answer()

    server.fault = waits
    submission = asyncio.create_task(client.submit(job, archive=archive))
    await until(hold.is_set)
    assert len(configs(server)) == 1
    submission.cancel()
    with pytest.raises(asyncio.CancelledError):
        await submission
    assert configs(server) == []


async def test_who_lacks_the_right_is_told_the_rule_to_ask_for(
    server: HttpCluster, client: AsyncClient, job: DistributedTrainingJob, archive: Path
) -> None:
    server.refusals[("POST", "configmaps")] = [(403, "Forbidden", "configmaps is forbidden: User cannot")]
    with pytest.raises(Unreachable) as error:
        await client.submit(job, archive=archive)
    assert error.value.remedy == (
        'ask for a Role in namespace ml with the rule {apiGroups: [""], resources: [configmaps], '
        "verbs: [get, create, patch, delete]}"
    )
    assert server.jobs == {}


async def test_a_job_whose_config_map_has_no_owner_runs_with_a_warning(
    server: HttpCluster,
    client: AsyncClient,
    job: DistributedTrainingJob,
    archive: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.refusals[("PATCH", "configmaps")] = [(403, "Forbidden", "no")]
    await client.submit(job, archive=archive)
    assert "stays when the job is deleted" in caplog.text


async def test_a_config_map_of_another_one_is_left_alone(
    server: HttpCluster, client: AsyncClient, job: DistributedTrainingJob, archive: Path
) -> None:
    server.refusals[("POST", "configmaps")] = [(409, "AlreadyExists", "exists")]
    with pytest.raises(DtjError, match="already"):
        await client.submit(job, archive=archive)
    assert not [each for each in server.requests if each.method == "DELETE"]


async def test_the_defaults_of_a_namespace_are_those_of_its_config_map(
    server: HttpCluster, client: AsyncClient
) -> None:
    assert await client.defaults() is None
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "dtj-defaults", "namespace": "ml"},
    }
    server.cluster.add({**config, "data": {"config.toml": 'image.Horovod = "a:1"'}})
    found = await client.defaults()
    assert found is not None
    assert found.image == {"Horovod": "a:1"}
    server.cluster.change(("ConfigMap", "ml", "dtj-defaults"), lambda there: there.update(data={"x": ""}))
    with pytest.raises(Unusable, match=r"has no key config\.toml"):
        await client.defaults()

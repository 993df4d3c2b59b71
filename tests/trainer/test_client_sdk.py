"""The SDK with a real bucket: artifacts, logs of jobs without pods, credentials, and the examples of docs/sdk.md.

* lists, copies and segments of artifacts
* checkpoints, and a bucket that is away
* credentials of the job's Secret
* the code of jobs
* logs from the bucket
* the examples of docs/sdk.md
"""

from __future__ import annotations

import asyncio
import os
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE
from tests.trainer.conftest import REPOSITORY, ObjectStore
from tests.unit.support.configured_cluster import configured_cluster
from tests.unit.support.http_cluster import HttpCluster
from tests.unit.support.jobs import stored
from tests.unit.support.pods import stored_pod
from tests.unit.support.waiting import until

from dtj.client import (
    Artifacts,
    AsyncClient,
    DistributedTrainingJob,
    LogQuery,
    NotFound,
    Unreachable,
    Unusable,
)
from dtj.client.code_job import Wishes, job_manifest, packed_code, read_program
from dtj.client.defaults import Value
from dtj_trainer.artifacts.manifest import Manifest, StoredFile
from dtj_trainer.artifacts.store import Store, StoredObject, open_store

DOCS = (REPOSITORY / "docs/sdk.md").read_text()
CONDITION = {
    "type": "Succeeded",
    "status": "True",
    "reason": "R",
    "lastTransitionTime": "2026-11-21T13:00:00Z",
}
ENDED = {"phase": "Succeeded", "completionTime": "2026-11-21T13:00:00Z", "conditions": [CONDITION]}


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HttpCluster]:
    async with configured_cluster(tmp_path, monkeypatch) as running:
        yield running


@pytest.fixture
def artifacts(job_uri: str, object_store: ObjectStore) -> Artifacts:
    return Artifacts(job_uri, object_store.environment)


def test_objects_are_listed_read_and_copied(artifacts: Artifacts, job_store: Store, tmp_path: Path) -> None:
    for key in ("model/model.pt", "model/more/labels.txt", "job.yaml"):
        job_store.put_bytes(key, key.encode())
    assert [(found.key, found.size) for found in artifacts.ls("model/")] == [
        ("model/model.pt", 14),
        ("model/more/labels.txt", 21),
    ]
    assert len(artifacts.ls()) == 3
    assert artifacts.read("job.yaml") == b"job.yaml"
    files = artifacts.get("model", tmp_path / "all")
    assert files == [tmp_path / "all/model/model.pt", tmp_path / "all/model/more/labels.txt"]
    assert files[0].read_bytes() == b"model/model.pt"
    assert artifacts.get("job.yaml", tmp_path) == [tmp_path / "job.yaml"]
    assert artifacts.cp("model/model.pt", tmp_path) == tmp_path / "model.pt"
    assert artifacts.cp("model/model.pt", tmp_path / "new/name").read_bytes() == b"model/model.pt"


async def test_large_code_goes_to_the_bucket_once_for_all_jobs(
    server: HttpCluster,
    job_uri: str,
    object_store: ObjectStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, archive = tmp_path / "code", tmp_path / "code.tar.gz"
    folder.mkdir()
    (folder / "train.py").write_text("import horovod")
    (folder / "words.bin").write_bytes(os.urandom(600 * 1024))
    program = read_program(folder)
    with archive.open("wb") as file:
        _, code = packed_code(program, file, job_uri)
    store = {"artifacts.uri": Value("artifacts.uri", job_uri, "")}
    assert code.uri == f"{job_uri}/_code/{code.digest.removeprefix('sha256:')}.tar.gz"
    where, _, key = code.uri.rpartition("/")
    marked = bytes(archive.stat().st_size)
    async with AsyncClient() as client:
        for name, content in (("one", archive.read_bytes()), ("two", marked)):
            made = job_manifest(name, program, code, "i", Wishes(), store)
            await client.submit(DistributedTrainingJob.from_manifest(made), archive=archive)
            assert open_store(where).get_bytes(key) == content
            open_store(where).put_bytes(key, marked)  # The second job must not send it again.
        # The user's own credentials go to the endpoint of a job only if the user names the endpoint.
        url = os.environ["AWS_ENDPOINT_URL_S3"]
        monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
        store["artifacts.endpoint"] = Value("artifacts.endpoint", url, "")
        named = DistributedTrainingJob.from_manifest(
            job_manifest("three", program, code, "i", Wishes(), store)
        )
        with pytest.raises(Unreachable, match="go only to an endpoint that you name"):
            await client.submit(named, archive=archive)
        assert (await client.submit(named, archive=archive, endpoint=url)).name == "three"
    assert not server.cluster.of_kind("ConfigMap")


SEGMENTS = {
    "metrics.jsonl": b'{"a": 1}\n',
    "metrics.jsonl.00002": b'{"a": 2}\n',
    "metrics.jsonl.00010": b'{"a": 3}\n',
}


def test_segments_of_a_file_are_read_and_copied_as_one(
    artifacts: Artifacts, job_store: Store, tmp_path: Path
) -> None:
    event_files = {f"tensorboard/events.host.{part:05d}": b"e" for part in (0, 1, 2)}  # Of an older release.
    for key, content in (SEGMENTS | event_files).items():
        job_store.put_bytes(key, content)
    whole = b"".join(SEGMENTS.values())
    assert artifacts.read("metrics.jsonl") == whole
    assert artifacts.metrics() == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert artifacts.cp("metrics.jsonl", tmp_path).read_bytes() == whole
    assert artifacts.get("metrics.jsonl", tmp_path / "one") == [tmp_path / "one/metrics.jsonl"]
    assert artifacts.read("metrics.jsonl.00002") == SEGMENTS["metrics.jsonl.00002"]
    files = artifacts.get("", tmp_path / "all")
    assert files == [tmp_path / "all" / key for key in ("metrics.jsonl", *event_files)]
    assert files[0].read_bytes() == whole
    assert len(artifacts.ls()) == 6


def test_what_is_not_in_the_bucket_is_not_found(artifacts: Artifacts, tmp_path: Path) -> None:
    for ask in (lambda: artifacts.read("x"), lambda: artifacts.get("x", tmp_path), artifacts.metrics):
        with pytest.raises(NotFound, match="does not exist"):
            ask()
    assert artifacts.ls("x") == []
    assert list(tmp_path.iterdir()) == []


def test_a_key_does_not_lead_out_of_the_folder(
    artifacts: Artifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Artifacts, "ls", lambda *_: [StoredObject("../../outside", 0, "")])
    with pytest.raises(Unusable, match="leads out of"):
        artifacts.get("model", tmp_path / "folder")


def test_only_checkpoints_with_a_manifest_count(artifacts: Artifacts, job_store: Store) -> None:
    for step in (20, 100):
        manifest = Manifest(
            number=step,
            step=step,
            time="2026-11-21T12:00:00Z",
            attempt=1,
            files=(StoredFile(f"{step}/state.pt", f"{step}/state.pt", 5, "0" * 64),),
        )
        job_store.put_bytes(f"checkpoints/{step}/manifest.json", manifest.to_json())
    job_store.put_bytes("checkpoints/200/state.pt", b"torn")
    found = artifacts.checkpoints()
    assert [(c.step, c.size, c.time.year) for c in found] == [(20, 5, 2026), (100, 5, 2026)]
    assert found[1].uri == f"{artifacts.uri}/checkpoints/100"


def test_a_store_that_is_away_is_unreachable(job_uri: str) -> None:
    away = Artifacts(job_uri, {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "a",
                               "AWS_SECRET_ACCESS_KEY": "b"})  # fmt: skip
    with pytest.raises(Unreachable, match="can't be reached") as caught:
        away.ls()
    assert "AWS_ENDPOINT_URL_S3" in str(caught.value.remedy)


async def test_the_jobs_secret_opens_the_bucket_where_the_user_has_no_credentials(
    server: HttpCluster, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = dict(object_store.environment)
    for name in list(environment):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    store = {
        "uri": "s3://training/jobs",
        "endpoint": environment["AWS_ENDPOINT_URL_S3"],
        "secretName": "s3-credentials",
    }
    server.cluster.put(stored(artifacts=store, env=[{"name": "DTJ_S3_SSE", "value": "AES256"}]))
    async with AsyncClient() as client:
        with pytest.raises(
            Unreachable, match=r"no credentials for s3://training/jobs/ml/mnist-uid at http.*not found"
        ):
            await client.artifacts("mnist")
        keys = {key: value for key, value in environment.items() if "ENDPOINT" not in key} | {"OTHER": "x"}
        data = {key: b64encode(value.encode()).decode() for key, value in keys.items()}
        server.cluster.put({"kind": "Secret", "metadata": {"name": "s3-credentials"}, "data": data})
        artifacts = await client.artifacts("mnist")
        assert "OTHER" not in artifacts.environment
        assert artifacts.environment["DTJ_S3_SSE"] == "AES256"
        assert await asyncio.to_thread(artifacts.ls, "nothing") == []
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "my own")
        # The job names the endpoint, and so gets only the keys of its own Secret.
        assert (await client.artifacts("mnist")).environment["AWS_ACCESS_KEY_ID"] == "test-key"
        there = await client.artifacts("mnist", endpoint="http://elsewhere:1")
        assert there.environment["AWS_ENDPOINT_URL_S3"] == "http://elsewhere:1"
        assert there.environment["AWS_ACCESS_KEY_ID"] == "my own"


@pytest.fixture
async def finished(server: HttpCluster, object_store: ObjectStore) -> tuple[AsyncClient, Store]:
    """Of a Horovod job without pods that was started twice."""
    server.cluster.put(stored("of-buckets", artifacts={"uri": "s3://training/logs"}) | {"status": ENDED})
    store = open_store("s3://training/logs/ml/of-buckets-uid")
    for attempt in (2, 10):
        both = f"starts {attempt}\n[rank 1] one\n[rank 0] zero\n"
        store.put_bytes(f"logs/attempt-{attempt}/launcher-0.log", both.encode())
        store.put_bytes(f"logs/attempt-{attempt}/rank-1.log", b"one\n")
    return AsyncClient(), store


@pytest.mark.parametrize(
    ("choice", "lines"),
    [
        ({}, ["launcher-0: starts 10", "rank 1: one", "rank 0: zero"]),
        ({"attempt": 2}, ["launcher-0: starts 2", "rank 1: one", "rank 0: zero"]),
        ({"tail": 1}, ["rank 0: zero"]),
        ({"rank": 1}, ["rank 1: one"]),
        ({"follow": True, "rank": 1}, ["rank 1: one"]),
        ({"role": "launcher"}, ["launcher-0: starts 10"]),
    ],
)
async def test_logs_of_a_job_without_pods_come_from_the_bucket(
    finished: tuple[AsyncClient, Store], choice: dict[str, Any], lines: list[str]
) -> None:
    async with finished[0] as client:
        found = [
            f"{line.source}: {line.text}" async for line in client.logs("of-buckets", LogQuery(**choice))
        ]
        assert found == lines
        with pytest.raises(NotFound, match="has no logs of attempt 3"):
            await anext(client.logs("of-buckets", LogQuery(attempt=3)))


@pytest.mark.parametrize(
    ("spec", "pods", "printed"),
    [
        (
            {
                "strategy": "ParameterServer",
                "replicaSpecs": {"worker": {"replicas": 2}, "ps": {"replicas": 1}, "chief": {}},
            },
            ["chief-0", "worker-0", "ps-0"],
            {"chief-0: read", "worker-0: read", "ps-0: read", "worker-1: of the bucket"},
        ),
        ({}, [], {"launcher-0: of the bucket", "rank 1: of the bucket"}),
        ({}, ["launcher-0"], {"launcher-0: read"}),
    ],
)  # fmt: skip
async def test_a_follower_brings_the_logs_of_pods_that_went_too_soon_from_the_bucket(
    server: HttpCluster, object_store: ObjectStore, spec: dict[str, Any], pods: list[str], printed: set[str]
) -> None:
    store = open_store("s3://training/missed/ml/mnist-uid")
    for source in ("launcher-0", "rank-1", "chief-0", "worker-0", "worker-1", "ps-0"):
        line = "of the bucket\n" if source != "launcher-0" else "of the bucket\n[rank 1] of the bucket\n"
        store.put_bytes(f"logs/attempt-1/{source}.log", line.encode())
    server.cluster.put(stored(artifacts={"uri": "s3://training/missed"}, **spec))
    for name in pods:
        server.cluster.put(stored_pod(f"mnist-{name}"))
        server.logs.print(f"mnist-{name}", "2026-11-21T12:00:01Z read")
    found: list[str] = []

    async def follow() -> None:
        async with AsyncClient() as client:
            async for line in client.logs("mnist", LogQuery(follow=True)):
                found.append(f"{line.source}: {line.text}")

    following = asyncio.create_task(follow())
    await until(lambda: any("/pods?" in path for path in server.paths))
    await until(lambda: len(found) == len(pods))
    for name in pods:
        server.cluster.put(stored_pod(f"mnist-{name}", phase="Succeeded"))
    server.set_status("mnist", allRunningTime="2026-11-21T12:00:00Z", **ENDED)
    await asyncio.wait_for(following, 20 * PATIENCE)
    assert len(found) == len(printed)
    assert set(found) == printed


async def test_a_log_without_its_first_segment_begins_with_the_second(
    finished: tuple[AsyncClient, Store],
) -> None:
    client, store = finished
    for number, line in ((2, b"c\n"), (3, b"d\n")):
        store.put_bytes(f"logs/attempt-11/launcher-0.log.{number:05}", line)
    async with client:
        assert [line.text async for line in client.logs("of-buckets")] == ["c", "d"]


@pytest.mark.parametrize("tail", [None, 1, 2, 3, 4, 5, 6, 7])
async def test_a_log_in_segments_is_one_log_of_which_the_end_is_read_alone(
    finished: tuple[AsyncClient, Store], tail: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, store = finished
    log = "logs/attempt-11/launcher-0.log"
    # The second was divided within a line.
    pieces = {"": b"a\n[rank 0] b\n", ".00002": b"[rank 1] c\nlong", ".00003": b" line\n", ".00010": b"d\ne"}
    for suffix, content in pieces.items():
        store.put_bytes(f"{log}{suffix}", content)
    read: list[str] = []
    get = Store.get_range
    monkeypatch.setattr(
        Store, "get_range", lambda store, key, *range_: (read.append(key), get(store, key, *range_))[1]
    )
    async with client:
        found = [
            f"{line.source}: {line.text}" async for line in client.logs("of-buckets", LogQuery(tail=tail))
        ]
    whole = [
        "launcher-0: a",
        "rank 0: b",
        "rank 1: c",
        "launcher-0: long line",
        "launcher-0: d",
        "launcher-0: e",
    ]
    assert found == (whole if tail is None else whole[-tail:])
    if tail == 1:
        assert read == [f"{log}.00010"]


async def operate(server: HttpCluster) -> None:
    """The operator and the pods of every job that is made: its log, what it leaves, its end."""
    done: set[str] = set()
    while True:
        for name in [name for name in server.jobs if name not in done]:
            done.add(name)
            launcher = f"{name}-launcher-0"
            uid = server.jobs[name]["metadata"]["uid"].partition("-")[0]
            store = open_store(f"s3://training/jobs/ml/{name}-{uid}")
            for key, content in (("model/model.pt", b"weights"), ("metrics.jsonl", b'{"accuracy": 0.9}\n')):
                await asyncio.to_thread(store.put_bytes, key, content)
            server.cluster.put(stored_pod(launcher))
            server.set_status(name, phase="Running")
            server.logs.print(launcher, "2026-11-21T12:00:01Z [rank 0] loss 0.5")
            server.cluster.put(stored_pod(launcher, phase="Succeeded"))
            server.set_status(name, **ENDED, progress={"step": 938, "accuracy": 0.9})
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("sync", ["rank 0: loss 0.5", "Succeeded ", "[0.9]"]),
        ("async", ["rate-0-05 Succeeded", "[0.9, 0.9, 0.9]"]),
        ("errors", ["there is no job no-such-job in namespace ml", "`dtj list -A`"]),
    ],
)
async def test_the_examples_of_the_documentation_run(
    server: HttpCluster,
    object_store: ObjectStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    printed: list[str],
) -> None:
    code = re.search(rf"<!-- example: {name} -->\n```python\n(.*?)```", DOCS, re.DOTALL)
    assert code is not None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "manifests").symlink_to(REPOSITORY / "manifests")
    operator = asyncio.create_task(operate(server))
    output = StringIO()
    with redirect_stdout(output):
        await asyncio.to_thread(exec, compile(code[1], f"sdk.md {name}", "exec"), {"__name__": "example"})
    operator.cancel()
    for text in printed:
        assert text in output.getvalue()
    if name == "sync":
        assert (tmp_path / "fashion-mnist/model/model.pt").read_bytes() == b"weights"
        assert server.jobs == {}


def test_every_example_of_the_documentation_is_run() -> None:
    assert DOCS.count("```python") == DOCS.count("<!-- example:") == 3

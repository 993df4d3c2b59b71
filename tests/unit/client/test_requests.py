"""The requests of the client over HTTP: jobs created, read, changed and deleted, and errors in one line.

* submission, names in use, namespaces
* lists by page, and jobs of a newer operator
* refusals, clusters without dtj or out of reach, wrong and expired credentials
* kubeconfigs and the service account of a pod
* suspend, resume, scale and delete
* events and pods of a job
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web

from dtj.api.identity import KIND
from dtj.client import (
    Artifacts,
    AsyncClient,
    DistributedTrainingJob,
    DtjError,
    InvalidJobError,
    JobSpec,
    Metadata,
    NotFound,
    ReplicaSpec,
    ReplicaSpecs,
    StoredCheckpoint,
    Strategy,
    TimedOut,
    Unreachable,
    Unusable,
    watching,
)
from dtj.cluster import api, user_api
from dtj_trainer.contract.distribution import version
from tests.patience import PATIENCE
from tests.unit.support.http_cluster import Answer, HttpCluster
from tests.unit.support.jobs import stored
from tests.unit.support.kubeconfig import write_kubeconfig
from tests.unit.support.pods import stored_pod
from tests.unit.support.waiting import until


def a_job(name: str = "mnist", image: str = "trainer:1") -> DistributedTrainingJob:
    return DistributedTrainingJob(
        metadata=Metadata(name=name, labels={"team": "vision"}),
        spec=JobSpec(
            strategy=Strategy.HOROVOD,
            image=image,
            command=["python", "train.py"],
            replica_specs=ReplicaSpecs(worker=ReplicaSpec(replicas=2)),
        ),
    )


async def test_a_submitted_job_is_stored_as_it_was_written(server: HttpCluster, client: AsyncClient) -> None:
    job = await client.submit(a_job())
    uid = server.jobs["mnist"]["metadata"]["uid"]
    assert (job.name, job.namespace, job.uid) == ("mnist", "ml", uid)
    (sent,) = [request.body for request in server.requests if request.method == "POST"]
    assert sent["spec"] == stored()["spec"]
    assert sent["metadata"]["labels"] == {"team": "vision"}
    assert "status" not in sent
    assert server.user_agents == {f"dtj/{version()}"}, "the API server's audit log has it"


async def test_what_another_cluster_gave_a_job_is_not_submitted(
    server: HttpCluster, client: AsyncClient
) -> None:
    elsewhere = DistributedTrainingJob.from_cluster(stored() | {"status": {"phase": "Succeeded"}})
    await client.submit(elsewhere)
    (sent,) = [request.body for request in server.requests if request.method == "POST"]
    assert "status" not in sent
    assert "generation" not in elsewhere.to_manifest()["spec"]


async def test_every_fault_of_a_job_is_told_before_anything_is_sent(
    server: HttpCluster, client: AsyncClient
) -> None:
    with pytest.raises(InvalidJobError) as caught:
        await client.submit(a_job("Mnist", image="not an image"))
    assert [fault.field for fault in caught.value.faults] == ["metadata.name", "spec.image"]
    assert server.requests == []


async def test_a_second_job_of_a_name_is_refused_with_what_to_do(client: AsyncClient) -> None:
    await client.submit(a_job())
    with pytest.raises(DtjError, match="there is a job mnist in namespace ml already") as caught:
        await client.submit(a_job())
    assert caught.value.exit_code == 1
    assert "dtj delete mnist" in str(caught.value.remedy)


async def test_the_namespace_is_the_jobs_own_then_the_clients(client: AsyncClient) -> None:
    assert client.namespace == "ml"
    job = a_job()
    elsewhere = job.model_copy(update={"metadata": Metadata(name="mnist", namespace="vision")})
    assert (await client.submit(elsewhere)).namespace == "vision"


async def test_another_context_may_name_no_namespace(server: HttpCluster) -> None:
    async with AsyncClient(context="bare") as client:
        assert client.namespace == "default"
    async with AsyncClient(context="bare", namespace="mine") as client:
        assert client.namespace == "mine"


async def test_a_job_that_is_not_there_is_not_found(client: AsyncClient) -> None:
    for request in (client.get("gone"), client.suspend("gone"), client.delete("gone"), client.wait("gone")):
        with pytest.raises(NotFound, match="there is no job gone in namespace ml"):
            await request


async def test_lists_are_read_page_by_page(
    server: HttpCluster, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_api, "_PAGE", 2)
    for name in ("c", "a", "e", "b", "d"):
        server.cluster.put(stored(name))
    assert [job.name for job in await client.list()] == ["a", "b", "c", "d", "e"]
    assert len(await client.list(all_namespaces=True)) == 5
    assert server.paths[-1].startswith("/apis/dtj.dev/v1alpha1/distributedtrainingjobs?")


async def test_a_job_that_can_not_be_read_hides_no_other(
    server: HttpCluster, client: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    server.cluster.put(stored("old"))
    server.cluster.put(stored("new", strategy="Jax"))
    assert [job.name for job in await client.list()] == ["old"]
    (record,) = caplog.records
    assert "the job new can't be read: spec.strategy" in record.getMessage()
    assert record.getMessage().endswith("upgrade dtj")


async def test_what_a_newer_operator_wrote_can_be_read(server: HttpCluster, client: AsyncClient) -> None:
    server.cluster.put(
        stored(fromTheFuture=1) | {"status": {"phase": "Dreaming", "attempt": 3, "mood": "good"}}
    )
    job = await client.get("mnist")
    assert (job.status.phase, job.status.attempt) == (None, 3)


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        (
            (403, "Forbidden", 'distributedtrainingjobs.dtj.dev is forbidden: User "jane" cannot list it'),
            'the cluster does not allow the request: User "jane" cannot list it',
        ),
        ((500, "InternalError", "etcd is away"), "answered 500 InternalError: etcd is away"),
    ],
)
async def test_a_refusal_is_told_in_one_line(
    server: HttpCluster, client: AsyncClient, refusal: tuple[int, str, str], message: str
) -> None:
    server.refusals["GET", "distributedtrainingjobs"] = [refusal]
    with pytest.raises(Unreachable) as caught:
        await client.list()
    assert message in caught.value.message
    assert "\n" not in caught.value.message


async def test_a_cluster_without_dtj_says_so(server: HttpCluster, client: AsyncClient) -> None:
    server.installed = False
    for request in (client.list(), client.submit(a_job()), client.delete("mnist"), client.wait("mnist")):
        with pytest.raises(Unreachable, match="does not serve DistributedTrainingJobs") as caught:
            await request
        assert "dtj doctor" in str(caught.value.remedy)


async def test_a_cluster_that_is_away_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once; by `wait`, after some patience."""
    monkeypatch.setattr(watching, "PATIENCE_SECONDS", 1.0)
    write_kubeconfig(tmp_path / "away", "http://127.0.0.1:9")
    async with AsyncClient(kubeconfig=str(tmp_path / "away")) as client:
        for request in (client.list(), client.wait("mnist")):
            with pytest.raises(
                Unreachable, match=r"127\.0\.0\.1:9 does not answer: the connection is refused$"
            ):
                await request


async def test_wrong_credentials_are_told(server: HttpCluster, client: AsyncClient) -> None:
    server.tokens = set()
    with pytest.raises(Unreachable, match="does not accept your credentials"):
        await client.get("mnist")


async def test_credentials_that_expired_are_loaded_again(
    server: HttpCluster, client: AsyncClient, tmp_path: Path
) -> None:
    server.cluster.put(stored())
    server.tokens = {"the next one"}
    write_kubeconfig(tmp_path / "config", server.url, "the next one")
    assert (await client.get("mnist")).name == "mnist"


async def test_without_kubeconfig_and_outside_a_pod_no_cluster_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(Unreachable, match="no cluster is configured"):
        await AsyncClient().__aenter__()


async def test_a_context_that_is_not_there_is_told(server: HttpCluster) -> None:
    with pytest.raises(Unusable, match="nowhere"):
        await AsyncClient(context="nowhere").__aenter__()
    with pytest.raises(Unusable, match="the kubeconfig /none does not exist"):
        await AsyncClient(kubeconfig="/none").__aenter__()


async def test_a_kubeconfig_that_is_damaged_is_told(tmp_path: Path) -> None:
    for content in ("a: [", "[]", "kind: Config", "current-context: x"):
        (tmp_path / "config").write_text(content)
        with pytest.raises(Unusable, match="can't be used") as caught:
            await AsyncClient(kubeconfig=str(tmp_path / "config")).__aenter__()
        assert "\n" not in caught.value.message
    write_kubeconfig(tmp_path / "config", "https://127.0.0.1:9")
    text = (tmp_path / "config").read_text()
    (tmp_path / "config").write_text(text.replace("server:", "certificate-authority: /none\n    server:"))
    with pytest.raises(Unusable, match=r"/none|certificates"):
        await AsyncClient(kubeconfig=str(tmp_path / "config")).__aenter__()


async def test_a_service_account_is_taken_where_there_is_no_kubeconfig(
    server: HttpCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_cluster(client_configuration: object) -> None:
        client_configuration.host = server.url  # type: ignore[attr-defined]
        client_configuration.api_key["BearerToken"] = "Bearer a-token"  # type: ignore[attr-defined]

    (tmp_path / "namespace").write_text("of-the-pod")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setattr(user_api.config, "load_incluster_config", in_cluster)
    monkeypatch.setattr(api, "_NAMESPACE_FILE", tmp_path / "namespace")
    async with AsyncClient() as client:
        assert client.namespace == "of-the-pod"
        assert await client.list() == []


async def test_suspend_and_resume_change_one_field(server: HttpCluster, client: AsyncClient) -> None:
    server.cluster.put(stored(runPolicy={"backoffLimit": 5}))
    assert (await client.suspend("mnist")).spec.run_policy.suspend
    assert not (await client.resume("mnist")).spec.run_policy.suspend
    assert server.jobs["mnist"]["spec"]["runPolicy"] == {"backoffLimit": 5, "suspend": False}


async def test_resume_changes_a_job_that_is_suspended_although_its_spec_says_nothing(
    server: HttpCluster, client: AsyncClient
) -> None:
    """Only a change of the spec lets a job go on whose Workload Kueue has deactivated."""
    suspended = {
        "type": "Suspended",
        "status": "True",
        "reason": "WorkloadDeactivated",
        "lastTransitionTime": "2026-11-21T12:00:00Z",
    }
    server.cluster.put(stored() | {"status": {"phase": "Suspended", "conditions": [suspended]}})

    await client.resume("mnist")

    assert [patch["spec"]["runPolicy"]["suspend"] for patch in server.patches] == [True, False]


SUSPENDED = {
    "type": "Suspended",
    "status": "True",
    "reason": "JobSuspended",
    "lastTransitionTime": "2026-11-21T12:00:00Z",
}


async def test_resume_goes_back_to_a_checkpoint(
    server: HttpCluster, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def artifacts(_: object, job: DistributedTrainingJob, endpoint: str | None) -> Artifacts:
        assert endpoint == "http://store"
        return Artifacts(job.artifacts_uri or "", {})

    def stored_checkpoint(self: Artifacts, number: int) -> StoredCheckpoint:
        return StoredCheckpoint(number, None, datetime.now(UTC), 1, f"{self.uri}/checkpoints/{number}-2", ())

    monkeypatch.setattr("dtj.client.changing.artifacts_of", artifacts)
    monkeypatch.setattr(Artifacts, "checkpoint", stored_checkpoint)
    job = stored(artifacts={"uri": "s3://bucket/jobs"}, runPolicy={"suspend": True})
    server.cluster.put(job)
    with pytest.raises(
        Unusable, match="mnist is not suspended, and only a suspended job can go back"
    ) as error:
        await client.resume("mnist", checkpoint=20)
    assert error.value.remedy == "dtj suspend mnist && dtj wait mnist --for=Suspended"
    server.cluster.put(job | {"status": {"phase": "Suspended", "conditions": [SUSPENDED]}})
    resumed = await client.resume("mnist", checkpoint=20, endpoint="http://store")
    assert not resumed.spec.run_policy.suspend
    assert resumed.spec.artifacts is not None
    assert resumed.spec.artifacts.resume_uri == f"{resumed.artifacts_uri}/checkpoints/20-2"
    # Each going back gives resumeUri another value. A plain resumption leaves resumeUri as it is.
    for number, ends in ((20, "/20-2/"), (20, "/20-2"), (None, "/20-2")):
        await client.suspend("mnist")
        resumed = await client.resume("mnist", checkpoint=number, endpoint="http://store")
        assert resumed.spec.artifacts is not None
        assert (resumed.spec.artifacts.resume_uri or "").endswith(ends)
    # `kubectl apply` of the job's file gives resumeUri its old value, such as the checkpoints of another job.
    other = {
        "uri": "s3://bucket/jobs",
        "resume": "FromURI",
        "resumeUri": "s3://bucket/jobs/ml/other/checkpoints",
    }
    applied = stored(artifacts=other, runPolicy={"suspend": True})
    known = {"uri": f"{resumed.artifacts_uri}/checkpoints/20-2", "attempt": 3}
    status = {"phase": "Suspended", "conditions": [SUSPENDED], "resumedFrom": known}
    server.cluster.put(applied | {"status": status})
    resumed = await client.resume("mnist", checkpoint=20, endpoint="http://store")
    assert resumed.spec.artifacts is not None
    assert resumed.spec.artifacts.resume_uri == f"{known['uri']}/"
    # Kueue's suspension of an MPIJob is none of the job.
    running = stored(artifacts={"uri": "s3://bucket/jobs"})
    server.cluster.put(running | {"status": {"phase": "Suspended", "conditions": [SUSPENDED]}})
    with pytest.raises(Unusable, match="mnist is not suspended"):
        await client.resume("mnist", checkpoint=20)


async def test_a_job_that_has_ended_is_not_suspended(server: HttpCluster, client: AsyncClient) -> None:
    server.cluster.put(stored() | {"status": ended("Succeeded")})
    with pytest.raises(DtjError, match="mnist is Succeeded"):
        await client.suspend("mnist")
    with pytest.raises(DtjError, match="mnist is Succeeded"):
        await client.scale("mnist", {"worker": 3})


async def test_a_running_job_is_suspended_while_its_size_changes(
    server: HttpCluster, client: AsyncClient
) -> None:
    server.cluster.put(stored())
    scaling = asyncio.create_task(client.scale("mnist", {"worker": 4}, timeout=20 * PATIENCE))
    await until(lambda: bool(server.patches))
    # Of the spec before: not what is waited for.
    server.set_status("mnist", observedGeneration=1, conditions=[condition("Suspended")])
    await until(lambda: bool(server.watches))
    assert len(server.patches) == 1
    server.set_status("mnist", phase="Suspended", observedGeneration=2)
    job = await scaling
    assert [patch["spec"] for patch in server.patches] == [
        {"runPolicy": {"suspend": True}},
        {"replicaSpecs": {"worker": {"replicas": 4}}},
        {"runPolicy": {"suspend": False}},
    ]
    assert job.spec.replica_specs.worker is not None
    assert job.spec.replica_specs.worker.replicas == 4


async def test_a_job_that_does_not_get_suspended_in_time_goes_on(
    server: HttpCluster, client: AsyncClient
) -> None:
    server.cluster.put(stored())
    with pytest.raises(TimedOut, match="its condition Suspended"):
        await client.scale("mnist", {"worker": 4}, timeout=2)
    assert not server.jobs["mnist"]["spec"]["runPolicy"]["suspend"]


@pytest.mark.parametrize(
    ("replicas", "message"),
    [({"ps": 1}, "mnist has no role ps"), ({"worker": 0}, "worker.replicas"), ({}, "no role")],
)
async def test_a_size_that_a_job_cant_have_is_refused_before_it_is_suspended(
    server: HttpCluster, client: AsyncClient, replicas: dict[str, int], message: str
) -> None:
    server.cluster.put(stored())
    with pytest.raises(DtjError, match=message):
        await client.scale("mnist", replicas)
    assert server.patches == []


CHANGES: dict[str, Callable[[AsyncClient, str], Awaitable[object]]] = {
    "suspend": lambda client, uid: client.suspend("mnist", uid=uid),
    "resume": lambda client, uid: client.resume("mnist", uid=uid),
    "scale": lambda client, uid: client.scale("mnist", {"worker": 4}, uid=uid),
    "delete": lambda client, uid: client.delete("mnist", uid=uid),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("looked", [False, True], ids=["at first", "behind the client's own look"])
async def test_the_job_of_another_uid_is_left_alone(
    server: HttpCluster, client: AsyncClient, change: str, looked: bool
) -> None:
    """A person looks at a job. The job is deleted, and another is created, before the person changes the job."""
    server.cluster.put(stored())
    other = stored()
    other["metadata"]["uid"] = "another"

    def replace() -> None:
        server.cluster.remove((KIND, "ml", "mnist"))
        server.cluster.put(other)

    async def replace_at_change(request: web.Request, answer: Answer) -> web.StreamResponse:
        if request.method != "GET":
            replace()
        return await answer()

    if looked:
        server.fault = replace_at_change
    else:
        replace()
    with pytest.raises(NotFound, match="another job has its name"):
        await CHANGES[change](client, stored()["metadata"]["uid"])
    assert server.jobs["mnist"]["metadata"]["uid"] == "another"
    assert server.jobs["mnist"]["spec"] == stored()["spec"]


async def test_a_job_that_was_not_submitted_deletes_none(server: HttpCluster, client: AsyncClient) -> None:
    server.cluster.put(stored())
    with pytest.raises(NotFound, match="another job has its name"):
        await client.delete("mnist", uid=a_job().uid)
    assert list(server.jobs) == ["mnist"]


async def test_delete_may_wait_until_the_pods_are_gone(server: HttpCluster, client: AsyncClient) -> None:
    server.cluster.put(stored())
    await client.delete("mnist", wait=True, timeout=10 * PATIENCE)
    assert server.jobs == {}
    server.cluster.put(stored())
    server.cluster.put(stored_pod("mnist-worker-0"))
    server.refusals["DELETE", "distributedtrainingjobs"] = [(200, "", "")]
    with pytest.raises(TimedOut):
        await client.delete("mnist", wait=True, timeout=0.2)


async def test_events_are_those_of_this_job_and_its_pods_in_order(
    server: HttpCluster, client: AsyncClient
) -> None:
    server.cluster.put(stored())
    events = [
        event("Pod", "mnist-worker-0", "12:00:05", "Scheduled"),
        event("DistributedTrainingJob", "mnist", "12:00:01", "JobRunning"),
        event("DistributedTrainingJob", "mnist", "11:00:00", "OfTheOneBefore"),
        event("Pod", "mnist-two-worker-0", "12:00:06", "OfAnother"),
        event("DistributedTrainingJob", "mnist-two", "12:00:06", "OfAnother"),
    ]
    for number, one in enumerate(events):
        server.cluster.put({"kind": "Event", "metadata": {"name": f"event-{number}"}, **one})
    found = await client.events("mnist")
    assert [(e.reason, e.object) for e in found] == [
        ("JobRunning", "DistributedTrainingJob/mnist"),
        ("Scheduled", "Pod/mnist-worker-0"),
    ]


async def test_pods_come_by_role_and_index(server: HttpCluster, client: AsyncClient) -> None:
    names = ["mnist-worker-10", "mnist-worker-2", "mnist-launcher-0"]
    for name in names:
        server.cluster.put(stored_pod(name))
    assert [p.name for p in await client.pods("mnist")] == names[::-1]


def condition(kind: str) -> dict[str, object]:
    return {"type": kind, "status": "True", "reason": "R", "lastTransitionTime": "2026-11-21T12:00:00Z"}


def ended(phase: str) -> dict[str, object]:
    return {"phase": phase, "completionTime": "2026-11-21T13:00:00Z", "conditions": [condition(phase)]}


def event(kind: str, name: str, time: str, reason: str) -> dict[str, object]:
    return {
        "involvedObject": {"kind": kind, "name": name},
        "lastTimestamp": f"2026-11-21T{time}Z",
        "reason": reason,
        "type": "Normal",
        "message": "m",
    }

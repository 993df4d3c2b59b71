"""The SDK's `Client` without a cluster, and the `dtj` commands that use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from typer.testing import CliRunner, Result

from dtj.api.errors import DtjError, NotFound, TimedOut
from dtj.api.status import ConditionType
from dtj.cli.main import app
from dtj.client import DistributedTrainingJob, JobEvent, LogLine, LogQuery, Pod, PodUsage
from dtj.client.defaults import Defaults
from dtj.client.failures import NameTaken
from dtj.client.objects import ALL_LINES, pod_of
from dtj.status.times import written_time
from tests.unit.support.jobs import manifest
from tests.unit.support.pods import START, WORKER_0, healthy


class FakeClient:
    """The methods of `Client` on jobs in memory."""

    jobs: dict[str, DistributedTrainingJob]
    calls: list[Any]
    archive: bytes | None
    packages: bytes | None
    """That of the last submitted job."""
    given: Defaults | None = None
    """Those of the namespace."""

    def __init__(self, *, namespace: str | None = None, context: str | None = None) -> None:
        self.namespace = namespace or "ml"
        self.calls.append(("connect", namespace, context))

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        pass

    def submit(
        self,
        job: DistributedTrainingJob,
        *,
        archive: Path | None,
        packages: Path | None = None,
        endpoint: str | None = None,
        namespace: str | None,
    ) -> DistributedTrainingJob:
        self.calls.append(("submit", endpoint))
        if job.name in self.jobs:
            raise NameTaken(f"there is a job {job.name} in namespace {self.namespace} already")
        where = namespace or job.metadata.namespace or self.namespace
        made = job.model_copy(update={"metadata": job.metadata.model_copy(update={"namespace": where})})
        self.jobs[job.name] = made
        FakeClient.archive = archive.read_bytes() if archive else None
        FakeClient.packages = packages.read_bytes() if packages else None
        return made

    def defaults(self) -> Defaults | None:
        return self.given

    def watch(self, name: str, *, namespace: str | None = None) -> Iterator[DistributedTrainingJob]:
        yield self.get(name)

    def get(self, name: str, *, namespace: str | None = None) -> DistributedTrainingJob:
        if name not in self.jobs:
            raise NotFound(f"there is no job {name} in namespace {self.namespace}")
        return self.jobs[name]

    def list(self, *, all_namespaces: bool = False) -> list[DistributedTrainingJob]:
        self.calls.append(("list", all_namespaces))
        return [*self.jobs.values()]

    def wait(
        self, name: str, *, timeout: float | None, namespace: str | None = None
    ) -> DistributedTrainingJob:
        self.calls.append(("wait", name, timeout))
        return self.get(name)

    def wait_for(
        self, name: str, condition: ConditionType, *, timeout: float | None
    ) -> DistributedTrainingJob:
        self.calls.append(("wait_for", name, condition.value, timeout))
        if condition is ConditionType.RUNNING:
            raise TimedOut("not yet")
        if condition is ConditionType.FAILED:
            raise DtjError("it succeeded")
        return self.get(name)

    def suspend(self, name: str) -> None:
        self.calls.append(("suspend", name))

    def resume(self, name: str, *, checkpoint: int | None, endpoint: str | None) -> None:
        self.calls.append(("resume", name, checkpoint, endpoint))

    def scale(self, name: str, replicas: Mapping[str, int], *, timeout: float | None) -> None:
        self.calls.append(("scale", name, dict(replicas), timeout))

    def delete(self, name: str, *, wait: bool, timeout: float | None) -> None:
        self.calls.append(("delete", name, wait, timeout))

    def events(self, name: str, *, namespace: str | None = None) -> list[JobEvent]:
        return [
            JobEvent(START, "Normal", "JobRunning", "all 3 pods run", 1, f"DistributedTrainingJob/{name}")
        ]

    def pods(self, name: str, *, namespace: str | None = None) -> list[Pod]:
        return [pod_of(pod) for pod in healthy()]

    def usage(self, name: str) -> dict[str, PodUsage] | None:
        return {WORKER_0: PodUsage("1500m", "1Gi")}

    def logs(
        self, name: str, query: LogQuery = ALL_LINES, *, namespace: str | None = None
    ) -> Iterator[LogLine]:
        self.calls.append(("logs", query, namespace))
        yield LogLine("rank 0", "step 1")
        yield LogLine("rank 1", "[bold]" + "x" * 200)

    def artifacts(self, name: str, *, endpoint: str | None, namespace: str | None = None) -> FakeArtifacts:
        self.calls.append(("artifacts", endpoint))
        return FakeArtifacts()


class FakeArtifacts:
    uri = "s3://b/jobs/ml/mnist-1"
    environment: Mapping[str, str] = {"AWS_ENDPOINT_URL_S3": "http://of-the-job"}

    def ls(self, prefix: str) -> list[Any]:
        found = {"metrics.jsonl": 2048, "model/model.pt": 3 << 20}
        return [SimpleNamespace(key=k, size=v, etag="e") for k, v in found.items() if k.startswith(prefix)]

    def get(self, key: str, folder: Path) -> list[Path]:
        return [folder / key]

    def read(self, key: str) -> bytes:
        return b"content\n"

    def cp(self, key: str, path: str) -> Path:
        return Path(path)


def job(phase: str, name: str = "mnist") -> DistributedTrainingJob:
    kind = phase if phase in ("Succeeded", "Failed") else "Running"
    condition = {
        "type": kind,
        "status": "True",
        "reason": "Because",
        "lastTransitionTime": written_time(START),
    }
    found = {"phase": phase, "attempt": 1, "conditions": [condition]}
    return DistributedTrainingJob.from_cluster(manifest(name) | {"status": found})


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])

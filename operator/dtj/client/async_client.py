"""The client for programs with an event loop."""

from __future__ import annotations

import builtins

from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Self

from dtj.api.status import ConditionType
from dtj.client.artifacts import Artifacts
from dtj.client.resource import DistributedTrainingJob
from dtj.client.views import JobEvent, LogLine
from dtj.status.pods import PodView


class AsyncClient:
    """The jobs of a cluster. Use it as `async with AsyncClient() as client`.

    Every method raises Unreachable where the cluster does not answer or does not allow it, and NotFound where
    there is no such job. `namespace` is the client's own where a method is not given one.
    """

    def __init__(
        self, *, namespace: str | None = None, context: str | None = None, kubeconfig: str | None = None
    ) -> None:
        """namespace: by default the context's own. context: by default the current one.
        kubeconfig: a file; by default KUBECONFIG, ~/.kube/config, or the pod's service account.
        """
        self._namespace = namespace
        self._context = context
        self._kubeconfig = kubeconfig

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""

    @property
    def namespace(self) -> str:
        """The namespace of methods that are not given one."""
        return self._namespace or "default"

    async def submit(
        self, job: DistributedTrainingJob, *, namespace: str | None = None
    ) -> DistributedTrainingJob:
        """Make a job; returns it as stored. Raises InvalidJobError with every fault, DtjError where one of that
        name is there.

        namespace: by default the job's own, then the client's.
        """
        raise NotImplementedError

    async def get(self, name: str, *, namespace: str | None = None) -> DistributedTrainingJob:
        """The job as it is now."""
        raise NotImplementedError

    async def list(
        self, *, all_namespaces: bool = False, namespace: str | None = None
    ) -> list[DistributedTrainingJob]:
        """The jobs of a namespace or of all, by name."""
        raise NotImplementedError

    async def watch(
        self, name: str, *, namespace: str | None = None
    ) -> AsyncIterator[DistributedTrainingJob]:
        """The job as it is now, then after each change; ends when it is deleted.

        Goes on over cut connections; raises Unreachable when the API server is away for two minutes.
        """
        raise NotImplementedError
        yield

    async def wait(
        self, name: str, *, timeout: float | None = None, namespace: str | None = None
    ) -> DistributedTrainingJob:
        """Wait until it has succeeded or failed; returns it then. timeout: in seconds. Raises TimedOut."""
        raise NotImplementedError

    async def wait_for(
        self,
        name: str,
        condition: ConditionType,
        *,
        timeout: float | None = None,
        namespace: str | None = None,
    ) -> DistributedTrainingJob:
        """Wait until a condition holds. timeout: in seconds. Raises DtjError where the job ended otherwise, TimedOut."""
        raise NotImplementedError

    async def suspend(self, name: str, *, namespace: str | None = None) -> DistributedTrainingJob:
        """Ask for its pods to end, with a checkpoint in the bucket. `wait_for` its condition Suspended."""
        raise NotImplementedError

    async def resume(self, name: str, *, namespace: str | None = None) -> DistributedTrainingJob:
        """Let a suspended job go on from its newest checkpoint."""
        raise NotImplementedError

    async def scale(
        self,
        name: str,
        replicas: Mapping[str, int],
        *,
        timeout: float | None = None,
        namespace: str | None = None,
    ) -> DistributedTrainingJob:
        """Change the number of replicas of roles, e.g. {"worker": 4}. A job that runs is suspended for it, and goes
        on from its checkpoint with the new size. timeout: seconds until it is suspended.
        """
        raise NotImplementedError

    async def delete(
        self, name: str, *, wait: bool = False, timeout: float | None = None, namespace: str | None = None
    ) -> None:
        """Delete a job with its pods; what is in the bucket stays. wait: until job and pods are gone."""
        raise NotImplementedError

    async def events(self, name: str, *, namespace: str | None = None) -> builtins.list[JobEvent]:
        """What the operator and Kubernetes told of the job and its pods, oldest first."""
        raise NotImplementedError

    async def pods(self, name: str, *, namespace: str | None = None) -> builtins.list[PodView]:
        """Its pods, by role and index."""
        raise NotImplementedError

    async def logs(
        self,
        name: str,
        *,
        role: str | None = None,
        index: int | None = None,
        rank: int | None = None,
        follow: bool = False,
        tail: int | None = None,
        attempt: int | None = None,
        namespace: str | None = None,
    ) -> AsyncIterator[LogLine]:
        """What all ranks, or one, printed: from the pods while they are there, else from the bucket.

        follow: what comes too, over restarts, until the job has ended. tail: only so many last lines, of each pod.
        attempt: an earlier one's, from the bucket.
        """
        raise NotImplementedError
        yield

    async def artifacts(
        self,
        job: DistributedTrainingJob | str,
        *,
        endpoint: str | None = None,
        namespace: str | None = None,
    ) -> Artifacts:
        """What it left in its bucket.

        endpoint: URL of the S3 store as seen from here; by default AWS_ENDPOINT_URL_S3, then the job's. Credentials:
        AWS_ACCESS_KEY_ID or AWS_PROFILE, then the job's Secret, then what else the AWS SDK finds.
        """
        raise NotImplementedError

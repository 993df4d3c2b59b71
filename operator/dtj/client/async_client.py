"""The client for programs with an event loop."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractContextManager, aclosing
from types import TracebackType
from typing import Self

from dtj.api.condition_types import ConditionType
from dtj.api.errors import DtjError, TimedOut
from dtj.api.identity import API_VERSION, KIND
from dtj.api.spec import ROLES
from dtj.client.artifacts import Artifacts
from dtj.client.credentials import artifacts_of
from dtj.client.failures import deleted, explained, missing
from dtj.client.job_logs import lines_of
from dtj.client.log_source import Selection
from dtj.client.resource import DistributedTrainingJob, InvalidJobError
from dtj.client.scaling import check_scaled
from dtj.client.views import (
    ALL_LINES,
    JobEvent,
    LogLine,
    LogQuery,
    Pod,
    PodUsage,
    events_of,
    pod_of,
    usage_of,
)
from dtj.client.watching import changes
from dtj.cluster.user_api import UserApi, connect
from dtj.status.suspension import is_deactivated

_LOOK_SECONDS = 0.5


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
        self._connected: UserApi | None = None

    async def __aenter__(self) -> Self:
        self._connected = await connect(self._context, self._kubeconfig)
        self._namespace = self._namespace or self._connected.namespace
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        if self._connected is not None:
            await self._connected.close()
            self._connected = None

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
        namespace = namespace or job.metadata.namespace or self.namespace
        metadata = job.metadata.model_copy(update={"namespace": namespace})
        job = job.model_copy(update={"metadata": metadata})
        if found := job.faults():
            raise InvalidJobError(job.name, found)
        manifest = job.to_manifest()
        manifest["metadata"] = metadata.model_dump(
            include={"name", "namespace", "labels", "annotations"}, exclude_unset=True
        )
        manifest.pop("status", None)
        with self._explained(namespace, job.name):
            return DistributedTrainingJob.from_cluster(await self._api.create(manifest))

    async def get(self, name: str, *, namespace: str | None = None) -> DistributedTrainingJob:
        """The job as it is now."""
        namespace = namespace or self.namespace
        about = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name, "namespace": namespace}}
        with self._explained(namespace, name):
            manifest = await self._api.get(about)
            if manifest is None:
                raise missing(name, namespace)
        return DistributedTrainingJob.from_cluster(manifest)

    async def list(
        self, *, all_namespaces: bool = False, namespace: str | None = None
    ) -> list[DistributedTrainingJob]:
        """The jobs of a namespace or of all, by name."""
        where = None if all_namespaces else namespace or self.namespace
        with self._explained(where):
            found, _ = await self._api.list_jobs(where)
        return sorted(
            map(DistributedTrainingJob.from_cluster, found), key=lambda job: (job.namespace, job.name)
        )

    async def watch(
        self, name: str, *, namespace: str | None = None
    ) -> AsyncGenerator[DistributedTrainingJob, None]:
        """The job as it is now, then after each change; ends when it is deleted.

        Goes on over cut connections; raises Unreachable when the API server is away for two minutes.
        """
        async with aclosing(self._states(name, namespace)) as states:
            async for job in states:
                yield job

    async def wait(
        self, name: str, *, timeout: float | None = None, namespace: str | None = None
    ) -> DistributedTrainingJob:
        """Wait until it has succeeded or failed; returns it then. timeout: in seconds. Raises TimedOut, and
        Unreachable when the API server is away for two minutes.
        """
        return await self._until(
            lambda job: job.status.finished, name, "its end", timeout=timeout, namespace=namespace
        )

    async def wait_for(
        self,
        name: str,
        condition: ConditionType,
        *,
        timeout: float | None = None,
        namespace: str | None = None,
    ) -> DistributedTrainingJob:
        """Wait until a condition holds, of the job's present spec. timeout: in seconds. Raises DtjError where the job
        ended otherwise, TimedOut.
        """

        def there(job: DistributedTrainingJob) -> bool:
            seen = (job.status.observed_generation or 0) >= job.metadata.generation
            return job.status.finished or (seen and job.status.holds(condition))

        job = await self._until(
            there,
            name,
            f"its condition {condition}",
            timeout=timeout,
            namespace=namespace,
        )
        if not job.status.holds(condition):
            raise DtjError(f"{name} is {job.status.phase} and will never be {condition}")
        return job

    async def suspend(self, name: str, *, namespace: str | None = None) -> DistributedTrainingJob:
        """Ask for its pods to end, with a checkpoint in the bucket. `wait_for` its condition Suspended."""
        return await self._set_suspend(name, True, namespace)

    async def resume(self, name: str, *, namespace: str | None = None) -> DistributedTrainingJob:
        """Let a suspended job go on from its newest checkpoint; also one whose Workload was deactivated in Kueue."""
        job = await self.get(name, namespace=namespace)
        if is_deactivated(job.status) and not job.spec.run_policy.suspend:
            # Its spec asks for no suspension: only a change of the spec says that the user wants it to go on.
            await self._set_suspend(name, True, namespace)
        return await self._set_suspend(name, False, namespace)

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
        namespace = namespace or self.namespace
        job = await self.get(name, namespace=namespace)
        if job.status.finished:
            raise DtjError(f"{name} is {job.status.phase}: its size does not matter any more")
        check_scaled(job, replicas)
        patch = {"spec": {"replicaSpecs": {role: {"replicas": count} for role, count in replicas.items()}}}
        suspend = not job.spec.run_policy.suspend
        if suspend:
            await self.suspend(name, namespace=namespace)
        try:
            await self.wait_for(name, ConditionType.SUSPENDED, timeout=timeout, namespace=namespace)
            with self._explained(namespace, name):
                job = DistributedTrainingJob.from_cluster(await self._api.patch_job(namespace, name, patch))
        finally:
            # Also with the old size, when something went wrong.
            if suspend:
                await self.resume(name, namespace=namespace)
        return await self.get(name, namespace=namespace) if suspend else job

    async def delete(
        self, name: str, *, wait: bool = False, timeout: float | None = None, namespace: str | None = None
    ) -> None:
        """Delete a job with its pods; what is in the bucket stays. wait: until job and pods are gone."""
        namespace = namespace or self.namespace
        with self._explained(namespace, name):
            await self._api.delete_job(namespace, name)
            if not wait:
                return
            try:
                async with asyncio.timeout(timeout):
                    while (await self._api.list_jobs(namespace, name))[0] or await self._api.list_pods(
                        namespace, name
                    ):
                        await asyncio.sleep(_LOOK_SECONDS)
            except TimeoutError:
                raise TimedOut(f"{name} and its pods are not gone after {timeout:g} s") from None

    async def events(self, name: str, *, namespace: str | None = None) -> builtins.list[JobEvent]:
        """What the operator and Kubernetes told of the job and its pods, oldest first."""
        job = await self.get(name, namespace=namespace)
        with self._explained(job.namespace, name):
            return events_of(job, await self._api.list_events(job.namespace))

    async def pods(self, name: str, *, namespace: str | None = None) -> builtins.list[Pod]:
        """Its pods, by role and index."""
        namespace = namespace or self.namespace
        with self._explained(namespace, name):
            found = await self._api.list_pods(namespace, name)
        return sorted(map(pod_of, found), key=lambda pod: (ROLES.index(pod.role), pod.index))

    async def usage(self, name: str, *, namespace: str | None = None) -> dict[str, PodUsage] | None:
        """What its pods use of CPU and memory, by pod; None where the cluster has no metrics-server."""
        namespace = namespace or self.namespace
        with self._explained(namespace, name):
            found = await self._api.list_pod_metrics(namespace, name)
        return None if found is None else usage_of(found)

    async def logs(
        self, name: str, query: LogQuery = ALL_LINES, *, namespace: str | None = None
    ) -> AsyncGenerator[LogLine, None]:
        """What all ranks, or one, printed: from the pods while they exist, else from the bucket."""
        job = await self.get(name, namespace=namespace)
        selection = Selection(job.job, query)
        with self._explained(job.namespace, name):
            async with aclosing(lines_of(self._api, job, selection)) as lines:
                async for line in lines:
                    yield line

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
        if isinstance(job, str):
            job = await self.get(job, namespace=namespace)
        return await artifacts_of(self._api, job, endpoint)

    @property
    def _api(self) -> UserApi:
        if self._connected is None:
            raise RuntimeError("use it as `async with AsyncClient() as client`")
        return self._connected

    def _explained(
        self, namespace: str | None = None, name: str | None = None
    ) -> AbstractContextManager[None]:
        return explained(self._api.host, namespace, name)

    async def _states(
        self, name: str, namespace: str | None, *, patient: bool = False
    ) -> AsyncGenerator[DistributedTrainingJob, None]:
        namespace = namespace or self.namespace
        with self._explained(namespace, name):
            async with aclosing(changes(self._api, namespace, name, patient=patient)) as states:
                async for job in states:
                    yield job

    async def _until(
        self,
        there: Callable[[DistributedTrainingJob], bool],
        name: str,
        what: str,
        *,
        timeout: float | None,
        namespace: str | None,
    ) -> DistributedTrainingJob:
        job = None
        try:
            async with asyncio.timeout(timeout):
                async with aclosing(self._states(name, namespace, patient=True)) as states:
                    async for job in states:
                        if there(job):
                            return job
        except TimeoutError:
            if job is None:
                raise TimedOut(
                    f"the API server did not tell of {name} within {timeout:g} s: waited for {what}"
                ) from None
            raise TimedOut(
                f"{name} is {job.status.phase or 'not begun'} after {timeout:g} s: waited for {what}"
            ) from None
        assert job is not None, "there was one at first"
        raise deleted(job, f"while waiting for {what}")

    async def _set_suspend(self, name: str, value: bool, namespace: str | None) -> DistributedTrainingJob:
        namespace = namespace or self.namespace
        job = await self.get(name, namespace=namespace)
        if job.status.finished:
            raise DtjError(f"{name} is {job.status.phase}: it can't be suspended or resumed any more")
        patch = {"spec": {"runPolicy": {"suspend": value}}}
        with self._explained(namespace, name):
            return DistributedTrainingJob.from_cluster(await self._api.patch_job(namespace, name, patch))

"""The client for programs with an event loop."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractContextManager, aclosing
from pathlib import Path
from types import TracebackType
from typing import Self

from dtj.api.errors import TimedOut
from dtj.api.identity import API_VERSION, KIND
from dtj.api.spec import ROLES
from dtj.api.status import ConditionType
from dtj.client.artifacts import Artifacts
from dtj.client.changing import change, resume, scaled, set_suspend, uninterrupted
from dtj.client.code_files import unpack_code
from dtj.client.code_source import find_code
from dtj.client.credentials import artifacts_of
from dtj.client.defaults import CONFIG_MAP, Defaults, of_config_map
from dtj.client.failures import deleted, explained, missing, replaced
from dtj.client.logs import LogSelection
from dtj.client.objects import (
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
from dtj.client.pod_logs import lines_of
from dtj.client.resource import DistributedTrainingJob, InvalidJobError, decided, never, readable, too_late
from dtj.client.submission import create
from dtj.client.watching import changes, until_gone
from dtj.cluster.user_api import UserApi, connect


class AsyncClient:
    """Manage the jobs of a cluster. Use the client as `async with AsyncClient() as client`.

    Every method raises Unreachable if the cluster does not answer or denies the request, and NotFound if the job does
    not exist. namespace: by default the namespace of the client. uid: raise NotFound also if the job of this name has
    another uid.
    """

    def __init__(
        self, *, namespace: str | None = None, context: str | None = None, kubeconfig: str | None = None
    ) -> None:
        """Store the settings. The client connects at the beginning of the `async with`.

        namespace: by default the namespace of the context. context: by default the current context.
        kubeconfig: path of a file; by default KUBECONFIG, ~/.kube/config, or the service account of the pod.
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
        """The namespace that methods use by default."""
        return self._namespace or "default"

    async def submit(
        self,
        job: DistributedTrainingJob,
        *,
        archive: Path | None = None,
        packages: Path | None = None,
        endpoint: str | None = None,
        namespace: str | None = None,
    ) -> DistributedTrainingJob:
        """Create a job. Returns the job as the API server stores it.

        archive, packages: the archives that `spec.code` and its `packages` name, which are stored first: in the
        ConfigMap, or in the bucket unless they are there. endpoint: of that bucket's store; see `artifacts`.
        namespace: by default the namespace of the job, else the namespace of the client.
        Raises InvalidJobError with every fault of the job, and NameTaken if a job of the same name exists.
        """
        namespace = namespace or job.metadata.namespace or self.namespace
        metadata = job.metadata.model_copy(update={"namespace": namespace})
        job = job.model_copy(update={"metadata": metadata})
        if job_faults := job.faults():
            raise InvalidJobError(job.name, job_faults)
        manifest = job.to_manifest()
        manifest["metadata"] = metadata.model_dump(
            include={"name", "namespace", "labels", "annotations"}, exclude_unset=True
        )
        manifest.pop("status", None)
        with self._explained(namespace, job.name):
            return DistributedTrainingJob.from_cluster(
                await create(self._api, job, manifest, archive, packages, endpoint)
            )

    async def defaults(self, namespace: str | None = None) -> Defaults | None:
        """Return the defaults that the ConfigMap `dtj-defaults` of a namespace has; None without one."""
        namespace = namespace or self.namespace
        with self._explained(namespace):
            return of_config_map(await self._api.config_map(namespace, CONFIG_MAP), namespace)

    async def get(
        self, name: str, *, namespace: str | None = None, uid: str | None = None
    ) -> DistributedTrainingJob:
        """Return the current state of a job."""
        namespace = namespace or self.namespace
        about = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name, "namespace": namespace}}
        with self._explained(namespace, name):
            manifest = await self._api.get(about)
            if manifest is None:
                raise missing(name, namespace)
        job = DistributedTrainingJob.from_cluster(manifest)
        if uid not in (None, job.uid):
            raise replaced(name, namespace)
        return job

    async def list(
        self, *, all_namespaces: bool = False, namespace: str | None = None
    ) -> list[DistributedTrainingJob]:
        """List the jobs of one namespace or of all namespaces, sorted by namespace and name.

        A job that this version can't read is left out, with a warning in the log.
        """
        where = None if all_namespaces else namespace or self.namespace
        with self._explained(where):
            manifests, _ = await self._api.list_jobs(where)
        return sorted(readable(manifests), key=lambda job: (job.namespace, job.name))

    async def watch(
        self, name: str, *, namespace: str | None = None
    ) -> AsyncGenerator[DistributedTrainingJob, None]:
        """Yield the current state of a job, then the state after each change, until the job is deleted.

        The watch reconnects after connection failures. Raises Unreachable if the API server does not answer for two
        minutes.
        """
        async with aclosing(self._states(name, namespace)) as states:
            async for job in states:
                yield job

    async def wait(
        self, name: str, *, timeout: float | None = None, namespace: str | None = None
    ) -> DistributedTrainingJob:
        """Wait until a job has succeeded or failed. Returns the finished job.

        timeout: seconds until TimedOut. Raises Unreachable if the API server does not answer for two minutes.
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
        """Wait until a condition holds for the current spec of a job.

        timeout: seconds until TimedOut. Raises DtjError if the job finished without the condition.
        """
        job = await self._until(
            lambda job: decided(job, condition),
            name,
            f"its condition {condition}",
            timeout=timeout,
            namespace=namespace,
        )
        if not job.status.holds(condition):
            raise never(job, condition)
        return job

    async def suspend(
        self, name: str, *, namespace: str | None = None, uid: str | None = None
    ) -> DistributedTrainingJob:
        """Request a checkpoint and the end of the pods. `wait_for` the condition Suspended to wait for the end."""
        return await set_suspend(self._api, await self.get(name, namespace=namespace, uid=uid), True)

    async def resume(
        self,
        name: str,
        *,
        checkpoint: int | None = None,
        endpoint: str | None = None,
        namespace: str | None = None,
        uid: str | None = None,
    ) -> DistributedTrainingJob:
        """Resume a suspended job, or a job whose Workload Kueue deactivated, from the newest checkpoint.

        checkpoint: the number of an earlier checkpoint to go back to, for a suspended job. endpoint: see `artifacts`.
        """
        job = await self.get(name, namespace=namespace, uid=uid)
        return await resume(self._api, job, checkpoint, endpoint)

    async def scale(
        self,
        name: str,
        replicas: Mapping[str, int],
        *,
        timeout: float | None = None,
        namespace: str | None = None,
        uid: str | None = None,
    ) -> DistributedTrainingJob:
        """Change the number of replicas of roles.

        The client suspends a running job, changes the replicas, and resumes the job from its checkpoint.
        replicas: the number by role, e.g. {"worker": 4}. timeout: seconds until the job must be suspended.
        """
        job = await self.get(name, namespace=namespace, uid=uid)
        counts = scaled(job, replicas)
        suspend = not job.spec.run_policy.suspend
        try:
            if suspend:
                await uninterrupted(set_suspend(self._api, job, True))
            await self.wait_for(name, ConditionType.SUSPENDED, timeout=timeout, namespace=namespace)
            job = await change(self._api, job, {"replicaSpecs": counts})
        finally:
            # After an error, resume the job with the old number of replicas, also if the request to suspend got no
            # answer.
            if suspend:
                await uninterrupted(self.resume(name, namespace=namespace, uid=job.uid))
        return await self.get(name, namespace=namespace) if suspend else job

    async def delete(
        self,
        name: str,
        *,
        wait: bool = False,
        timeout: float | None = None,
        namespace: str | None = None,
        uid: str | None = None,
    ) -> None:
        """Delete a job and its pods. The bucket keeps the artifacts of the job.

        wait: whether to wait until the job and its pods no longer exist.
        timeout: seconds of that wait until TimedOut.
        """
        namespace = namespace or self.namespace
        with self._explained(namespace, name):
            await self._api.delete_job(namespace, name, uid)
            if not wait:
                return
            try:
                async with asyncio.timeout(timeout):
                    await until_gone(self._api, namespace, name)
            except TimeoutError:
                raise TimedOut(f"{name} or some of its pods still exist after {timeout:g} s") from None

    async def events(self, name: str, *, namespace: str | None = None) -> builtins.list[JobEvent]:
        """List the events of a job and its pods, oldest first."""
        job = await self.get(name, namespace=namespace)
        with self._explained(job.namespace, name):
            return events_of(job, await self._api.list_events(job.namespace))

    async def pods(self, name: str, *, namespace: str | None = None) -> builtins.list[Pod]:
        """List the pods of a job, sorted by role and index."""
        namespace = namespace or self.namespace
        with self._explained(namespace, name):
            manifests = await self._api.list_pods(namespace, name)
        return sorted(map(pod_of, manifests), key=lambda pod: (ROLES.index(pod.role), pod.index))

    async def usage(self, name: str, *, namespace: str | None = None) -> dict[str, PodUsage] | None:
        """Return the CPU and memory usage by name of the pod, or None if the cluster has no metrics-server."""
        namespace = namespace or self.namespace
        with self._explained(namespace, name):
            metrics = await self._api.list_pod_metrics(namespace, name)
        return None if metrics is None else usage_of(metrics)

    async def logs(
        self, name: str, query: LogQuery = ALL_LINES, *, namespace: str | None = None
    ) -> AsyncGenerator[LogLine, None]:
        """Yield the output of all ranks, or of the ranks in the query.

        The lines stem from the pods while the pods exist, else from the bucket.
        """
        job = await self.get(name, namespace=namespace)
        selection = LogSelection(job.job, query)
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
        """Open the artifacts of a job in its bucket.

        The first available credentials are used: AWS_ACCESS_KEY_ID or AWS_PROFILE, then the job's Secret, then other
        credentials that the AWS SDK finds.
        endpoint: URL of the S3 store for this machine; by default AWS_ENDPOINT_URL_S3, else the endpoint of the job.
        """
        if isinstance(job, str):
            job = await self.get(job, namespace=namespace)
        return await artifacts_of(self._api, job, endpoint)

    async def get_code(
        self,
        job: DistributedTrainingJob | str,
        folder: str | Path,
        *,
        endpoint: str | None = None,
        namespace: str | None = None,
    ) -> builtins.list[Path]:
        """Copy the files of a job's `spec.code` below `folder/code`, and return their paths.

        The files come from the job's ConfigMap while it exists, else from the bucket. endpoint: see `artifacts`.
        """
        if isinstance(job, str):
            job = await self.get(job, namespace=namespace)
        with self._explained(job.namespace):
            source = await find_code(self._api, job, endpoint)
        return await asyncio.to_thread(unpack_code, job, source, Path(folder))

    @property
    def _api(self) -> UserApi:
        if self._connected is None:
            raise RuntimeError("use the client as `async with AsyncClient() as client`")
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
        reached: Callable[[DistributedTrainingJob], bool],
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
                        if reached(job):
                            return job
        except TimeoutError:
            if job is None:
                raise TimedOut(
                    f"the API server did not report {name} within {timeout:g} s: waited for {what}"
                ) from None
            raise too_late(job, timeout, what) from None
        assert job is not None, "changes() raises NotFound for a job that does not exist at first"
        raise deleted(job, f"while waiting for {what}")

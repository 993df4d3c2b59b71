"""The client for programs without an event loop."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncGenerator, Coroutine, Generator, Mapping
from contextlib import suppress
from threading import Thread
from types import TracebackType
from typing import Any, Self, TypeVar

from dtj.api.condition_types import ConditionType
from dtj.client.artifacts import Artifacts
from dtj.client.async_client import AsyncClient
from dtj.client.resource import DistributedTrainingJob
from dtj.client.views import JobEvent, LogLine, PodUsage
from dtj.status.pods import PodView

T = TypeVar("T")


class Client:
    """`AsyncClient` without `await`: the same methods, arguments and errors. Use it as `with Client() as client`."""

    def __init__(
        self, *, namespace: str | None = None, context: str | None = None, kubeconfig: str | None = None
    ) -> None:
        """As AsyncClient."""
        self._client = AsyncClient(namespace=namespace, context=context, kubeconfig=kubeconfig)
        self._loop = asyncio.new_event_loop()
        # A daemon: a program that forgets close() ends all the same.
        self._thread = Thread(target=self._loop.run_forever, name="dtj-client", daemon=True)
        self._thread.start()
        try:
            self._run(self._client.__aenter__())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        if self._loop.is_closed():
            return
        try:
            self._run(self._client.close())
            self._run(self._loop.shutdown_asyncgens())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @property
    def namespace(self) -> str:
        """The namespace of methods that are not given one."""
        return self._client.namespace

    def submit(self, job: DistributedTrainingJob, *, namespace: str | None = None) -> DistributedTrainingJob:
        """Make a job."""
        return self._run(self._client.submit(job, namespace=namespace))

    def get(self, name: str, *, namespace: str | None = None) -> DistributedTrainingJob:
        """The job as it is now."""
        return self._run(self._client.get(name, namespace=namespace))

    def list(
        self, *, all_namespaces: bool = False, namespace: str | None = None
    ) -> list[DistributedTrainingJob]:
        """The jobs of a namespace or of all."""
        return self._run(self._client.list(all_namespaces=all_namespaces, namespace=namespace))

    def watch(
        self, name: str, *, namespace: str | None = None
    ) -> Generator[DistributedTrainingJob, None, None]:
        """The job as it is now, then after each change, until it is deleted."""
        return self._iterate(self._client.watch(name, namespace=namespace))

    def wait(
        self, name: str, *, timeout: float | None = None, namespace: str | None = None
    ) -> DistributedTrainingJob:
        """Wait until it has succeeded or failed."""
        return self._run(self._client.wait(name, timeout=timeout, namespace=namespace))

    def wait_for(
        self,
        name: str,
        condition: ConditionType,
        *,
        timeout: float | None = None,
        namespace: str | None = None,
    ) -> DistributedTrainingJob:
        """Wait until a condition holds."""
        return self._run(self._client.wait_for(name, condition, timeout=timeout, namespace=namespace))

    def suspend(self, name: str, *, namespace: str | None = None) -> DistributedTrainingJob:
        """Ask for its pods to end, with a checkpoint in the bucket."""
        return self._run(self._client.suspend(name, namespace=namespace))

    def resume(self, name: str, *, namespace: str | None = None) -> DistributedTrainingJob:
        """Let a suspended job go on."""
        return self._run(self._client.resume(name, namespace=namespace))

    def scale(
        self,
        name: str,
        replicas: Mapping[str, int],
        *,
        timeout: float | None = None,
        namespace: str | None = None,
    ) -> DistributedTrainingJob:
        """Change the number of replicas of roles."""
        return self._run(self._client.scale(name, replicas, timeout=timeout, namespace=namespace))

    def delete(
        self, name: str, *, wait: bool = False, timeout: float | None = None, namespace: str | None = None
    ) -> None:
        """Delete a job with its pods."""
        self._run(self._client.delete(name, wait=wait, timeout=timeout, namespace=namespace))

    def events(self, name: str, *, namespace: str | None = None) -> builtins.list[JobEvent]:
        """What happened to the job and its pods."""
        return self._run(self._client.events(name, namespace=namespace))

    def pods(self, name: str, *, namespace: str | None = None) -> builtins.list[PodView]:
        """Its pods."""
        return self._run(self._client.pods(name, namespace=namespace))

    def usage(self, name: str, *, namespace: str | None = None) -> dict[str, PodUsage] | None:
        """What its pods use of CPU and memory."""
        return self._run(self._client.usage(name, namespace=namespace))

    def logs(
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
    ) -> Generator[LogLine, None, None]:
        """What all ranks, or one, printed."""
        return self._iterate(
            self._client.logs(
                name,
                role=role,
                index=index,
                rank=rank,
                follow=follow,
                tail=tail,
                attempt=attempt,
                namespace=namespace,
            )
        )

    def artifacts(
        self,
        job: DistributedTrainingJob | str,
        *,
        endpoint: str | None = None,
        namespace: str | None = None,
    ) -> Artifacts:
        """What it left in its bucket."""
        return self._run(self._client.artifacts(job, endpoint=endpoint, namespace=namespace))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _iterate(self, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        async def next_one() -> T:
            return await anext(items)

        try:
            while True:
                try:
                    yield self._run(next_one())
                except StopAsyncIteration:
                    return
        finally:
            # RuntimeError: it was interrupted while it waited, and is ending by itself.
            if not self._loop.is_closed():
                with suppress(RuntimeError):
                    self._run(items.aclose())

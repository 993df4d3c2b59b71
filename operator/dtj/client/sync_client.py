"""The client for programs without an event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import suppress
from functools import wraps
from threading import Thread
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from dtj.client.async_client import AsyncClient

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
_END_SECONDS = 15.0
"""Seconds that cancelled calls have at the end to clean up in the cluster."""


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    """Return a method of Client that blocks until the method of AsyncClient has returned."""

    @wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(method(self._client, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[AsyncClient, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Client, P], Generator[T, None, None]]:
    """Return a method of Client that yields the items of the method of AsyncClient."""

    @wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        return self._iterate(method(self._client, *args, **kwargs))

    return call


async def _until_others_end() -> None:
    """Wait at most _END_SECONDS until cancelled calls have cleaned up: `scale` resumes the job that it suspended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if not others:
        return
    ended, lasting = await asyncio.wait(others, timeout=_END_SECONDS)
    for error in (task.exception() for task in ended if not task.cancelled()):
        if error:
            log.warning("a cancelled call could not clean up in the cluster: %s", error)
    if lasting:
        log.warning("a cancelled call could not clean up in the cluster within %g s", _END_SECONDS)


class Client:
    """Manage the jobs of a cluster without `await`. Use the client as `with Client() as client`.

    The methods, their arguments and their errors are those of `AsyncClient`.
    """

    def __init__(
        self, *, namespace: str | None = None, context: str | None = None, kubeconfig: str | None = None
    ) -> None:
        """Connect to the cluster. AsyncClient documents the parameters."""
        self._client = AsyncClient(namespace=namespace, context=context, kubeconfig=kubeconfig)
        self._loop = asyncio.new_event_loop()
        self._running = set[Future[Any]]()
        # A daemon thread lets a program exit that does not call close().
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
            # Cancel the calls of other threads. They then clean up as after an error.
            for future in list(self._running):
                future.cancel()
            self._run(_until_others_end())
            self._run(self._client.close())
            self._run(self._loop.shutdown_asyncgens())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @property
    def namespace(self) -> str:
        """The namespace that methods use by default."""
        return self._client.namespace

    submit = _blocking(AsyncClient.submit)
    defaults = _blocking(AsyncClient.defaults)
    get = _blocking(AsyncClient.get)
    list = _blocking(AsyncClient.list)
    watch = _iterating(AsyncClient.watch)
    wait = _blocking(AsyncClient.wait)
    wait_for = _blocking(AsyncClient.wait_for)
    suspend = _blocking(AsyncClient.suspend)
    resume = _blocking(AsyncClient.resume)
    scale = _blocking(AsyncClient.scale)
    delete = _blocking(AsyncClient.delete)
    events = _blocking(AsyncClient.events)
    pods = _blocking(AsyncClient.pods)
    usage = _blocking(AsyncClient.usage)
    logs = _iterating(AsyncClient.logs)
    artifacts = _blocking(AsyncClient.artifacts)
    get_code = _blocking(AsyncClient.get_code)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
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
            # aclose() raises RuntimeError if the iterator was interrupted during a wait. The iterator then ends by
            # itself.
            if not self._loop.is_closed():
                with suppress(RuntimeError):
                    self._run(items.aclose())

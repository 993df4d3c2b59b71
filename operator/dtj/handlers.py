"""kopf's handlers, and kopf's operator within this process.

`on.event` is the only handler of objects. With this handler alone, kopf writes no finalizer and no annotation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import kopf

from dtj.api.identity import GROUP, PLURAL, VERSION
from dtj.kopf_settings import configure, trigger_session
from dtj.reconcile.view import Key


def configure_logs(level: str) -> None:
    """Write logs in kopf's format. kopf's logs of single objects are written from WARNING on."""
    kopf.configure(log_format=kopf.LogFormat.FULL)
    logging.getLogger().setLevel(level.upper())
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)


def handlers(
    start: Callable[[], Awaitable[None]],
    changed: Callable[[Key, str], None],
    stop: Callable[[], Awaitable[None]],
) -> kopf.OperatorRegistry:
    """Return kopf's handlers. start, stop: called when kopf starts and ends. changed: called with the key and the
    version of each job that was created, changed or deleted.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def startup(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)
        await start()

    @kopf.on.login(registry=registry)
    async def login(**kwargs: Any) -> kopf.AiohttpSession | None:
        # Use the pod's service account, or KUBECONFIG outside of a pod.
        account = kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
        return trigger_session(account) if account else None

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def job_event(namespace: str | None, name: str, meta: kopf.Meta, **_: Any) -> None:
        changed((namespace or "", name), meta["resourceVersion"])

    @kopf.on.cleanup(registry=registry)
    async def cleanup(**_: Any) -> None:
        await stop()

    return registry


async def spawn(
    registry: kopf.OperatorRegistry, namespaces: Sequence[str], ending: asyncio.Event
) -> Coroutine[Any, Any, None]:
    """Start kopf's tasks. The coroutine runs them until `ending` is set, and then cancels all tasks created since."""
    ours = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=registry,
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        stop_flag=ending,
    )
    return kopf.run_tasks(tasks, ignored=ours)

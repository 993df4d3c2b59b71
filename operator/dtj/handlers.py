"""kopf, and nothing else: jobs in, keys on the queue. Also the process of the operator.

Only `on.event` is used: kopf then writes nothing to anybody's objects, no finalizer, no annotation.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from typing import Any

import kopf

from dtj.admission.service import admission
from dtj.api.identity import API_VERSION, GROUP, PLURAL, VERSION
from dtj.api.job import Job
from dtj.cluster.api import connect
from dtj.cluster.server_clock import ServerClock
from dtj.kopf_settings import configure, trigger_session
from dtj.operator_flags import read_flags
from dtj.plan.job import plan_job
from dtj.plan.model import Plan
from dtj.plan.network_policy import fenced
from dtj.plan.remembered import remembered
from dtj.reconcile.boot_clock import boot_clock
from dtj.reconcile.controller import Controller
from dtj.reconcile.election import Elector, LeaseLost, Leases
from dtj.reconcile.health import Health
from dtj.reconcile.heartbeat import Heartbeat, Watchdog
from dtj.reconcile.informers import Informers
from dtj.reconcile.lease_thread import LeaseThread
from dtj.reconcile.lister import Lister
from dtj.reconcile.metrics import Metrics, event_loop_lag, process_registry
from dtj.reconcile.metrics_server import serve_metrics
from dtj.reconcile.progress import ProgressPoller
from dtj.reconcile.queue import WorkQueue
from dtj.reconcile.reconciler import Reconciler

_log = logging.getLogger(__name__)
_CRD_SECONDS = 3.0
# A leader whose event loop has not moved for longer serves no job: its Lease is to go to another.
_STANDSTILL_SECONDS = 30.0
# Passes that run when the operator is told to end may finish; a pass takes milliseconds, a hanging request more.
_GRACE_SECONDS = 5.0
# Pods of a job come, start and end one after the other: their counts alone are not written for each.
_COUNTS_SECONDS = 5.0
# A pass makes several objects, of which each comes back as an event.
_REST_SECONDS = 0.02


@kopf.on.event(GROUP, VERSION, PLURAL)
async def job_event(namespace: str | None, name: str, meta: kopf.Meta, memo: kopf.Memo, **_: Any) -> None:
    """A job came, changed or went: kopf's part in starting a pass."""
    memo.controller.changed((namespace, name), meta["resourceVersion"])


@kopf.on.login()
async def login(**kwargs: Any) -> kopf.AiohttpSession | None:
    """As the pod's service account, or by KUBECONFIG where there is none."""
    account = kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
    return trigger_session(account) if account else None


@kopf.on.startup()
async def start(
    settings: kopf.OperatorSettings,
    memo: kopf.Memo,
    **_: Any,
) -> None:
    """Set kopf up and start the controller; workers get their first key when every first list is cached."""
    configure(settings)
    metrics = Metrics(memo.registry)
    cluster = await connect(metrics.answered, memo.may_write, memo.clock)
    queue = WorkQueue(time.monotonic, rest=_REST_SECONDS, opened=False)
    informers = Informers(
        cluster, memo.namespaces, queue.add, queue.add_soon, lambda key: memo.controller.cached(key)
    )
    view = Lister(informers)
    progress = ProgressPoller(
        queue.add, memo.progress_interval, a_second=memo.progress_rate, dropped=metrics.dropped_values.inc
    )
    plan: Callable[[Job], Plan] = partial(
        plan_job, tensorboard_image=memo.tensorboard_image, pod_user=memo.job_user
    )
    if memo.fenced_from:
        plan = fenced(plan, memo.fenced_from)
    reconciler = Reconciler(
        cluster,
        view,
        progress,
        metrics,
        memo.clock.now,
        remembered(plan),
        counts_after=_COUNTS_SECONDS,
        moves=queue.moved,
        crowded=queue.crowded,
    )
    memo.cluster, memo.progress, memo.informers = cluster, progress, informers
    memo.controller = Controller(queue, reconciler, view, metrics)
    memo.controller.start(memo.workers)
    informers.start()

    def figures() -> dict[str, float]:
        # What would grow if something of jobs that went were kept.
        return {
            **memo.controller.check(),
            "objects": informers.check(),
            "tasks": len(asyncio.all_tasks()),
        }

    memo.health.check = figures

    async def open_when_all_is_cached() -> None:
        # Earlier, a pass would take pods that are not listed yet for lost, and others for strays.
        await informers.synced()
        queue.open()

    memo.tasks = [asyncio.create_task(open_when_all_is_cached())]


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    """Close what was opened; the next operator goes on from what is stored."""
    for task in memo.tasks:
        task.cancel()
    await memo.controller.stop()
    await memo.informers.stop()
    await memo.progress.close()
    await memo.cluster.close()


def main() -> None:
    """`dtj-operator`: run the operator until it is told to end."""
    flags = read_flags()
    kopf.configure(log_format=kopf.LogFormat.FULL)
    logging.getLogger().setLevel(flags.log_level.upper())
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    try:
        asyncio.run(_run(flags))
    except LeaseLost as lost:
        # Nothing may be written any more; the process that comes after this one waits for its turn.
        sys.exit(f"dtj-operator: {lost}")


async def _run(flags: argparse.Namespace) -> None:
    """Wait for this process's turn, work, and leave the lease to the next."""
    ending = asyncio.Event()
    _on_signals(ending.set)
    health = Health()
    async with AsyncExitStack() as stack:
        clock = ServerClock(boot_clock, datetime.now(UTC))
        lag = event_loop_lag()
        heartbeat = Heartbeat(boot_clock, lag.observe)
        # The loop keeps no task that nobody else does.
        beating = asyncio.create_task(heartbeat.beat())
        stack.callback(beating.cancel)
        stack.enter_context(Watchdog(heartbeat, boot_clock).watching())
        elector = await _elector(flags, heartbeat, clock, stack) if flags.leader_elect else None
        leading = elector.leading if elector else lambda: True
        registry = process_registry(leading, lag)
        serve_metrics(flags.metrics_port, registry)
        if flags.webhook:
            await stack.enter_async_context(admission(flags.webhook, registry, clock))
        await stack.enter_async_context(health.served(flags.health_port))
        memo = kopf.Memo(
            workers=flags.workers,
            progress_interval=flags.progress_interval,
            progress_rate=flags.progress_rate,
            tensorboard_image=flags.tensorboard_image,
            job_user=flags.job_user,
            namespaces=flags.namespace,
            fenced_from=flags.lease_namespace if flags.job_network_policies else None,
            registry=registry,
            may_write=leading,
            clock=clock,
            health=health,
        )
        if await _before(ending, _turn(elector)):
            await _work(flags, memo, elector, ending)


async def _elector(
    flags: argparse.Namespace, heartbeat: Heartbeat, clock: ServerClock, stack: AsyncExitStack
) -> LeaseThread:
    """A candidate for the lease, which gives that back at the end."""
    place = {"namespace": flags.lease_namespace, "name": flags.lease_name}
    identity = f"{socket.gethostname()}_{uuid.uuid4()}"

    def moves() -> bool:
        return heartbeat.still() <= _STANDSTILL_SECONDS

    def candidate(leases: Leases) -> Elector:
        return Elector(leases, place, identity, flags.timing, boot_clock, clock.now, moves)

    # Its requests show the clock the API server's date also while nothing happens to jobs.
    elector = LeaseThread(partial(connect, clock=clock), candidate)
    stack.push_async_callback(elector.close)
    await elector.start()
    stack.push_async_callback(elector.release)
    return elector


async def _turn(elector: LeaseThread | None) -> None:
    """Wait for the CRD, because kopf looks only once for what it is to watch, and then for the lease."""
    cluster = await connect()
    try:
        while not await cluster.serves(API_VERSION):
            _log.warning("the cluster does not know %s yet: kubectl apply -f manifests/crd", API_VERSION)
            await asyncio.sleep(_CRD_SECONDS)
    finally:
        await cluster.close()
    if elector:
        await elector.acquire()


async def _work(
    flags: argparse.Namespace, memo: kopf.Memo, elector: LeaseThread | None, ending: asyncio.Event
) -> None:
    """Run kopf and the controller until the end. Raises LeaseLost."""
    ended = asyncio.create_task(ending.wait())
    kept = asyncio.create_task(elector.keep() if elector else asyncio.Event().wait())
    ours, kopf_ending = asyncio.all_tasks(), asyncio.Event()
    tasks = await kopf.spawn_tasks(
        memo=memo,
        standalone=True,
        clusterwide=not flags.namespace,
        namespaces=flags.namespace,
        stop_flag=kopf_ending,
    )
    _on_signals(ending.set)  # kopf has taken the signals for itself
    operator = asyncio.create_task(kopf.run_tasks(tasks, ignored=ours))
    await asyncio.wait({ended, kept, operator}, return_when=asyncio.FIRST_COMPLETED)
    if "controller" in memo:
        await memo.controller.stop(0.0 if kept.done() else _GRACE_SECONDS)
    lost = kept.done()
    for task in (ended, kept):
        task.cancel()
    await asyncio.wait({ended, kept})
    if elector and not lost:
        # Before kopf ends: it writes nothing, and takes its time.
        await elector.release()
    kopf_ending.set()
    await operator
    if lost:
        await kept


async def _before(ending: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Whether the work was done before the end came; else it is cancelled. Raises what the work raises."""
    task, ended = asyncio.create_task(work), asyncio.create_task(ending.wait())
    await asyncio.wait({task, ended}, return_when=asyncio.FIRST_COMPLETED)
    done = task.done()
    for each in (task, ended):
        each.cancel()
    await asyncio.wait({task, ended})
    if done:
        await task
    return done


def _on_signals(call: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, call)

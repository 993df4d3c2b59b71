"""The operator's process: waits for leadership, works, and releases its Lease to the next process."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from dtj.admission.service import admission
from dtj.api.crd import fields_lacking
from dtj.api.identity import API_VERSION, KIND
from dtj.cluster.api import KubernetesApi, connect
from dtj.cluster.interface import ApiError
from dtj.cluster.server_clock import ServerClock
from dtj.handlers import configure_logs, handlers, spawn
from dtj.leader import GRACE_SECONDS, Leader
from dtj.operator_flags import Options, read_flags
from dtj.reconcile.boot_clock import BootLoop, boot_clock
from dtj.reconcile.election import Elector, LeaseLost, Leases, LeaseThread
from dtj.reconcile.health import Health, Heartbeat, Watchdog
from dtj.reconcile.metrics import OperatorMetrics, event_loop_lag, process_registry
from dtj.reconcile.metrics_server import serve_metrics

_log = logging.getLogger(__name__)
_CRD_SECONDS = 3.0
_SWITCH_SECONDS = 0.0005
_COLLECT_AFTER = 20_000
# The number of mallopt's option M_MMAP_THRESHOLD in glibc's malloc.h.
_M_MMAP_THRESHOLD = -3
_SHOWN_FIELDS = 5
# A leader whose event loop has been blocked for longer reconciles no jobs. It must lose the Lease to another process.
_STANDSTILL_SECONDS = 30.0


def main() -> None:
    """Run `dtj-operator` until a signal ends it."""
    options = read_flags()
    # Freeze the objects of the modules. The garbage collector would otherwise walk through them each time, and block
    # the event loop for 40 ms.
    gc.collect()
    gc.freeze()
    # Collect garbage seldom: decoded jobs are many objects without cycles. With Python's default of 700, collections
    # take a third of the operator's time while there are large jobs.
    gc.set_threshold(_COLLECT_AFTER)
    _free_at_once()
    # Make a computing thread release Python's interpreter lock after this time: the event loop waits for the lock at
    # each step.
    sys.setswitchinterval(_SWITCH_SECONDS)
    configure_logs(options.log_level)
    try:
        with asyncio.Runner(loop_factory=BootLoop) as runner:
            runner.run(_run(options))
    except LeaseLost as lost:
        # Another process may lead now, so this process must not write any more. The container restarts, and the new
        # process waits for the Lease.
        sys.exit(f"dtj-operator: {lost}")


def _free_at_once() -> None:
    """Make glibc return each freed block of 128 KiB or more to the system.

    By default, glibc raises this limit when the first such block is freed, and then keeps freed blocks: the texts of
    large jobs took 50 MB in this way. With another C library, this function changes nothing.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 128 * 1024)


async def _run(options: Options) -> None:
    """Wait for leadership, work, and release the Lease."""
    ending = asyncio.Event()
    _on_signals(ending.set)
    health = Health()
    async with AsyncExitStack() as stack:
        clock = ServerClock(boot_clock, datetime.now(UTC))
        lag = event_loop_lag()
        heartbeat = Heartbeat(boot_clock, lag.observe)
        # asyncio holds only a weak reference to a task, hence the variable.
        beating = asyncio.create_task(heartbeat.beat())
        stack.callback(beating.cancel)
        stack.enter_context(Watchdog(heartbeat, boot_clock).watching())
        elector = await _elector(options, heartbeat, clock, stack) if options.leader_elect else None
        leading = elector.leading if elector else lambda: True
        registry = process_registry(leading, lag)
        serve_metrics(options.metrics_port, registry)
        if options.webhook:
            await stack.enter_async_context(admission(options.webhook, registry, clock))
        await stack.enter_async_context(health.served(options.health_port))
        if await _before(ending, _turn(elector, stack)):
            metrics = OperatorMetrics(registry)
            cluster = await connect(metrics.answered, leading, clock)
            leader = Leader(options, cluster, metrics, clock)
            await _work(options, leader, health, elector, ending)


async def _elector(
    options: Options, heartbeat: Heartbeat, clock: ServerClock, stack: AsyncExitStack
) -> LeaseThread:
    """Start a candidate for the Lease, which releases the Lease at the end."""
    place = {"namespace": options.lease_namespace, "name": options.lease_name}
    identity = f"{socket.gethostname()}_{uuid.uuid4()}"

    def moves() -> bool:
        return heartbeat.still() <= _STANDSTILL_SECONDS

    def candidate(leases: Leases) -> Elector:
        return Elector(leases, place, identity, options.timing, boot_clock, clock.now, moves)

    # Pass the clock: the answers to the election's requests set it to the API server's time, even if no job changes.
    elector = LeaseThread(partial(connect, clock=clock), candidate)
    stack.push_async_callback(elector.close)
    await elector.start()
    stack.push_async_callback(elector.release)
    return elector


async def _turn(elector: LeaseThread | None, stack: AsyncExitStack) -> None:
    """Wait until the CRD is installed, because kopf looks up its resources only once, and then for the Lease.

    A task checks in the meantime whether the CRD is older than the operator.
    """
    cluster = await connect()
    try:
        while (obstacle := await _what_lacks(cluster)) is not None:
            _log.warning("%s", obstacle)
            await asyncio.sleep(_CRD_SECONDS)
    finally:
        await cluster.close()
    # asyncio holds only a weak reference to a task. The callback keeps a reference until the end.
    stack.callback(asyncio.create_task(_warn_of_old_crd()).cancel)
    if elector:
        await elector.acquire()


async def _what_lacks(cluster: KubernetesApi) -> str | None:
    """Return the obstacle for which the operator waits at its start; None if the cluster serves the resource."""
    try:
        if await cluster.serves(API_VERSION):
            return None
    except ApiError as error:
        if error.status:
            raise
        return f"the API server does not answer: {error.message}"
    return f"the cluster does not serve {API_VERSION} yet: install the CRD (kubectl apply -k manifests/crd)"


async def _warn_of_old_crd() -> None:
    """Log which fields the API server drops because the CRD is older than the operator. The operator works anyway."""
    cluster = await connect()
    try:
        published = await cluster.schema(API_VERSION, KIND)
    except ApiError as error:
        _log.info("the version of the CRD is not checked, since its schema can't be read: %s", error.message)
        return
    finally:
        await cluster.close()
    if published is not None and (dropped := fields_lacking(published)):
        more = f" and {len(dropped) - _SHOWN_FIELDS} more" if len(dropped) > _SHOWN_FIELDS else ""
        _log.warning(
            "the CRD of the cluster is older than this operator, and the API server drops %s%s: upgrade the CRD, by"
            " `dtj crd | kubectl apply --server-side -f -` or by Helm with crds.install",
            ", ".join(dropped[:_SHOWN_FIELDS]),
            more,
        )


async def _work(
    options: Options, leader: Leader, health: Health, elector: LeaseThread | None, ending: asyncio.Event
) -> None:
    """Run kopf and the leader until the end. Raises LeaseLost."""
    ended = asyncio.create_task(ending.wait())
    kept = asyncio.create_task(elector.keep() if elector else asyncio.Event().wait())
    kopf_ending = asyncio.Event()

    async def start() -> None:
        leader.start()
        health.check = leader.figures

    run = await spawn(handlers(start, leader.changed, leader.stop), options.namespaces, kopf_ending)
    _on_signals(ending.set)  # kopf replaced the signal handlers.
    operator = asyncio.create_task(run)
    await asyncio.wait({ended, kept, operator}, return_when=asyncio.FIRST_COMPLETED)
    lost = kept.done()
    await leader.stop_passes(0.0 if lost else GRACE_SECONDS)
    for task in (ended, kept):
        task.cancel()
    await asyncio.wait({ended, kept})
    if elector and not lost:
        # Release the Lease before kopf ends: kopf takes time to end, and no longer writes anything.
        await elector.release()
    kopf_ending.set()
    await operator
    if lost:
        await kept


async def _before(ending: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Run the work until it is done or `ending` is set; return whether it is done. Errors of the work are raised."""
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

"""The poller of running jobs: it asks the pod of rank 0 or the chief, and the evaluator, for their progress."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import aiohttp

from dtj.reconcile.view import Key
from dtj.status.force_deletion import some
from dtj.status.observed import ProgressReport, read_report
from dtj_trainer import contract

_log = logging.getLogger(__name__)
_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
_STACKS_TIMEOUT = aiohttp.ClientTimeout(total=10.0)
# A report has a few hundred bytes. The poller drops the answer of a pod that sends more than this.
_MOST_BYTES = 64 * 1024
# The poller asks at most this many pods of a job for their stacks at a time.
_MOST_AT_ONCE = 32


@dataclass
class _Followed:
    address: str
    closely: bool
    task: asyncio.Task[None]
    report: ProgressReport | None = None
    answers: bool | None = None


class ProgressPoller:
    """Asks the followed pods of each job repeatedly. A pod that does not answer delays no other pod."""

    def __init__(
        self,
        moved: Callable[[Key], None],
        interval: float,
        port: Callable[[str], int] = lambda _: contract.PROGRESS_PORT,
        a_second: float = math.inf,
        dropped: Callable[[int], None] = lambda _: None,
    ) -> None:
        """moved: called with the key of a job when a pod's report changes, and when a pod begins or stops to answer.
        interval: seconds between two requests to a pod.
        port: returns the port on which the pod of a name answers.
        a_second: about the most requests per second. With more followed pods, the poller asks each pod less often,
        except for the first report of a pod and for pods that are followed closely.
        dropped: called with the number of values of an answer that do not have the form of the status.
        """
        self._moved = moved
        self._interval = interval
        self._a_second = a_second
        self._dropped = dropped
        self._port = port
        self._followed: dict[Key, dict[str, _Followed]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._asking: set[asyncio.Task[None]] = set()

    def report(self, key: Key, pod: str) -> ProgressReport | None:
        """Return the last report of a job's pod while the poller follows the pod, else None."""
        followed = self._followed.get(key, {}).get(pod)
        return followed.report if followed else None

    def answers(self, key: Key, pod: str) -> bool | None:
        """Return whether a job's pod answered the last request; None before the first request."""
        followed = self._followed.get(key, {}).get(pod)
        return followed.answers if followed else None

    def ask_for_stacks(self, pods: Mapping[str, str]) -> None:
        """Ask these pods to write the stacks of their programs to the bucket. Skip pods that do not answer.

        pods: name -> address.
        """
        task = asyncio.create_task(self._ask_for_stacks(pods))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask_for_stacks(self, pods: Mapping[str, str]) -> None:
        at_once = asyncio.Semaphore(_MOST_AT_ONCE)

        async def ask(name: str, ip: str) -> bool:
            async with at_once:
                try:
                    url = self._url(name, ip, contract.STACKS_PATH)
                    async with self._http().post(
                        url, timeout=_STACKS_TIMEOUT, allow_redirects=False
                    ) as response:
                        return response.status == 202
                except (aiohttp.ClientError, TimeoutError, OSError):
                    return False

        taken = await asyncio.gather(*(ask(name, ip) for name, ip in pods.items()))
        _log.info(
            "%d of %d stalled pods accepted the request to write their stacks: %s",
            sum(taken),
            len(pods),
            some([*pods]),
        )

    def _url(self, name: str, ip: str, path: str) -> str:
        return f"http://{f'[{ip}]' if ':' in ip else ip}:{self._port(name)}{path}"

    def follow(self, key: Key, pods: Mapping[str, str], *, closely: bool = False) -> None:
        """Ask these pods of a job from now on, and no other pods of the job.

        pods: name -> address. closely: ask at every interval, because a decision depends on the reports.
        """
        known = self._followed.setdefault(key, {})
        for name, ip in pods.items():
            address = self._url(name, ip, "/progress")
            before = known.get(name)
            if before is None or (before.address, before.closely) != (address, closely):
                self._leave(key, name)
                task = asyncio.create_task(self._ask(key, name, address))
                known[name] = _Followed(address, closely, task)
                if before is not None and before.address == address:
                    known[name].report, known[name].answers = before.report, before.answers
        for name in known.keys() - pods.keys():
            self._leave(key, name)

    def leave(self, key: Key) -> None:
        """Stop asking the pods of a job for reports."""
        for name in list(self._followed.get(key, ())):
            self._leave(key, name)
        self._followed.pop(key, None)

    def _leave(self, key: Key, name: str) -> None:
        followed = self._followed.get(key, {}).pop(name, None)
        if followed is not None:
            followed.task.cancel()

    async def close(self) -> None:
        """Stop all requests and close the session."""
        for key in list(self._followed):
            self.leave(key)
        for task in self._asking:
            task.cancel()
        if self._session is not None:
            await self._session.close()

    async def _ask(self, key: Key, name: str, address: str) -> None:
        while True:
            # The jitter spreads the requests to jobs that started together.
            await asyncio.sleep(self._pause(key, name) * random.uniform(0.75, 1.25))  # noqa: S311
            report = await self._fetch(address)
            followed = self._followed.get(key, {}).get(name)
            if followed is None:
                continue
            before = followed.answers, followed.report
            followed.answers, followed.report = report is not None, report or followed.report
            if before != (followed.answers, followed.report):
                self._moved(key)

    def _pause(self, key: Key, name: str) -> float:
        followed = self._followed.get(key, {}).get(name)
        if followed is None or followed.closely or followed.report is None:
            return self._interval
        return max(self._interval, sum(map(len, self._followed.values())) / self._a_second)

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Use no proxy: the addresses of pods are inside the cluster.
            self._session = aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=False)
        return self._session

    async def _fetch(self, address: str) -> ProgressReport | None:
        try:
            async with self._http().get(address, allow_redirects=False) as response:
                if response.status != 200:
                    return None
                body = b""
                async for piece in response.content.iter_any():
                    body += piece
                    if len(body) > _MOST_BYTES:
                        return None
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
        report, dropped = read_report(body)
        if dropped:
            # Log at level DEBUG, because a pod may send such values in every answer. A metric counts the values.
            _log.debug("%s: %d values of the report do not fit the schema, and are dropped", address, dropped)
            self._dropped(dropped)
        return report

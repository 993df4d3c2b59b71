"""The operator as a separate process, and the processor time and memory of the process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from dtj.local.machine import free_ports
from tests.bench.control_plane import ControlPlane
from tests.cluster.progress import ClusterError
from tests.unit.support.operator_process import PROGRAM

_TICKS = os.sysconf("SC_CLK_TCK")
_START_SECONDS = 60.0
_END_SECONDS = 30.0
_EVERY_SECONDS = 0.1
WRITES = ("create", "update", "patch", "delete")


class Operator:
    """One that runs."""

    def __init__(
        self, process: asyncio.subprocess.Process, log: Path, health_port: int, metrics_port: int
    ) -> None:
        self.process = process
        self._log = log
        self._health, self._metrics = (
            f"http://127.0.0.1:{port}/{path}"
            for port, path in ((health_port, "healthz"), (metrics_port, "metrics"))
        )
        self.begun = time.perf_counter()

    @property
    def cpu_seconds(self) -> float:
        """Of processor time since its start."""
        return cpu_seconds(self.process.pid)

    @property
    def peak_bytes(self) -> int:
        """The most memory that it ever held."""
        return memory(self.process.pid, "VmHWM")

    @property
    def bytes(self) -> int:
        """The memory that it holds."""
        return memory(self.process.pid, "VmRSS")

    async def answer(self, url: str) -> str:
        """Of one of its ports; empty while it does not answer. Raises ClusterError when the operator has ended."""
        if self.process.returncode is not None:
            raise ClusterError(f"the operator ended with {self.process.returncode}:\n{self.tail()}")
        try:
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                return await answer.text()
        except aiohttp.ClientError:
            return ""

    async def works(self) -> bool:
        """Whether it has taken its work up."""
        return '"queued"' in await self.answer(self._health)

    async def idle(self) -> bool:
        """Whether no job waits for a pass."""
        return '"queued": 0.0' in await self.answer(self._health)

    async def health(self) -> dict[str, float]:
        """The figures of its health check: what it holds."""
        figures: dict[str, float] = json.loads(await self.answer(self._health))
        return figures

    @property
    def open_files(self) -> int:
        """Its sockets and files."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    async def counts(self) -> tuple[Counter[tuple[str, str]], float]:
        """Requests that it has made, by verb and kind, and its passes."""
        requests: Counter[tuple[str, str]] = Counter()
        passes = 0.0
        for family in text_string_to_metric_families(await self.answer(self._metrics)):
            for sample in family.samples:
                if sample.name == "dtj_api_requests_total":
                    requests[sample.labels["verb"], sample.labels["kind"]] += int(sample.value)
                elif sample.name == "dtj_reconcile_duration_seconds_count":
                    passes = sample.value
        return requests, passes

    async def event_loop_lag(self) -> float | None:
        """By how many seconds its event loop was late at most; None where it does not tell."""
        for family in text_string_to_metric_families(await self.answer(self._metrics)):
            if family.name == "dtj_event_loop_lag_seconds":
                return longest(family.samples)
        return None

    @property
    def health_url(self) -> str:
        """Of its health check."""
        return self._health

    @property
    def metrics_url(self) -> str:
        """Of its metrics."""
        return self._metrics

    def tail(self) -> str:
        """The last lines of its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])


@asynccontextmanager
async def operating(plane: ControlPlane, *flags: str) -> AsyncIterator[Operator]:
    """It runs in the block, with these flags, and works when that begins."""
    health_port, metrics_port = free_ports(2)
    log = plane.directory / "operator.log"
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM),
            *(f"--health-port={health_port}", f"--metrics-port={metrics_port}", *flags),
            env={**os.environ, "KUBECONFIG": str(plane.operator_kubeconfig)},
            stdout=output,
            stderr=output,
        )
    operator = Operator(process, log, health_port, metrics_port)
    try:
        await until("the operator to work", operator.works, _START_SECONDS)
        yield operator
    finally:
        await _end(process)


def longest(samples: Iterable[Sample]) -> float:
    """Of a gauge, its value; of a histogram, the bound of the last bucket in which something is."""
    samples = list(samples)
    buckets = sorted(
        (float(sample.labels["le"]), sample.value) for sample in samples if sample.name.endswith("_bucket")
    )
    if not buckets:
        return max(sample.value for sample in samples)
    return next(bound for bound, count in buckets if count == buckets[-1][1])


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _END_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


async def until(
    what: str,
    there: Callable[[], object],
    seconds: float,
    every: float = _EVERY_SECONDS,
) -> None:
    """Look again and again. there: may be a coroutine function. Raises ClusterError after so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        found = there()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        if time.monotonic() > deadline:
            raise ClusterError(f"waited {seconds:.0f} s for {what}")
        await asyncio.sleep(every)


def cpu_seconds(pid: int) -> float:
    """Processor time of a process since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory(pid: int, name: str) -> int:
    """A line of the process's memory in bytes: VmRSS, VmHWM."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))

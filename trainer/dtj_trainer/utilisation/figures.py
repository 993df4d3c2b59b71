"""Samples what the programs of a pod use, and makes the figures of each interval between two readings.

`launch/pod.py` starts the Sampler. Figures are a line of JSON, TensorBoard's scalars and Prometheus' gauges. Not
here: where the readings come from (`sources`).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from dtj_trainer import contract
from dtj_trainer.background import Background, run_in_background
from dtj_trainer.clock import now_text
from dtj_trainer.launch.settings import Settings
from dtj_trainer.tensorboard import ScalarWriter
from dtj_trainer.utilisation.readings import Counters, DiskReading, GpuReading, ProgramReading

FIRST_SECONDS = 5.0
"""The interval in the first minute, so that a short program has figures too."""
SECONDS = 15.0
LONGEST_SECONDS = 60.0
"""The interval after four hours: a week has about 10,000 lines."""
_FIRST_MINUTE, _FULL_AGE = 60.0, 4 * 3600.0
MOST_OF_A_CORE = 0.002
"""The share of a processor that sampling may use. With many processes, the intervals get longer."""


@dataclass(frozen=True)
class ProgramFigures:
    """What one rank, or another program of the pod, used with all its processes."""

    cores: float
    """Processors in use, on average over the interval: 2.0 is two processors all the time."""
    processes: int
    rss: int
    """Bytes at the end of the interval; memory that processes share counts in each."""
    pss: int | None
    """Bytes at the end of the interval; shared memory counts once. None if not measured this time."""
    read: int | None
    """Bytes from disks in the interval."""
    written: int | None


@dataclass(frozen=True)
class Sample:
    """The figures of one interval."""

    seconds: float
    """The length of the interval."""
    programs: Mapping[str, ProgramFigures]
    cores: float | None
    """Processors in use by the whole container; None outside of a container."""
    cpu_limit: float | None
    memory: int | None
    memory_limit: int | None
    disk: DiskReading | None
    gpus: Mapping[str, GpuReading] = field(default_factory=dict)


def pause(age: float, spent: float) -> float:
    """Return the seconds until the next reading.

    age: seconds since the first reading. spent: the processor seconds of the last reading.
    """
    wanted = FIRST_SECONDS if age < _FIRST_MINUTE else max(SECONDS, LONGEST_SECONDS * age / _FULL_AGE)
    return max(min(wanted, LONGEST_SECONDS), spent / MOST_OF_A_CORE)


def sample(before: Counters, now: Counters) -> Sample:
    """Return the figures of the time between two readings, for the programs that still run."""
    seconds = max(now.at - before.at, 1e-3)
    spent = _more(before.container.cpu_seconds, now.container.cpu_seconds)
    return Sample(
        seconds,
        {
            name: _program(before.programs.get(name), reading, seconds)
            for name, reading in now.programs.items()
        },
        None if spent is None else spent / seconds,
        now.container.cpu_limit,
        now.container.memory,
        now.container.memory_limit,
        now.disk,
        now.gpus,
    )


def _program(before: ProgramReading | None, now: ProgramReading, seconds: float) -> ProgramFigures:
    if before is None or before.pid != now.pid:  # The program started in the interval.
        before = ProgramReading(now.pid, 0, 0.0, 0, 0, 0, 0)
    return ProgramFigures(
        max(now.cpu_seconds - before.cpu_seconds, 0.0) / seconds,
        now.processes,
        now.rss,
        now.pss,
        _more(before.read, now.read),
        _more(before.written, now.written),
    )


_Counter = TypeVar("_Counter", int, float)


def _more(before: _Counter | None, now: _Counter | None) -> _Counter | None:
    """Return the growth of a counter, at least 0: a counter falls if a process ended and none of the others waited
    for it.
    """
    return None if before is None or now is None else max(now - before, now - now)


def row(of: Sample, *, time: str, pod: str, attempt: int) -> dict[str, object]:
    """Return the sample as a line of JSON has it, without what is not known."""
    return {
        "time": time,
        "pod": pod,
        "attempt": attempt,
        "seconds": round(of.seconds, 1),
        "programs": {
            name: _known(
                cpuCores=round(each.cores, 3),
                processes=each.processes,
                rssBytes=each.rss,
                pssBytes=each.pss,
                readBytes=each.read,
                writtenBytes=each.written,
            )
            for name, each in of.programs.items()
        },
        **_known(
            cpuCores=None if of.cores is None else round(of.cores, 3),
            cpuLimit=of.cpu_limit,
            memoryBytes=of.memory,
            memoryLimitBytes=of.memory_limit,
            diskUsedBytes=of.disk and of.disk.used,
            diskBytes=of.disk and of.disk.size,
        ),
        "gpus": {
            number: _known(
                utilisation=gpu.utilisation,
                memoryUsedBytes=gpu.memory_used,
                memoryBytes=gpu.memory,
                powerWatts=gpu.power,
            )
            for number, gpu in of.gpus.items()
        },
    }


def _known(**values: object) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def _figures(of: Sample) -> Iterator[tuple[str, tuple[str, str] | None, float | None]]:
    """Yield the name of each figure, whose it is (a label and its value; None for the pod's), and its value."""
    for name, each in of.programs.items():
        whose = ("program", name)
        yield "program_cpu_cores", whose, each.cores
        yield "program_memory_rss_bytes", whose, each.rss
        yield "program_memory_pss_bytes", whose, each.pss
        yield "program_disk_read_bytes_per_second", whose, _rate(each.read, of.seconds)
        yield "program_disk_written_bytes_per_second", whose, _rate(each.written, of.seconds)
    yield "pod_cpu_cores", None, of.cores
    yield "pod_cpu_limit_cores", None, of.cpu_limit
    yield "pod_memory_bytes", None, of.memory
    yield "pod_memory_limit_bytes", None, of.memory_limit
    if of.disk:
        yield "pod_disk_used_bytes", None, of.disk.used
        yield "pod_disk_bytes", None, of.disk.size
    for number, gpu in of.gpus.items():
        whose = ("gpu", number)
        yield "gpu_utilisation_ratio", whose, gpu.utilisation
        yield "gpu_memory_used_bytes", whose, gpu.memory_used
        yield "gpu_memory_bytes", whose, gpu.memory
        yield "gpu_power_watts", whose, gpu.power


def totals(of: Sample) -> contract.Utilisation:
    """Return what the pod uses: its container, or where the container is not known, its programs."""
    programs = of.programs.values()
    found: contract.Utilisation = {
        "cpuCores": round(sum(each.cores for each in programs) if of.cores is None else of.cores, 3),
        "memoryBytes": sum(each.rss for each in programs) if of.memory is None else of.memory,
    }
    if known := [gpu.utilisation for gpu in of.gpus.values() if gpu.utilisation is not None]:
        found["gpuUtilisation"] = round(sum(known) / len(known), 3)
    return found


def _rate(amount: int | None, seconds: float) -> float | None:
    return None if amount is None else amount / seconds


def gauges(of: Sample) -> dict[str, float]:
    """Return the sample as Prometheus' gauges by series, such as `dtj_program_cpu_cores{program="0"}`."""
    # The text format of Prometheus wants the series of a metric next to each other.
    known = [(name, whose, value) for name, whose, value in _figures(of) if value is not None]
    known.sort(key=lambda figure: figure[0])
    return {
        f"dtj_{name}{{{whose[0]}={_quoted(whose[1])}}}" if whose else f"dtj_{name}": float(value)
        for name, whose, value in known
    }


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def scalars(of: Sample, pod: str) -> dict[str, float]:
    """Return the sample as TensorBoard's scalars by tag, such as `utilisation/cpu_cores/rank-0`.

    Bytes are shown in megabytes (10**6), because TensorBoard abbreviates no numbers of 32-bit floats.
    """
    return {
        f"utilisation/{_tag(name)}/{_owner(whose, pod)}": value / 1e6 if "_bytes" in name else float(value)
        for name, whose, value in _figures(of)
        if value is not None
    }


def _tag(name: str) -> str:
    return name.removeprefix("program_").removeprefix("pod_").replace("_bytes", "_megabytes")


def _owner(whose: tuple[str, str] | None, pod: str) -> str:
    if whose is None:
        return f"pod-{pod}"
    label, name = whose
    if label == "gpu":
        return f"{pod}-gpu-{name}"
    return f"rank-{name}" if name.isdecimal() else name


log = logging.getLogger(__name__)

ROTATE_SECONDS = 6 * 3600.0
"""The age of an event file at which the next one begins. Each file is at least one object in the bucket: with this
age, a week has few."""


class Recorder:
    """Appends the samples of one pod to its files. They do not lie among the program's own event files."""

    def __init__(
        self, root: Path, pod: str, attempt: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """root: the workspace. pod: `<role>-<index>`. clock: returns monotonic seconds."""
        self._folder = root / contract.UTILISATION
        self._pod = pod
        self._attempt = attempt
        self._events = ScalarWriter(
            self._folder / contract.TENSORBOARD, rotate_seconds=ROTATE_SECONDS, clock=clock
        )
        self._told = False

    def add(self, sample: Sample, age: float) -> None:
        """Append a sample. age: seconds since the first reading, which are TensorBoard's steps.

        A full disk is logged once, and the sample is lost: the program's own writes matter more.
        """
        line = row(sample, time=now_text(), pod=self._pod, attempt=self._attempt)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / f"{self._pod}.jsonl").open("a") as file:
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
            self._events.add(round(age), scalars(sample, self._pod))
        except OSError as error:
            if not self._told:
                self._told = True
                log.warning("the utilisation of this pod can't be written: %s", error)


Read = Callable[[Mapping[str, int]], Counters]
"""Returns a reading of programs, given by the first process of each."""
Keep = Callable[[Sample, float], None]
"""Keeps a sample and its time, in seconds since the first reading of a program."""


class Sampler:
    """Takes a reading at intervals, and keeps what the programs used in between."""

    def __init__(self, settings: Settings, programs: Callable[[], Mapping[str, int]]) -> None:
        """programs: returns the first process of each running program, by name."""
        self._settings = settings
        self._programs = programs
        self._before: Counters | None = None
        self._first_at: float | None = None
        self._latest: Sample | None = None

    def start(self, background: Background) -> None:
        """Sample in the background."""
        background.start(lambda: self._follow(background), "utilisation")

    def gauges(self) -> dict[str, float]:
        """Return the latest sample as Prometheus' gauges; empty while no program runs."""
        latest = self._latest
        return gauges(latest) if latest else {}

    def totals(self) -> contract.Utilisation | None:
        """Return what the pod used in the latest sample; None while no program runs."""
        latest = self._latest
        return totals(latest) if latest else None

    def look(self, read: Read, keep: Keep) -> float:
        """Take a reading, and keep the sample since the last one; return the seconds until the next reading."""
        began = time.thread_time()
        before, now = self._before, read(self._programs())
        self._before, latest, age = now, None, 0.0
        if now.programs:
            self._first_at = now.at if self._first_at is None else self._first_at
            age = now.at - self._first_at
            latest = sample(before, now) if before else None
        # Publish the gauges before the file is written: a reader that finds the sample in the file also finds it in
        # the gauges.
        self._latest = latest
        if latest:
            keep(latest, age)
        return pause(age, time.thread_time() - began)

    def _follow(self, background: Background) -> None:
        run_in_background()
        # Import late: an image may have dtj_trainer without psutil.
        try:
            from dtj_trainer.utilisation.sources import Sources
        except ImportError as error:
            log.warning("the utilisation of this pod is not measured: %s", error)
            return
        settings = self._settings
        sources, recorder = Sources(settings), Recorder(settings.root, settings.pod.name, settings.attempt)
        while not background.wait(self.look(sources.read, recorder.add)):
            pass

"""The figures of an interval between two readings: a line of JSON, TensorBoard's scalars, Prometheus' gauges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from dtj_trainer import contract
from dtj_trainer.utilisation.readings import DiskReading, GpuReading, ProgramReading, Reading

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
    """Those of the whole container; None outside of a container."""
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


def sample(before: Reading, now: Reading) -> Sample:
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
    """Return the growth of a counter. A counter falls where a process ended for which none of the others waited."""
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
    # One metric's series have to follow each other.
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

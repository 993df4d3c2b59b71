"""The use of processors, memory and GPUs by each rank of a run, from the lines that dtj-launch wrote in its pod."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dtj.report.numbers import number

MOST_BYTES = 64 * 1024 * 1024
"""The largest number of bytes that a report reads of a run's lines: about 16 weeks of a rank."""
_NUMBERS = re.compile(r"(\d+)")


@dataclass(frozen=True)
class UtilisationLine:
    """One interval of one pod."""

    pod: str
    seconds: float
    programs: Mapping[str, Mapping[str, Any]]
    gpus: Sequence[Mapping[str, Any]]
    values: Mapping[str, Any]
    """All fields of the line."""


@dataclass(frozen=True)
class RankUtilisation:
    """What one rank, or a replica without a rank, used over all lines. A figure is None if no line has it."""

    run: str
    program: str
    """The rank, or `<role>-<index>`."""
    pod: str
    seconds: float
    """The time that the lines cover."""
    cores: float | None
    """Processors in use, on average."""
    cpu_limit: float | None
    """The pod's limit in processors."""
    memory: float | None
    """The largest memory of all its processes together, in bytes. Shared memory counts once where PSS is known."""
    read: float | None
    """Bytes from disks."""
    written: float | None
    pod_memory: float | None
    """The largest memory of the pod, in bytes."""
    pod_memory_limit: float | None
    gpu: float | None
    """The average utilisation of the pod's GPUs, 0 to 1."""
    gpu_memory: float | None
    """The largest memory in use on one of the pod's GPUs, in bytes."""
    gpu_watts: float | None
    """The average power of one of the pod's GPUs."""


def files_to_read(sizes: Mapping[str, int]) -> list[str]:
    """Return the files of the newest attempts, up to MOST_BYTES. sizes: bytes by name of each file."""
    by_pod = sorted(sizes, key=_order)
    chosen, total = [], 0
    for name in sorted(by_pod, key=lambda name: _order(name.rpartition("/")[0]), reverse=True):
        total += sizes[name]
        if total > MOST_BYTES:
            break
        chosen.append(name)
    return chosen


def read_lines(content: bytes) -> list[UtilisationLine]:
    """Read a file of a pod. Leave out invalid lines, such as a line that a full disk cut off."""
    return [line for text in content.splitlines() if (line := _line(text)) is not None]


def usage_of(run: str, lines: Iterable[UtilisationLine]) -> list[RankUtilisation]:
    """Return what each rank of a run used, ordered by rank."""
    by_program: dict[tuple[str, str], list[UtilisationLine]] = {}
    for line in lines:
        for program in line.programs:
            by_program.setdefault((program, line.pod), []).append(line)
    return [
        _usage(run, program, pod, by_program[program, pod])
        for program, pod in sorted(by_program, key=lambda key: (_order(key[0]), _order(key[1])))
    ]


def _usage(run: str, program: str, pod: str, lines: Sequence[UtilisationLine]) -> RankUtilisation:
    own = [(line.programs[program], line.seconds) for line in lines]
    of_pod = [(line.values, line.seconds) for line in lines]
    gpus = [(gpu, line.seconds) for line in lines for gpu in line.gpus]
    return RankUtilisation(
        run=run,
        program=program,
        pod=pod,
        seconds=sum(line.seconds for line in lines),
        cores=_mean(own, "cpuCores"),
        cpu_limit=_most(of_pod, "cpuLimit"),
        memory=_most(own, "pssBytes") or _most(own, "rssBytes"),
        read=_sum(own, "readBytes"),
        written=_sum(own, "writtenBytes"),
        pod_memory=_most(of_pod, "memoryBytes"),
        pod_memory_limit=_most(of_pod, "memoryLimitBytes"),
        gpu=_mean(gpus, "utilisation"),
        gpu_memory=_most(gpus, "memoryUsedBytes"),
        gpu_watts=_mean(gpus, "powerWatts"),
    )


_Weighted = Sequence[tuple[Mapping[str, Any], float]]
"""Figures by name, and the seconds for which they hold."""


def _known(figures: _Weighted, name: str) -> list[tuple[float, float]]:
    return [(value, seconds) for each, seconds in figures if (value := number(each.get(name))) is not None]


def _mean(figures: _Weighted, name: str) -> float | None:
    known = _known(figures, name)
    total = sum(seconds for _, seconds in known)
    return sum(value * seconds for value, seconds in known) / total if total else None


def _most(figures: _Weighted, name: str) -> float | None:
    return max((value for value, _ in _known(figures, name)), default=None)


def _sum(figures: _Weighted, name: str) -> float | None:
    known = _known(figures, name)
    return sum(value for value, _ in known) if known else None


def _line(text: bytes) -> UtilisationLine | None:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    pod, seconds = values.get("pod"), number(values.get("seconds"))
    if not isinstance(pod, str) or seconds is None or seconds <= 0:
        return None
    return UtilisationLine(
        pod, seconds, _objects(values.get("programs")), [*_objects(values.get("gpus")).values()], values
    )


def _objects(value: Any) -> Mapping[str, Mapping[str, Any]]:
    found = value.items() if isinstance(value, dict) else ()
    return {name: each for name, each in found if isinstance(each, dict)}


def _order(name: str) -> list[tuple[int, int, str]]:
    """Order by the numbers in a name: rank 2 before rank 10."""
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in _NUMBERS.split(name) if part]

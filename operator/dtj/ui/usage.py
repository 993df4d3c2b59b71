"""The use of resources by each rank of a run: the samples that dtj-launch took in its pod, by rank and attempt. Pure.

`utilisation` shows them, and `outliers` compares ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from dtj.report.numbers import number
from dtj.report.utilisation import UtilisationLine, read_lines

_KEY = re.compile(r"utilisation/attempt-(\d{1,9})/[^/]+\.jsonl")
_LONGEST_NAME = 80
"""The number of characters that are kept of the name of a rank or a pod. A program may have written the line."""
_SHORTEST_INTERVAL, _LONGEST_INTERVAL = 0.1, 3600.0
_FIRST_TIME, _LAST_TIME = 0.0, 7.3e9
_NUMBERS = re.compile(r"(\d+)")


class RankSample(NamedTuple):
    """One interval of one rank. A figure is None if it was not measured."""

    time: float
    """Seconds since 1970 at the end of the interval."""
    seconds: float
    """The length of the interval."""
    cores: float | None
    """Processors in use, on average."""
    memory: float | None
    """Bytes in use at the end of the interval. Shared memory counts once where PSS is known."""
    read: float | None
    """Bytes from disks a second."""
    written: float | None
    """Bytes to disks a second."""
    gpu: float | None
    """The average utilisation of the pod's GPUs, 0 to 1."""
    gpu_memory: float | None
    """Bytes of all of the pod's GPUs."""


@dataclass
class Stay:
    """One rank in one attempt."""

    rank: str
    """The rank, or `<role>-<index>` of a program that is no rank."""
    attempt: int
    pod: str
    samples: list[RankSample] = field(default_factory=list)
    """The samples, in the order of time."""

    @property
    def began(self) -> float:
        """Seconds since 1970 of the first sample's begin."""
        return self.samples[0].time - self.samples[0].seconds

    @property
    def ended(self) -> float:
        """Seconds since 1970 of the last sample."""
        return self.samples[-1].time


@dataclass(frozen=True)
class RankUsage:
    """The samples of a run."""

    stays: Mapping[str, Sequence[Stay]]
    """The stays by rank, in the order of ranks. The stays of a rank are in the order of attempts."""
    left_out_lines: int
    """The number of lines that are no samples."""

    def attempts(self) -> dict[int, float]:
        """Return the begin of each attempt, in seconds since 1970."""
        began: dict[int, float] = {}
        for stay in (stay for stays in self.stays.values() for stay in stays):
            began[stay.attempt] = min(stay.began, began.get(stay.attempt, stay.began))
        return dict(sorted(began.items()))


def is_lines(key: str) -> bool:
    """Return whether a key in the bucket is that of a file with samples."""
    return _KEY.fullmatch(key) is not None


def usage_of(files: Iterable[tuple[str, bytes]]) -> RankUsage:
    """Return the samples in the utilisation files of the pods, and the number of lines that are no samples.

    files: key and content of each file.
    """
    stays: dict[tuple[str, int], Stay] = {}
    left_out = 0
    for key, content in files:
        found = _KEY.fullmatch(key)
        if found is None:
            continue
        lines = read_lines(content)
        left_out += sum(1 for text in content.splitlines() if text.strip()) - len(lines)
        for line in lines:
            time = _time(line.values.get("time"))
            if time is None or line.seconds > _LONGEST_INTERVAL:
                left_out += 1
                continue
            for name, figures in line.programs.items():
                rank = name[:_LONGEST_NAME]
                stay = stays.setdefault(
                    (rank, int(found[1])), Stay(rank, int(found[1]), line.pod[:_LONGEST_NAME])
                )
                stay.samples.append(_sample(time, line, figures))
    by_rank: dict[str, list[Stay]] = {}
    for place in sorted(stays, key=lambda place: (order(place[0]), place[1])):
        stays[place].samples.sort(key=lambda sample: sample.time)
        by_rank.setdefault(place[0], []).append(stays[place])
    return RankUsage(by_rank, left_out)


def order(name: str) -> list[tuple[int, int, str]]:
    """Order ranks before other programs, and rank 2 before rank 10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _NUMBERS.split(name) if part]


def rank_name(rank: str) -> str:
    """Return the name of a rank in a sentence, or of a program that is no rank."""
    return f"rank {rank}" if rank.isdecimal() else rank


def _sample(time: float, line: UtilisationLine, figures: Mapping[str, Any]) -> RankSample:
    pss = number(figures.get("pssBytes"))
    return RankSample(
        time,
        line.seconds,
        number(figures.get("cpuCores")),
        number(figures.get("rssBytes")) if pss is None else pss,
        _rate(figures.get("readBytes"), line.seconds),
        _rate(figures.get("writtenBytes"), line.seconds),
        _mean([gpu.get("utilisation") for gpu in line.gpus]),
        _sum([gpu.get("memoryUsedBytes") for gpu in line.gpus]),
    )


def _rate(amount: Any, seconds: float) -> float | None:
    known = number(amount)
    return None if known is None else known / max(seconds, _SHORTEST_INTERVAL)


def _mean(values: Iterable[Any]) -> float | None:
    known = [value for each in values if (value := number(each)) is not None]
    return sum(known) / len(known) if known else None


def _sum(values: Iterable[Any]) -> float | None:
    known = [value for each in values if (value := number(each)) is not None]
    return sum(known) if known else None


def _time(text: Any) -> float | None:
    try:
        time = datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError, OverflowError, OSError):
        return None
    return time if _FIRST_TIME <= time <= _LAST_TIME else None

"""Finds the ranks that differ from the others: stragglers, and ranks that hang or are gone. Pure.

`utilisation` shows them. `usage` reads the samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Literal

from dtj.report.numbers import number_text
from dtj.ui.usage import RankSample, RankUsage, Stay, rank_name

LATELY_SECONDS = 60.0
"""Seconds before the last sample of a rank over which the function `lately` takes means."""
FACTOR = 3.0
"""A rank is an outlier if it uses this many times more or less than the median of the others."""
LEAST_CORES = 0.25
"""The least difference in processors. Threads that only poll differ by less."""
LEAST_GPU = 0.25
SLOWER = 1.5
"""A rank is slow if its steps take this many times longer than those of the others."""
MISSING_SECONDS = 240.0
"""Seconds without a sample after which a rank is missing, if other ranks have samples. Each pod uploads its samples
every two minutes."""
_MOST_NAMES = 5

Kind = Literal["idle", "busy", "slow", "missing"]


@dataclass(frozen=True)
class Lately:
    """The use of resources by a rank in its last samples. A figure is None if it was not measured."""

    cores: float | None
    memory: float | None
    gpu: float | None


@dataclass(frozen=True)
class Outliers:
    """The ranks that differ, and a sentence about each kind."""

    kinds: Mapping[str, Kind]
    """The way in which a rank differs, by rank."""
    sentences: Sequence[str]


def lately(stay: Stay, seconds: float | None = LATELY_SECONDS) -> Lately:
    """Return the use by a rank in the seconds before its last sample; None: in the whole attempt."""
    since = stay.began - 1 if seconds is None else stay.ended - seconds
    samples = [each for each in stay.samples if each.time > since]
    return Lately(
        _mean(samples, [each.cores for each in samples]),
        next((each.memory for each in reversed(samples) if each.memory is not None), None),
        _mean(samples, [each.gpu for each in samples]),
    )


def outliers_of(usage: RankUsage, steps: Mapping[str, float], seconds: float | None) -> Outliers:
    """Compare each rank with the others of its kind.

    steps: the mean seconds of a step by rank, where known. seconds: see `lately`.
    """
    kinds: dict[str, Kind] = {}
    sentences: list[str] = []
    for peers in _peers(usage):
        missing = _missing(peers)
        present = {rank: lately(stay, seconds) for rank, stay in peers.items() if rank not in missing}
        cores = _uneven({rank: each.cores for rank, each in present.items()}, LEAST_CORES)
        gpu = _uneven({rank: each.gpu for rank, each in present.items()}, LEAST_GPU)
        slow = _slow({rank: steps[rank] for rank in peers if rank in steps})
        kinds |= {
            **gpu.kinds,
            **cores.kinds,
            **dict.fromkeys(slow, "slow"),
            **dict.fromkeys(missing, "missing"),
        }
        sentences += [
            *_of_missing(missing, peers),
            *_of_slow(slow, steps),
            *_of_uneven(cores, "{:.2f} processors, the others {:.2f}"),
            *_of_uneven(gpu, "{:.0%} of its GPUs, the others {:.0%}"),
        ]
    return Outliers(kinds, sentences)


@dataclass(frozen=True)
class _Uneven:
    """Figures that differ from the median of the others."""

    kinds: Mapping[str, Kind]
    figures: Mapping[str, float]
    others: float


def _peers(usage: RankUsage) -> list[dict[str, Stay]]:
    """Return the newest stay of each rank of the newest attempt, and the same for the replicas of each role."""
    groups: dict[str, dict[str, Stay]] = {}
    for rank, stays in usage.stays.items():
        role = "" if rank.isdecimal() else rank.rpartition("-")[0]
        groups.setdefault(role, {})[rank] = stays[-1]
    found = []
    for group in groups.values():
        newest = max(stay.attempt for stay in group.values())
        began = min(stay.began for stay in group.values() if stay.attempt == newest)
        # Include replicas that run since an older attempt: they did not restart with the others.
        found.append({rank: stay for rank, stay in group.items() if stay.ended >= began})
    return found


def _missing(peers: Mapping[str, Stay]) -> list[str]:
    last = max((stay.ended for stay in peers.values()), default=0.0)
    return [
        rank
        for rank, stay in peers.items()
        if stay.ended < last - MISSING_SECONDS - 2 * stay.samples[-1].seconds
    ]


def _uneven(figures: Mapping[str, float | None], least: float) -> _Uneven:
    known = {rank: value for rank, value in figures.items() if value is not None}
    kinds: dict[str, Kind] = {}
    middle = median(known.values()) if known else 0.0
    for rank, value in known.items():
        # Of two ranks, compare with the busier one. The median lies halfway between them, and would show a rank as
        # idle only below a fifth of the other rank's value instead of below a third.
        usual = max(known.values()) if len(known) == 2 else middle
        if value * FACTOR < usual and usual - value >= least:
            kinds[rank] = "idle"
        elif len(known) > 2 and value > usual * FACTOR and value - usual >= least:
            kinds[rank] = "busy"
    usual = median([value for rank, value in known.items() if rank not in kinds] or [middle])
    return _Uneven(kinds, known, usual)


def _slow(steps: Mapping[str, float]) -> list[str]:
    if len(steps) < 2:
        return []
    usual = min(steps.values()) if len(steps) == 2 else median(steps.values())
    return [rank for rank, seconds in steps.items() if seconds > SLOWER * usual]


def _of_uneven(uneven: _Uneven, form: str) -> list[str]:
    found = []
    for kind, reason in (("idle", "it may hang or wait"), ("busy", "the others may wait for it")):
        ranks = sorted(
            (rank for rank, its in uneven.kinds.items() if its == kind),
            key=lambda rank: uneven.figures[rank],
            reverse=kind == "busy",
        )
        if ranks:
            figures = form.format(uneven.figures[ranks[0]], uneven.others)
            found.append(f"{_named(ranks)}: {figures} ({reason})")
    return found


def _of_slow(slow: Sequence[str], steps: Mapping[str, float]) -> list[str]:
    if not slow:
        return []
    ranks = sorted(slow, key=lambda rank: -steps[rank])
    usual = median([seconds for rank, seconds in steps.items() if rank not in slow] or [0.0])
    took, took_others = (number_text(seconds, 3) for seconds in (steps[ranks[0]], usual))
    return [f"{_named(ranks)}: a step takes {took} s, of the others {took_others} s"]


def _of_missing(missing: Sequence[str], peers: Mapping[str, Stay]) -> list[str]:
    if not missing:
        return []
    ranks = sorted(missing, key=lambda rank: peers[rank].ended)
    last = max(stay.ended for stay in peers.values())
    return [f"{_named(ranks)}: last seen at {_clock(peers[ranks[0]].ended)}, the others until {_clock(last)}"]


def _named(ranks: Sequence[str]) -> str:
    """Return the names of the first ranks."""
    names = ", ".join(map(rank_name, ranks[:_MOST_NAMES]))
    return names + (f" and {len(ranks) - _MOST_NAMES} more" if ranks[_MOST_NAMES:] else "")


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S UTC")


def _mean(samples: Sequence[RankSample], values: Sequence[float | None]) -> float | None:
    known = [(value, each.seconds) for each, value in zip(samples, values, strict=True) if value is not None]
    return (
        sum(value * seconds for value, seconds in known) / sum(seconds for _, seconds in known)
        if known
        else None
    )

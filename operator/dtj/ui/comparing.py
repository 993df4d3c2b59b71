"""What `dtj report` says of chosen jobs: its tables, pictures and notes, and the command that prints the same."""

from __future__ import annotations

import re
import shlex
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from dtj.api.errors import DtjError, Unusable
from dtj.api.masking import masked
from dtj.cli.bucket_place import BucketPlace
from dtj.cli.report_sources import run_of
from dtj.report.cost import read_price
from dtj.report.pictures import pictures_of
from dtj.report.report import Report, make_report
from dtj.ui.metrics_of_jobs import MOST_BYTES

if TYPE_CHECKING:
    from dtj.cli.places import Place
    from dtj.report.run import Run
    from dtj.ui.sources import Sources

MOST_JOBS = 20
_AT_ONCE = 4
"""Jobs whose metrics are read, and in memory as bytes, at one time."""
_WORD = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)
_UID = re.compile(r"[A-Za-z0-9]([-.A-Za-z0-9]{0,126}[A-Za-z0-9])?", re.ASCII)
_DRAWING = threading.Lock()
"""matplotlib draws for one thread at a time."""


class JobWord(NamedTuple):
    """A job as the query of a request names it."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class Wishes:
    """What the options of `dtj report` choose."""

    baseline: str | None
    group_by: Sequence[str]
    price: str | None


@dataclass(frozen=True)
class Compared:
    """The report of some jobs."""

    report: Report
    left_out: Mapping[str, str]
    """Why jobs are not in the report, by label."""
    command: str


def job_words(words: Sequence[str]) -> list[JobWord]:
    """Read `NAMESPACE/NAME` or `NAMESPACE/NAME/UID` of each job. Raises Unusable, also for too many jobs."""
    distinct = list(dict.fromkeys(words))
    if not 1 <= len(distinct) <= MOST_JOBS:
        raise Unusable(f"{len(distinct)} jobs can't be compared", f"give 1 to {MOST_JOBS} jobs")
    return [_job_word(word) for word in distinct]


def _job_word(word: str) -> JobWord:
    namespace, slash, rest = word.partition("/")
    name, _, uid = rest.partition("/")
    fits = slash and _WORD.fullmatch(namespace) and _WORD.fullmatch(name) and (not uid or _UID.fullmatch(uid))
    if not fits:
        raise Unusable(
            f"{word[:100]!r} names no job", "give NAMESPACE/NAME, or NAMESPACE/NAME/UID of a past job"
        )
    return JobWord(namespace, name, uid)


def compared(sources: Sources, jobs: Sequence[JobWord], wishes: Wishes) -> Compared:
    """Return the report of several jobs, without the values of options whose names look secret.

    A job whose metrics are missing or larger than MOST_BYTES is in `left_out`. Raises DtjError.
    """
    price = read_price(wishes.price) if wishes.price else None
    labels = _labels(jobs)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        places = list(pool.map(lambda job: sources.find(*job), jobs))
        found = list(pool.map(_run_or_fault, places, labels))
    runs = [each for each in found if not isinstance(each, DtjError)]
    left_out = {
        label: each.message for label, each in zip(labels, found, strict=True) if isinstance(each, DtjError)
    }
    report = make_report(runs, group_by=wishes.group_by, baseline=wishes.baseline or None, price=price)
    return Compared(report, left_out, _command(places, jobs, labels, wishes, sources.words))


def drawn(report: Report) -> dict[str, bytes]:
    """Return the pictures of a report by file name. Raises Unusable if matplotlib is not installed."""
    with _DRAWING:
        return pictures_of(report)


def _run_or_fault(place: Place, label: str) -> Run | DtjError:
    try:
        run = run_of(place, label, most=MOST_BYTES)
    except DtjError as error:
        return error
    return replace(run, job=None if run.job is None else masked(run.job))


def _labels(jobs: Sequence[JobWord]) -> list[str]:
    """Return a name for each job, as short as tells the jobs apart."""
    by_name = Counter(job.name for job in jobs)
    by_both = Counter(job[:2] for job in jobs)

    def label(job: JobWord) -> str:
        if by_name[job.name] == 1:
            return job.name
        full = f"{job.namespace}/{job.name}"
        return f"{full} ({job.uid[:8] or 'present'})" if by_both[job[:2]] > 1 else full

    return [label(job) for job in jobs]


def _command(
    places: Sequence[Place],
    jobs: Sequence[JobWord],
    labels: Sequence[str],
    wishes: Wishes,
    options_of: Callable[[str | None], list[str]],
) -> str:
    """Return the command of a shell. A name stands for a present job of one namespace, a prefix for every other."""
    present = [job for job, place in zip(jobs, places, strict=True) if not isinstance(place, BucketPlace)]
    namespace = present[0].namespace if present else None
    words = dict(zip(labels, _words(places, jobs, namespace), strict=True))
    baseline = words.get(wishes.baseline or "", wishes.baseline)
    if baseline and baseline.startswith("s3://"):
        baseline = baseline.rpartition("/")[2]
    options = [("--baseline", baseline), *(("--group-by", each) for each in wishes.group_by)]
    options += [("--price", wishes.price), ("--format", "html")]
    given = [word for name, value in options if value for word in (name, value)]
    return shlex.join(["dtj", "report", *words.values(), *given, *options_of(namespace)])


def _words(places: Sequence[Place], jobs: Sequence[JobWord], namespace: str | None) -> Iterator[str]:
    for place, job in zip(places, jobs, strict=True):
        if isinstance(place, BucketPlace):
            yield place.past.uri
        elif job.namespace == namespace:
            yield job.name
        else:
            yield place.job().artifacts_uri or job.name

"""Compare synchronous with asynchronous updates from what finished runs left in the bucket.

    python -m dtj_trainer.programs.compare_updates s3://training/jobs/ml/

Takes prefixes of jobs, or of folders of jobs, and prints a table as Markdown: one row for each kind of updates,
model, batch size and number of replicas, mean ± standard deviation over the runs that came to their end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dtj_trainer import contract
from dtj_trainer.artifacts.s3 import NoSuchKey, S3Error
from dtj_trainer.artifacts.store import Store, open_store

COLUMNS = (
    *("updates", "workers", "ps", "runs", "model", "batch"),
    *("global step/s", "examples/s", "seconds", "accuracy"),
)
NOTE = (
    "A step of synchronous updates is a batch of every worker, one of asynchronous updates the batch of a single "
    "worker: compare examples/s. Workers that share the cores of one machine show no speed-up by their number."
)


@dataclass(frozen=True)
class Run:
    """What one run came to."""

    updates: str
    model: str
    batch_size: int
    """Of each worker; 0 where the run doesn't say."""
    workers: int
    ps: int
    steps_per_second: float
    examples_per_second: float
    seconds: float
    accuracy: float | None
    """On the test data, of the last checkpoint that the evaluator saw; None without one."""


def read_run(metrics: Iterable[dict[str, Any]], tests: Iterable[dict[str, Any]]) -> Run | None:
    """The run that wrote these lines of metrics.jsonl and metrics-evaluator.jsonl; None when it has no end."""
    ends = [line for line in metrics if line.get("kind") == "end" and "updates" in line]
    if not ends:
        return None
    end = ends[-1]
    accuracies = [line["accuracy"] for line in tests if line.get("kind") == "test"]
    return Run(
        updates=end["updates"],
        model=end.get("model", "–"),
        batch_size=end.get("batchSize", 0),
        workers=end["workers"],
        ps=end["ps"],
        steps_per_second=end["globalStepsPerSecond"],
        examples_per_second=end["examplesPerSecond"],
        seconds=end["seconds"],
        accuracy=accuracies[-1] if accuracies else None,
    )


def table(runs: Iterable[Run]) -> str:
    """The runs by kind of updates, model, batch size and number of replicas, as Markdown."""
    groups: dict[tuple[str, str, int, int, int], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.updates, run.model, run.batch_size, run.workers, run.ps].append(run)
    rows = [COLUMNS, tuple("---" for _ in COLUMNS)]
    for (updates, model, batch_size, workers, ps), same in sorted(groups.items(), reverse=True):
        rows.append(
            (
                updates,
                str(workers),
                str(ps),
                str(len(same)),
                model,
                str(batch_size or "–"),
                spread([run.steps_per_second for run in same], 2),
                spread([run.examples_per_second for run in same], 0),
                spread([run.seconds for run in same], 1),
                spread([run.accuracy for run in same if run.accuracy is not None], 4),
            )
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def spread(values: Sequence[float], digits: int) -> str:
    """Mean and, of several values, the sample's standard deviation; a dash of none."""
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def _runs(store: Store) -> Iterator[tuple[str, Run | None]]:
    """The run at a prefix, or those in the folders directly below it."""
    here = _lines(store, contract.METRICS_FILE) is not None
    for each in [store] if here else map(store.below, store.folders()):
        metrics = _lines(each, contract.METRICS_FILE)
        if metrics is not None:
            yield each.location.uri, read_run(metrics, _lines(each, contract.EVALUATOR_METRICS_FILE) or [])


def _lines(store: Store, key: str) -> list[dict[str, Any]] | None:
    """The JSON objects in a file; without what isn't one, such as a line that was cut off by a kill."""
    try:
        lines = store.get_bytes(key).splitlines()
    except NoSuchKey:
        return None
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return [content for content in found if isinstance(content, dict)]


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m dtj_trainer.programs.compare_updates",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("uri", nargs="+", help="s3:// prefix of a job, or of a folder of jobs")
    try:
        found = [each for uri in parser.parse_args(arguments).uri for each in _runs(open_store(uri))]
    except (S3Error, ValueError) as error:
        sys.exit(f"compare_updates: {error}")
    for uri, run in found:
        if run is None:
            print(f"left out: {uri} has no end of a parameter-server run", file=sys.stderr)
    runs = [run for _, run in found if run is not None]
    if not runs:
        sys.exit("compare_updates: no finished parameter-server run there")
    print(f"{table(runs)}\n\n{NOTE}")


if __name__ == "__main__":
    main()

"""`python -m tests.bench.training`: the costs of dtj for a training, against the same steps by hand."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests import fashion_mnist
from tests.bench import batch_loading, beside_upload, toll, trial_toll
from tests.bench.checkpoint_transfer import Transfers, object_store
from tests.bench.figures import shown, table
from tests.bench.machine import machine
from tests.bench.targets import Target, verdicts
from tests.cluster.progress import ClusterError, note

_AT_LEAST = {
    "horovod-by-dtj/by-hand": 0.99,
    "torch-by-dtj/by-hand": 0.97,
    "parameter-server-by-dtj/by-hand": 0.99,
    "checkpoint-up/boto3": 0.9,
    "checkpoint-down/boto3": 0.9,
    "one-rank-beside-upload/alone": 0.97,
    "two-ranks-beside-upload/alone": 0.95,
    "batches-by-dtj/bare": 0.8,
}
TARGETS = (
    *(Target(name, name, bound, at_least=True, of_a_ratio=True) for name, bound in _AT_LEAST.items()),
    Target("first-step-tried/not-tried", "first-step-tried/not-tried", 1.02, of_a_ratio=True),
)
MEGABYTE = 1_000_000
Rates = dict[str, list[float]]


def in_turn(rounds: int, ways: Mapping[str, Callable[[], float]]) -> Rates:
    """What each way measures, round by round: what slows the machine down for a while hits all of them."""
    found: Rates = {name: [] for name in ways}
    for number in range(rounds):
        # The one that goes first finds another machine than the one that goes last.
        for name in list(ways)[:: 1 if number % 2 == 0 else -1]:
            found[name].append(ways[name]())
            note(f"{name}: {shown(found[name][-1])}")
    return found


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def trainings(rounds: int, data: Path) -> Rates:
    """Examples a second."""
    ways = {
        "Horovod": (toll.horovod_job(), toll.horovod_by_hand),
        "TorchDistributed": (toll.torch_job(), toll.torch_by_hand),
        "ParameterServer": (toll.parameter_server_job(), toll.parameter_server_by_hand),
    }
    found: Rates = {}
    for strategy, (job, by_hand) in ways.items():
        found |= in_turn(
            rounds,
            {
                f"{strategy} by dtj run": partial(toll.by_dtj, job, data),
                f"{strategy} by hand": partial(by_hand, job, data),
            },
        )
    return found


def transfers(rounds: int, megabytes: int, data: Path) -> Rates:
    """MB a second of a checkpoint, and examples a second of trainings beside its upload."""
    with TemporaryDirectory(prefix="dtj-bench-") as folder, object_store(Path(folder)) as store:
        one = Transfers(store, Path(folder), megabytes * MEGABYTE)
        numbers = iter(range(rounds))
        up = in_turn(
            rounds,
            {
                "checkpoint up, dtj": lambda: megabytes / one.up(f"job-{next(numbers)}"),
                "checkpoint up, boto3": lambda: megabytes / one.up_by_boto3(),
            },
        )
        numbers = iter(range(rounds))
        down = in_turn(
            rounds,
            {
                "checkpoint down, dtj": lambda: megabytes / one.down(f"job-{next(numbers)}"),
                "checkpoint down, boto3": lambda: megabytes / one.down_by_boto3(),
            },
        )
        beside: Rates = {}
        for name, rates in (("one rank", beside_upload.one_rank), ("two ranks", beside_upload.two_ranks)):
            during, alone = rates(rounds, data, one)
            beside |= {f"{name}, a checkpoint is uploaded": during, f"{name}, none is": alone}
        return up | down | beside


def told(rates: Rates) -> str:
    """A table of all rates, then the verdicts."""
    rows = {
        name: {"median": statistics.median(of), "least": min(of), "most": max(of)}
        for name, of in rates.items()
    }
    columns = {kind: {name: row[kind] for name, row in rows.items()} for kind in ("median", "least", "most")}
    pairs = list(rates.values())
    ratios = [ratio(*pairs[index : index + 2]) for index in range(0, len(pairs), 2)]
    figures = dict(zip((target.name for target in TARGETS), ratios, strict=True))
    return "\n\n".join([table(columns), "\n".join(verdicts(TARGETS, figures))])


def main() -> int:
    """Measure and print; 1 with the reason where it can't."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of everything (default: %(default)s)")
    parser.add_argument("--megabytes", type=int, default=500, help="of the checkpoint (default: %(default)s)")
    given = parser.parse_args()
    on = machine()
    try:
        data = fashion_mnist.folder()
        rates = trainings(given.rounds, data) | transfers(given.rounds, given.megabytes, data)
        by_dtj, bare = batch_loading.rates(str(data))
        rates |= in_turn(given.rounds, {"batches, dtj": by_dtj, "batches, bare": bare})
        rates |= in_turn(2 * given.rounds + 1, trial_toll.ways(data))
    except ClusterError as error:
        note(f"error: {error}")
        return 1
    print(f"{on}\n\nExamples, and for checkpoints MB, a second; seconds to a first step:\n\n{told(rates)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Jobs of `dtj ui` whose ranks left samples and stacks: one that hangs in its second attempt, and one of the past."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.trainer.ui_jobs import HOSTILE, Ui, add
from tests.unit.support import past_jobs

from dtj_trainer.artifacts.store import Store, open_store

STUCK = "load_batch (train.py:41)"
WAITING = "all_reduce (torch/distributed/distributed_c10d.py:2810)"
_START = datetime(2026, 11, 21, 12, tzinfo=UTC)
_RANKS = 4
_GB = 10**9


def fill_stalled(ui: Ui, environment: Mapping[str, str], *, hostile: bool = True) -> None:
    """Add the job `stalled`: rank 3 loads a batch for minutes, and the others wait for it.

    hostile: whether its files also have what a careless reader fails at.
    """
    message = "all pods run, but the step has stayed at 90 for 300 s (runPolicy.stallTimeoutSeconds)"
    prefix = add(ui.cluster, "stalled", "Running", [("Running", "True", ""), ("Stalled", "True", message)])
    store = open_store(prefix, environment)
    _put_samples(store, hostile=hostile)
    for rank in range(_RANKS):
        store.put_bytes(f"logs/attempt-2/stacks-{rank}-1.txt", stacks(rank).encode())
    if hostile:
        store.put_bytes("logs/attempt-1/stacks-0-1.txt", b"no stack at all " + HOSTILE.encode())


def fill_past(ui: Ui, environment: Mapping[str, str]) -> None:
    """Leave a deleted job of the same ranks, which reported the steps of each."""
    store = open_store(ui.history, environment)
    job = past_jobs.entry(1, "gone")
    past_jobs.put(store, job, past_jobs.end(job, "Failed"))
    own = open_store(f"{ui.history}/{job.prefix}", environment)
    _put_samples(own, hostile=True)
    steps = [
        {"rank": rank, "steps": 9, "mean": 0.2 + (rank == 1), "deviation": 0.0} for rank in range(_RANKS)
    ]
    row = {"kind": "end", "time": _START.isoformat(), "step": 9, "stepTimes": steps}
    own.put_bytes("metrics.jsonl", json.dumps(row).encode())
    own.put_bytes("logs/attempt-2/stacks-3-1.txt", stacks(3).encode())


def _put_samples(store: Store, *, hostile: bool) -> None:
    for attempt, minutes in ((1, range(10)), (2, range(11, 25))):
        for rank in range(_RANKS):
            lines = [json.dumps(line) for line in _lines(rank, attempt, minutes, hostile)]
            if rank == 0 and hostile:
                lines += [
                    '{"pod": "worker-0", "sec',
                    json.dumps({"pod": HOSTILE, "seconds": 1, "time": 7}),
                    "",
                ]
            key = f"utilisation/attempt-{attempt}/worker-{rank}.jsonl"
            # In segments, as a pod uploads them.
            middle = len(lines) // 2
            store.put_bytes(key, ("\n".join(lines[:middle]) + "\n").encode())
            store.put_bytes(f"{key}.00002", "\n".join(lines[middle:]).encode())


def _lines(rank: int, attempt: int, minutes: range, hostile: bool) -> Iterator[dict[str, Any]]:
    for minute in minutes:
        for second in (15, 30, 45, 60):
            hangs = rank == 3 and minute >= 20
            time = _START + timedelta(minutes=minute, seconds=second)
            figures = {
                "cpuCores": 0.02 if hangs else 1.8 + rank / 20 - (minute % 3) / 10,
                "processes": 3,
                "rssBytes": 3 * _GB,
                "pssBytes": _GB + minute * _GB // 50,
                "readBytes": 0 if hangs else 9_000_000,
                "writtenBytes": 45_056,
            }
            # A rank whose name is hostile never was one, yet a program may write any line.
            named = {HOSTILE: figures} if hostile and (rank, minute, second) == (1, 5, 15) else {}
            gpus = {"0": {"utilisation": 0.0 if hangs else 0.93, "memoryUsedBytes": 51 * _GB}}
            yield {
                "time": time.isoformat(),
                "pod": f"worker-{rank}",
                "attempt": attempt,
                "seconds": 15.0,
                "programs": {str(rank): figures, **named},
                "gpus": gpus,
            }


def stacks(rank: int) -> str:
    """Return the file of stacks that the pod of a rank writes."""
    frames = [STUCK, "next_batch (train.py:30)"] if rank == 3 else [WAITING, "wrapper (c10d_logger.py:83)"]
    own = "\n".join(f"    {frame}" for frame in [*frames, "train (train.py:48)", "<module> (train.py:60)"])
    return (
        f"{rank} at 2026-11-21T12:25:00+00:00\n\n"
        "== process 70: torchrun train.py\nProcess 70: torchrun train.py\nPython v3.11.2 (/usr/bin/python3.11)\n\n"
        'Thread 70 (idle): "MainThread"\n    _invoke_run (torch/distributed/elastic/agent/server/api.py:9)\n'
        "    main (torch/distributed/run.py:900)\n\n"
        f"== process 71: python train.py {HOSTILE}\nProcess 71: python train.py\nPython v3.11.2\n\n"
        'Thread 80 (idle): "Watchdog"\n    wait (threading.py:327)\n'
        f'Thread 71 (active): "MainThread"\n{own}\n\n'
        "== process 72: sleep\nno Python stack: py-spy is not installed here\nthread 72 (sleep): S (sleeping)\n"
    )

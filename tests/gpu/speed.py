"""Rows of speed: examples a second beside a hand-tuned loop, and saves beside a training."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

from tests.gpu.place import Place, upload
from tests.gpu.sheet import Sheet, needs_gpu

RATIO = 0.97
"""Of examples a second by dtj, by those by hand. It holds on GPUs: other work may use a CPU at any moment."""
ON_CPU = ("fp32", "bf16")
ON_GPU = (*ON_CPU, "fp16", "channels-last", "compile")
STORED = "data from S3 and from the cache"


def rates(at: Place) -> Iterator[Sheet]:
    """Measure examples a second of each precision in memory, and with data from S3 and from the cache."""
    ways = ON_GPU if at.gpu else ON_CPU
    shards = at.folder / "shards"
    subprocess.run(["dtj", "data", "stage", str(at.data), str(shards)], check=True, capture_output=True)
    uri, cache = upload(at, shards, "datasets", "shards"), str(at.folder / "cache")
    words = [at.python, "-m", "tests.gpu.rates", str(at.data), uri, cache, *ways]
    lines = at.lines(words, {"DTJ_ROOT": str(at.folder / "rates")})
    for name, line in zip([*ways, STORED], lines, strict=True):
        yield _stored(json.loads(line)) if name == STORED else _compared(at, name, json.loads(line))
    yield from (needs_gpu(f"{name} beside a loop by hand") for name in ON_GPU if name not in ways)


def _compared(at: Place, name: str, told: dict[str, float]) -> Sheet:
    row = Sheet(f"{name} beside a loop by hand")
    row.say("by dtj", told["dtj"])
    row.say("by hand", told["hand"])
    row.hold("ratio", told["ratio"], at_least=RATIO if at.gpu else None)
    return row


def _stored(told: dict[str, float]) -> Sheet:
    row = Sheet(STORED)
    for name, value in told.items():
        row.say(name, value)
    return row


def saves(at: Place) -> Iterator[Sheet]:
    """Save beside a training: its longest stall, its memory, and the rate of a restore."""
    row = Sheet("saves beside a training")
    megabytes = 2000 if at.gpu else 20
    seconds = 12 if at.gpu else 2
    (line,) = at.module(
        "tests.gpu.saves",
        str(at.data),
        str(megabytes),
        str(seconds),
        env={"DTJ_ROOT": str(at.folder / "saves")},
    )[-1:]
    told = json.loads(line)
    row.say("state, MB", megabytes)
    for name, value in told.items():
        row.say(name, value)
    row.require(told["saves"], "no checkpoint was saved")
    yield row

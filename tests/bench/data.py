"""Benchmark of reading data sets from S3: `make bench-data`.

All figures are of one run, from one store on this machine: GETs alone, dtj, and other libraries beside dtj, in turn.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from dtj_trainer.artifacts.store import open_store
from dtj_trainer.data import stage
from dtj_trainer.data.index import INDEX_NAME, Block, DataIndex, Shard, SplitIndex
from tests.bench import class_order
from tests.bench.checkpoint_transfer import BUCKET, object_store
from tests.bench.data_readers import WORKERS
from tests.bench.figures import table
from tests.bench.machine import machine
from tests.bench.slow_store import slow_store
from tests.bench.targets import Target, verdicts
from tests.cluster.progress import note

ROOT = Path(__file__).parents[2]
RIVALS = ("webdataset", "s3torchconnector", "grain")
PINS = (
    "webdataset==1.0.2",
    "grain==0.2.18",
    "s3torchconnector==1.5.0",
    "torch==2.13.0",
    "boto3",
    "pillow",
    "google-crc32c",
    "protobuf",
)
MEGABYTES = 256
LARGE_COPIES = 8
"""The set of `MEGABYTES` so many times is the large set."""
SMALL_FILES = 20_000
LIMIT_MEGABYTES, DELAY_SECONDS = 100.0, 0.01
TIMEOUT_SECONDS = 600.0
Figures = dict[str, float]


def targets() -> list[Target]:
    """The bounds."""
    faster = [
        Target(f"dtj/{rival}{kind}", f"dtj/{rival}{kind}", 1, at_least=True, of_a_ratio=True)
        for rival in RIVALS
        for kind in ("", ", decoded")
    ]
    return [
        Target("dtj/GETs", "dtj/GETs", 0.9, at_least=True, of_a_ratio=True),
        Target("cached epoch/limited GETs", "cached/limited", 4, at_least=True, of_a_ratio=True),
        Target("decoded/slower of GETs and decoding", "decoded/slower", 0.9, at_least=True, of_a_ratio=True),
        *faster,
        *class_order.targets(),
        Target("memory, the large set/the small one", "memory, large", 1.1, of_a_ratio=True),
        Target("memory over small files", "memory, small files", 1.1, of_a_ratio=True),
    ]


def photographs(folder: Path, size: int) -> None:
    """Write different JPEGs of scikit-image's photographs, `size` bytes in all: cut out at places of chance."""
    from skimage import data

    names = ("astronaut", "coffee", "chelsea", "rocket")
    originals = [Image.fromarray(getattr(data, name)()) for name in names]
    chance, written, number = np.random.default_rng(0), 0, 0
    while written < size:
        original = originals[number % len(originals)]
        left, top = (int(chance.integers(0, side // 4)) for side in original.size)
        box = (left, top, left + original.width * 3 // 4, top + original.height * 3 // 4)
        content = io.BytesIO()
        original.resize((500, 375), Image.Resampling.BILINEAR, box=box).save(content, "JPEG", quality=95)
        split = "train" if number % 50 else "test"
        path = folder / split / str(number % len(originals)) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.getvalue())
        written, number = written + len(content.getvalue()), number + 1


def small_files(folder: Path, count: int) -> None:
    """Write grey pictures of 28 x 28."""
    chance = np.random.default_rng(0)
    for number in range(count):
        path = folder / ("train" if number % 50 else "test") / str(number % 10) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(chance.integers(0, 256, (28, 28), np.uint8)).save(path)


def staged(folder: Path, uri: str, *options: str) -> None:
    """Stage with dtj, and remove the folder. Raises RuntimeError."""
    if stage.main([str(folder), uri, "--shard-megabytes=32", *options]):
        raise RuntimeError(f"{folder} can't be staged")
    shutil.rmtree(folder)


def copied(source: str, target: str, copies: int, folder: Path) -> None:
    """Make a set of a set's shards, each several times."""
    old, new = open_store(source), open_store(target)
    index = DataIndex.from_json(old.get_bytes(INDEX_NAME))
    split, path = index.splits["train"], folder / "shard"
    shards, blocks = list[Shard](), list[Block]()
    for number, shard in enumerate(split.shards):
        old.get_file(shard.key, path)
        for copy in range(copies):
            key = f"train/{copy}-{number}.tar"
            new.put_file(key, path)
            at = len(shards)
            shards.append(replace(shard, key=key))
            blocks += [replace(block, shard=at) for block in split.blocks if block.shard == number]
    path.unlink()
    new.put_bytes(
        INDEX_NAME, replace(index, splits={"train": SplitIndex(tuple(shards), tuple(blocks))}).to_json()
    )


def rivals_python() -> str:
    """The interpreter of the rivals' environment, which is made if needed."""
    folder = Path.home() / ".cache/dtj/bench-data"
    python = folder / "bin/python"
    if not (folder / "made").exists():
        note("making the environment of the other libraries")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-compile"]
        subprocess.run([*pip, "--constraint", str(ROOT / "constraints.txt"), *PINS], check=True)
        (folder / "made").write_text(" ".join(PINS))
    return str(python)


def read(python: str, program: str, uri: str, *options: str, **environment: str) -> dict[str, Any]:
    """Run a program to its end; what it tells. Raises RuntimeError with its last line."""
    command = [python, "-m", "tests.bench.data_readers", program, uri, *options]
    path = os.pathsep.join((str(ROOT / "trainer"), str(ROOT)))
    ended = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    if ended.returncode:
        raise RuntimeError(f"{program}: {(ended.stderr.strip() or 'no output').splitlines()[-1]}")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def in_turn(uri: str, rounds: int) -> tuple[Figures, list[str]]:
    """The examples a second of each program, the median of the rounds; and what did not run, with its error."""
    rates: dict[str, list[float]] = {}
    failures: dict[str, str] = {}
    rivals = rivals_python()
    programs: list[tuple[str, str, str, list[str]]] = [
        (sys.executable, "raw", "GETs", []),
        (sys.executable, "decoding", "decoding alone", []),
    ]
    for decode in ([], ["--decode"]):
        kind = ", decoded" if decode else ""
        programs.append((sys.executable, "dtj", f"dtj{kind}", decode))
        for rival in RIVALS:
            for workers in (0, WORKERS) if rival != "grain" else (0,):
                programs.append((rivals, rival, f"{rival}{kind}", [*decode, f"--workers={workers}"]))
    for number in range(rounds):
        for python, program, name, options in programs:
            label = " ".join((name, *options[-1:])) if python == rivals else name
            if label in failures:
                continue
            try:
                found = read(python, program, uri, *options)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                failures[label] = str(error)
                continue
            rates.setdefault(label, []).append(found["examples"] / found["seconds"])
            note(f"round {number + 1}: {label}: {rates[label][-1]:.0f} examples/s")
    medians = {label: median(found) for label, found in rates.items()}
    best: Figures = {}
    for label, rate in medians.items():  # Of a rival, the better of no and two workers.
        name = label.partition(" --")[0]
        best[name] = max(rate, best.get(name, 0.0))
    return best, [f"{label} does not run: {error}" for label, error in failures.items()]


def limited(uri: str, endpoint: str, folder: Path) -> Figures:
    """GETs from a limited store, and dtj's second epoch beside this store."""
    address = urlsplit(endpoint)
    assert address.hostname
    assert address.port
    with slow_store(
        address.hostname, address.port, megabytes_per_second=LIMIT_MEGABYTES, delay=DELAY_SECONDS
    ) as slow:
        found = {
            name: read(sys.executable, program, uri, AWS_ENDPOINT_URL_S3=slow, **cache)
            for name, program, cache in (
                ("limited GETs", "raw", {}),
                ("first epoch", "dtj", {"BENCH_CACHE": str(folder)}),
                ("cached epoch", "dtj", {"BENCH_CACHE": str(folder)}),
            )
        }
    shutil.rmtree(folder)
    return {name: told["examples"] / told["seconds"] for name, told in found.items()}


def memory(uri: str, *options: str) -> float:
    """The most memory of the second half of an epoch, to that of the first half."""
    told = read(sys.executable, "dtj", uri, *options)
    note(f"{uri}: {told['examples']} examples, {told['second_half'] / 1e6:.0f} MB of memory")
    return float(told["second_half"] / told["first_half"])


def most_memory(uri: str) -> float:
    """The most memory of an epoch. At its end, all blocks in memory are loaded, in a small and in a large set."""
    told = read(sys.executable, "dtj", uri)
    most = float(max(told["first_half"], told["second_half"]))
    note(f"{uri}: {told['examples']} examples, {most / 1e6:.0f} MB of memory")
    return most


@contextmanager
def store_below(folder: Path) -> Iterator[str]:
    """An object store; its endpoint, to which this process's environment points."""
    with object_store(folder) as store:
        os.environ.update(store.environment)
        yield store.environment["AWS_ENDPOINT_URL_S3"]


def measured(folder: Path, given: argparse.Namespace) -> tuple[Figures, list[str]]:
    """All figures."""
    uri, large, small = (f"s3://{BUCKET}/{name}" for name in ("photographs", "large", "small"))
    with store_below(folder) as endpoint:
        photographs(folder / "photographs", int(given.megabytes * 1e6))
        staged(folder / "photographs", uri)
        figures, failures = in_turn(uri, given.rounds)
        figures |= limited(uri, endpoint, folder / "cache")
        small_files(folder / "small", given.small_files)
        staged(folder / "small", small, "--channels=1")
        figures["memory, small files"] = memory(small, "--decode")
        copied(uri, large, given.copies, folder)
        figures["memory, large"] = most_memory(large) / most_memory(uri)
    figures |= class_order.figures(folder)
    figures["dtj/GETs"] = figures["dtj"] / figures["GETs"]
    figures["cached/limited"] = figures["cached epoch"] / figures["limited GETs"]
    figures["decoded/slower"] = figures["dtj, decoded"] / min(figures["GETs"], figures["decoding alone"])
    for kind in ("", ", decoded"):
        for rival in RIVALS:
            if f"{rival}{kind}" in figures:
                figures[f"dtj/{rival}{kind}"] = figures[f"dtj{kind}"] / figures[f"{rival}{kind}"]
    return figures, failures


def main() -> int:
    """Measure and print; 1 where a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--megabytes", type=float, default=MEGABYTES, help="of photographs (default: %(default)s)"
    )
    parser.add_argument(
        "--copies", type=int, default=LARGE_COPIES, help="of them in the large set (default: %(default)s)"
    )
    parser.add_argument("--small-files", type=int, default=SMALL_FILES, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    given = parser.parse_args()
    before = machine()
    with TemporaryDirectory(prefix="dtj-bench-") as name:
        figures, failures = measured(Path(name), given)
    print(
        f"{before}\n\n{given.megabytes:.0f} MB of JPEGs in shards; examples a second, and ratios. The limited store: "
        f"{LIMIT_MEGABYTES:.0f} MB/s, {DELAY_SECONDS * 1e3:.0f} ms.\n"
    )
    print(table({"figure": figures}))
    print("\n".join(["", *failures, *(lines := verdicts(targets(), figures))]))
    return int(any(line.endswith("missed") for line in lines))


if __name__ == "__main__":
    sys.exit(main())

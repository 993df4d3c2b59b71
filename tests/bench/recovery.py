"""`python -m tests.bench.recovery`: seconds from the SIGKILL of a rank to its next step, by how ranks start again.

Each kind is a `dtj run` of a program that knows nothing of dtj. The kinds alternate, and the seed draws the ranks.
The floor is the same program in two interpreters that have imported everything and wait, without dtj.

Then: the steps a second of a program that never pauses, with and without waiting interpreters.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from tests.bench.figures import table
from tests.bench.machine import machine
from tests.bench.targets import Target, verdicts

NEW_PODS, COLD, SPARE, FLOOR = "new pods", "in place, cold", "in place, spare", "floor"
SOON = "in place, killed soon"
POLICIES = {
    NEW_PODS: {"restartStrategy": "Recreate"},
    COLD: {"restartStrategy": "InPlaceRestart", "warmSpare": "Never"},
    SPARE: {"restartStrategy": "InPlaceRestart", "warmSpare": "Auto"},
    # The kill does not wait until the spares are ready, but for a checkpoint alone.
    SOON: {"restartStrategy": "InPlaceRestart", "warmSpare": "Auto"},
}
PROGRAM = str(Path(__file__).with_name("recovery_program.py"))
PROGRAMS = {
    "TorchDistributed": ("TorchDistributed", ["python", PROGRAM, "ddp"]),
    "Horovod": ("Horovod", ["python", PROGRAM, "horovod"]),
    "torchrun": ("TorchDistributed", ["torchrun", PROGRAM, "ddp"]),
}
"""The strategy and the command of each program."""
KINDS = {
    "TorchDistributed": (*POLICIES, FLOOR),
    "Horovod": tuple(POLICIES),
    "torchrun": (NEW_PODS, COLD),
}
"""torchrun starts the ranks, so that no spare of dtj can."""
OF_NEW_PODS = {"TorchDistributed": 0.10, "Horovod": 0.15}
TARGETS = tuple(
    Target(f"{strategy}/{kind}/new-pods", f"{strategy}, {kind}/{NEW_PODS}", bound, of_a_ratio=True)
    for strategy, spare in OF_NEW_PODS.items()
    for kind, bound in ((SPARE, spare), (COLD, 0.4))
) + tuple(
    Target(f"{strategy}/steps a second", f"{strategy}, steps with spares/without", 0.99, True, True)
    for strategy in OF_NEW_PODS
)
WORKERS = 2
WITHOUT_PAUSE = {"STEP_SECONDS": "0", "SAVES_EVERY": "3000"}
_LOOKS_SECONDS = 0.01
_LONGEST_SECONDS = 180.0
_COMPLETE_SECONDS = 3.0
"""A file that was renamed into the folder so long ago is part of a checkpoint that counts."""
_IMPORTED_BYTES = 150_000_000
"""A spare that has imported PyTorch has more memory, and one that has just started has less."""

# What the interpreters of the floor do: import, say so, and run the program when its arguments come.
_WAITING = """
import json, os, runpy, sys
import torch, torch._dynamo, torch.distributed, torch.nn.parallel
print("ready", flush=True)
given = json.loads(sys.stdin.readline())
os.environ.update(given["environment"])
sys.argv = given["words"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def until(holds: Callable[[], Any], what: str) -> Any:
    """Wait for a condition; return its value."""
    deadline = time.monotonic() + _LONGEST_SECONDS
    while not (value := holds()):
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(_LOOKS_SECONDS)
    return value


@dataclass(frozen=True)
class Steps:
    """The file to which ranks append their steps."""

    file: Path

    def read(self) -> list[dict[str, Any]]:
        """Return the steps so far. A line that is not whole yet is left out."""
        text = self.file.read_text() if self.file.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def pids(self) -> dict[int, int]:
        """Return the processes of the last steps, by rank."""
        return {each["rank"]: each["pid"] for each in self.read()}

    def kill(self, rank: int) -> float:
        """Kill a rank; return the seconds until that rank's next step."""
        known = {each["pid"] for each in self.read()}
        began = time.time()
        os.kill(self.pids()[rank], signal.SIGKILL)

        def again() -> dict[str, Any] | None:
            new = (each for each in self.read() if each["rank"] == rank and each["pid"] not in known)
            return next(new, None)

        return float(until(again, f"rank {rank} trains again")["time"]) - began


@contextlib.contextmanager
def run_of(
    program: str, kind: str, folder: Path, environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[tuple[Steps, Callable[[], bool]]]:
    """Run a job of one kind; yield its steps, and whether the next failure may be treated as the kind says."""
    steps = Steps(folder / "steps.jsonl")
    name = "recovery"
    strategy, command = PROGRAMS[program]
    job = {
        "apiVersion": "dtj.dev/v1alpha1",
        "kind": "DistributedTrainingJob",
        "metadata": {"name": name},
        "spec": {
            "strategy": strategy,
            "image": "any",
            "command": [*command, "/dtj/checkpoints", str(steps.file)],
            "env": [
                {"name": name, "value": value}
                for name, value in {"OMP_NUM_THREADS": "1", **environment}.items()
            ],
            "replicaSpecs": {"worker": {"replicas": WORKERS}},
            "runPolicy": {"backoffLimit": 1000, **POLICIES[kind]},
        },
    }
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    home = folder / "home"
    began = time.time()

    def ready() -> bool:
        """Whether there is a checkpoint that no restart began with, and all spares have imported."""
        nonlocal began
        if has_saved(home, began) and (kind != SPARE or len(spares(folder)) == WORKERS):
            began = time.time()
            return True
        return False

    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [Path(sys.executable).with_name("dtj"), "run", file],
            env={**os.environ, "DTJ_HOME": str(home)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            until(lambda: len(steps.pids()) == WORKERS, "the first steps")
            yield steps, ready
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def has_saved(folder: Path, began: float) -> bool:
    """Return whether the program has saved a checkpoint since then, which counts."""
    with contextlib.suppress(FileNotFoundError):
        times = [each.stat().st_mtime for each in folder.glob("**/checkpoints/step-*.pt")]
        return any(began < saved < time.time() - _COMPLETE_SECONDS for saved in times)
    return False


def processor_seconds(pid: int) -> float:
    """Return the processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def spares(folder: Path) -> list[int]:
    """Return the spares of the run in a folder that wait with all imports done: without a thread at idle priority."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes()
            if (
                b"spare_program.py\0wait:" in words
                and os.getpgid(pid := int(process.name)) != pid  # Not a spare that became the program.
                and bytes(folder) in words + (process / "environ").read_bytes()
            ):
                threads = [int(each.name) for each in (process / "task").iterdir()]
                resident = int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
                idle = any(os.sched_getscheduler(each) == os.SCHED_IDLE for each in threads)
                if resident > _IMPORTED_BYTES and not idle:
                    found.append(pid)
    return found


@contextlib.contextmanager
def floor(folder: Path) -> Iterator[Callable[[], float]]:
    """Yield what kills two ranks that were started by hand, and returns the seconds to the first step of new ones."""
    steps = Steps(folder / "steps.jsonl")
    (folder / "checkpoints").mkdir()
    running: list[subprocess.Popen[str]] = []
    waiting: list[subprocess.Popen[str]] = []
    ports = iter(range(random.randrange(20000, 30000), 32000))

    def prepare() -> None:
        for _ in range(WORKERS):
            waiting.append(
                subprocess.Popen(
                    [sys.executable, "-c", _WAITING],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
            )
        for each in waiting:
            assert each.stdout is not None
            each.stdout.readline()

    def begin() -> None:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(next(ports)), "WORLD_SIZE": str(WORKERS)}
        for rank, each in enumerate(waiting):
            words = [PROGRAM, "ddp", str(folder / "checkpoints"), str(steps.file)]
            assert each.stdin is not None
            each.stdin.write(json.dumps({"environment": {**place, "RANK": str(rank)}, "words": words}) + "\n")
            each.stdin.flush()
        running[:], waiting[:] = waiting, []

    def kill() -> float:
        prepare()
        known = {each["pid"] for each in steps.read()}
        began = time.time()
        for each in running:
            each.kill()
            each.wait()
        begin()
        first = until(lambda: [each for each in steps.read() if each["pid"] not in known][:1], "the floor")
        return float(first[0]["time"]) - began

    try:
        prepare()
        begin()
        until(lambda: len(steps.pids()) == WORKERS, "the first steps")
        yield kill
    finally:
        for each in (*running, *waiting):
            each.kill()
            each.wait()


def measured(program: str, kind: str, kills: int, draw: random.Random) -> list[float]:
    """Return the seconds of some kills in one run."""
    with tempfile.TemporaryDirectory() as place:
        if kind == FLOOR:
            with floor(Path(place)) as kill:
                return [kill() for _ in range(kills)]
        with run_of(program, kind, Path(place)) as (steps, ready):
            took = []
            for _ in range(kills):
                until(ready, f"{kind}: a new checkpoint")
                took.append(steps.kill(draw.randrange(WORKERS)))
            return took


def repeated(program: str, kind: str, kills: int, draw: random.Random) -> list[float]:
    """Return the seconds of some kills. New pods wait longer after each failure of a job: measure first failures."""
    if kind == NEW_PODS:
        return [took for _ in range(kills) for took in measured(program, kind, 1, draw)]
    return measured(program, kind, kills, draw)


def steps_a_second(program: str, kind: str, seconds: float) -> tuple[float, float]:
    """Return the steps a second of a program that never pauses, once its spares have imported, and the processor
    seconds that the spares take meanwhile.
    """
    with (
        tempfile.TemporaryDirectory() as place,
        run_of(program, kind, Path(place), WITHOUT_PAUSE) as (steps, ready),
    ):
        until(ready, f"{kind}: a new checkpoint")
        waiting = spares(Path(place))
        begin, end = time.time(), time.time() + seconds
        took = -sum(map(processor_seconds, waiting))
        time.sleep(seconds)
        took += sum(map(processor_seconds, waiting))
        time.sleep(1)
        made = [each for each in steps.read() if each["rank"] == 0 and begin <= each["time"] < end]
        return len(made) / seconds, took


def main() -> int:
    """Print each program's medians and verdicts; 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="of each kind")
    parser.add_argument("--kills-of-a-run", type=int, default=5)
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=[*PROGRAMS])
    parser.add_argument("--kinds", nargs="+", choices=(*POLICIES, FLOOR), default=[*POLICIES, FLOOR])
    parser.add_argument("--pairs", type=int, default=5, help="of measurements of the steps a second")
    parser.add_argument("--pair-seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=46)
    given = parser.parse_args()
    print(machine(), flush=True)
    draw = random.Random(given.seed)
    took: dict[str, list[float]] = {}
    for _ in range(given.kills // given.kills_of_a_run):
        for program in given.programs:
            for kind in KINDS[program]:
                if kind in given.kinds:
                    new = repeated(program, kind, given.kills_of_a_run, draw)
                    took.setdefault(f"{program}, {kind}", []).extend(new)
                    print(f"{program}, {kind}:", *(f"{each:.2f}" for each in new), flush=True)
    figures = {name: statistics.median(values) for name, values in took.items()}
    columns = {
        "median, s": figures,
        "shortest, s": {name: min(values) for name, values in took.items()},
        "longest, s": {name: max(values) for name, values in took.items()},
    }
    ratios = {
        f"{program}, {kind}/{NEW_PODS}": figures[f"{program}, {kind}"] / figures[f"{program}, {NEW_PODS}"]
        for program in given.programs
        for kind in (COLD, SPARE, SOON, FLOOR)
        if {f"{program}, {kind}", f"{program}, {NEW_PODS}"} <= figures.keys()
    }
    print(table(columns))
    for program in given.programs:
        rates: dict[str, list[float]] = {COLD: [], SPARE: []}
        for _ in range(given.pairs if SPARE in KINDS[program] else 0):
            for kind in draw.sample([*rates], 2):
                rate, seconds = steps_a_second(program, kind, given.pair_seconds)
                rates[kind].append(rate)
                told = f", spares took {seconds:.2f} s" if kind == SPARE else ""
                print(f"{program}, {kind}: {rate:.0f} steps a second{told}", flush=True)
        if rates[SPARE]:
            pairs = zip(rates[SPARE], rates[COLD], strict=True)
            ratios[f"{program}, steps with spares/without"] = statistics.median(a / b for a, b in pairs)
    lines = verdicts(TARGETS, ratios)
    print(*lines, sep="\n")
    return int(any(line.endswith("missed") for line in lines))


if __name__ == "__main__":
    sys.exit(main())

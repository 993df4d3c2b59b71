"""`python -m tests.bench.output_reading`: the agent's CPU for 1 GB of output, with and without reading it."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from dtj_trainer.background import Background
from dtj_trainer.curves.curves import Curves
from dtj_trainer.launch.output import LastLines, LogFile, lines_of
from tests.bench.machine import machine
from tests.bench.targets import Target, verdicts

GIGABYTE = 1_000_000_000
LINE = "iter 100: loss 3.2165, time 23.45ms, mfu 12.34%"
TARGETS = (Target("reading/not-reading", "reading/not-reading", 1.1, at_least=False, of_a_ratio=True),)


def agent(folder: Path, *, reads: bool, size: int) -> float:
    """Take the output of a program as the agent does; return the CPU seconds."""
    begun = resource.getrusage(resource.RUSAGE_SELF)
    background, log = Background(), LogFile(folder / "rank-0.log", kept=2)
    if reads:
        Curves(
            folder / "metrics.jsonl",
            folder / "progress.json",
            [folder / "rank-0.log"],
            lambda: [folder],
            1,
            utilisation=folder / "utilisation",
        ).start(background)
    last = LastLines(200)
    with (
        subprocess.Popen(["yes", LINE], stdout=subprocess.PIPE) as program,
        subprocess.Popen(["head", "-c", str(size)], stdin=program.stdout, stdout=subprocess.PIPE) as cut,
    ):
        assert program.stdout is not None
        assert cut.stdout is not None
        program.stdout.close()
        for lines in lines_of(cut.stdout.fileno()):
            log.write(lines)
            last.add(lines)
    background.close()
    ended = resource.getrusage(resource.RUSAGE_SELF)
    return ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime


def measured(*, reads: bool, size: int) -> float:
    """The same in a process of its own."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        words = [sys.executable, "-m", __spec__.name, folder, str(int(reads)), str(size)]
        return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def main() -> int:
    """Measure alternating pairs."""
    ratios = []
    print(machine())
    for number in range(int(os.environ.get("ROUNDS", "6"))):
        order = (True, False) if number % 2 else (False, True)
        begun = time.monotonic()
        found = {reads: measured(reads=reads, size=GIGABYTE) for reads in order}
        ratios.append(found[True] / found[False])
        print(
            f"reading {found[True]:.2f} s of CPU, not reading {found[False]:.2f} s, ratio {ratios[-1]:.3f}, "
            f"{time.monotonic() - begun:.0f} s",
            flush=True,
        )
    lines = verdicts(TARGETS, {"reading/not-reading": statistics.median(ratios)})
    print(*lines, sep="\n")
    return any(line.endswith("missed") for line in lines)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(agent(Path(sys.argv[1]), reads=sys.argv[2] == "1", size=int(sys.argv[3])))
    else:
        sys.exit(main())

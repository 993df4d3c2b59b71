"""`python -m tests.stages`: all stages of `make test`, in two lanes beside each other.

One lane computes: lint, and the tests of operator, chart and trainer. The other lane mostly waits: it brings up a
cluster and runs the cluster's tests. The output of each stage is in build/test/STAGE.log, and is printed whole where
the stage fails. Where the time went is printed at the end and kept in build/test/times.txt.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests import processor_time
from tests.cluster.progress import note
from tests.stage_times import FOLDER, failures, growth, report_file, table, timed

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Stage:
    """A command of one lane."""

    name: str
    command: Sequence[str]
    ends_all: bool = False
    """Without this stage the others say nothing: they are stopped when it fails."""
    counts_itself: bool = False
    """The stage has parts, whose processor seconds are counted each."""


def lanes(cluster: str) -> tuple[tuple[Stage, ...], ...]:
    """The stages in their order, by lane."""
    return (
        (
            Stage("lint", ("make", "lint"), ends_all=True),
            Stage("unit", ("make", "test-unit")),
            Stage("chart", ("make", "test-chart")),
            Stage("trainer", ("make", "test-trainer")),
        ),
        # tests.cluster.run times its own stages: cluster-up, cluster-install and two runs of pytest.
        (
            Stage(
                "cluster",
                (sys.executable, "-m", "tests.cluster.run", "--cluster", cluster),
                counts_itself=True,
            ),
        ),
    )


class Run:
    """The stages that run, have passed and have failed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ended = threading.Event()
        self.failed: list[str] = []

    def lane(self, stages: Sequence[Stage]) -> None:
        """Run the stages one after the other, also after one that failed."""
        for stage in stages:
            if not self._ended.is_set():
                self._run(stage)

    def end(self) -> None:
        """Stop what runs; nothing more is begun."""
        with self._lock:
            self._ended.set()
            for process in self._running.values():
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)

    def _run(self, stage: Stage) -> None:
        log = FOLDER / f"{stage.name}.log"
        note(f"{stage.name} … (tail -f {log.relative_to(ROOT)})")
        environment = os.environ | {"PYTEST_ADDOPTS": _addopts(stage.name)}
        with timed(stage.name, used=lambda: self._used(stage)), log.open("wb") as output:
            with self._lock:
                if self._ended.is_set():
                    return
                process = subprocess.Popen(
                    processor_time.in_group(stage.name, stage.command),
                    cwd=ROOT, env=environment,
                    stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, process_group=0,
                )  # fmt: skip
                self._running[stage.name] = process
            code = process.wait()
        processor_time.remove(stage.name)
        with self._lock:
            del self._running[stage.name]
            text = log.read_text(errors="replace")
            if code == 0:
                # The closing line of each pytest, or the last words of another tool.
                closing = [line for line in text.splitlines() if " passed" in line] or text.splitlines()[-1:]
                print(f"{stage.name}:", *closing, sep="\n", flush=True)
                return
            self.failed.append(stage.name)
            print(f"{text}\n{stage.name} failed with {code}; the output above is that of {log}", flush=True)
        if stage.ends_all:
            self.end()

    def _used(self, stage: Stage) -> float | None:
        return None if stage.counts_itself else processor_time.of_stage(stage.name)


def _addopts(stage: str) -> str:
    # The cluster's stage is more than one pytest, each with a report of its own.
    own = [] if stage == "cluster" else [f"--junitxml={report_file(stage)}"]
    return " ".join([*own, *filter(None, [os.environ.get("PYTEST_ADDOPTS")])])


def main() -> int:
    """0 when all stages passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", choices=("local", "kind"), default="local")
    options = parser.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    run = Run()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: run.end())
    threads = [threading.Thread(target=run.lane, args=(stages,)) for stages in lanes(options.cluster)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times = "\n".join([table(), *growth()])
    (FOLDER / "times.txt").write_text(f"{times}\n")
    print(times)
    if run.failed:
        # Last, because whoever keeps only the end of a long output looks for the reason there.
        print("", *failures(), sep="\n", flush=True)
        note(f"failed: {', '.join(run.failed)}")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())

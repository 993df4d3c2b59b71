"""`python -m tests.bench.week --days 7`: uploads and costs of a pod in a week, by the real code and a fake clock.

In the hours whose processor time is measured, the first two and the last, the uploader makes a pass each second as in
a pod, and in the other hours one each 10 seconds. The bucket takes 100 MB/s, and keeps sizes only. The processor time
of a pass is real, but without signatures and TLS.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from dtj_trainer import contract
from dtj_trainer.artifacts.fence import Fence
from dtj_trainer.artifacts.file_upload import FileUploader, PodFiles, pod_sources
from dtj_trainer.artifacts.growing import AGAIN_AT_ONCE_BYTES
from dtj_trainer.artifacts.segments import rotated, rotated_numbers
from dtj_trainer.launch.output import Lines, LogFile
from dtj_trainer.tensorboard import ScalarWriter
from dtj_trainer.train.report import MetricsFile
from dtj_trainer.utilisation.figures import ProgramFigures, Recorder, Sample, pause
from dtj_trainer.utilisation.readings import DiskReading, GpuReading
from tests.bench.figures import table
from tests.bench.machine import machine
from tests.bench.targets import Target, verdicts
from tests.bench.week_sink import Clock, Sink
from tests.cluster.progress import note

HOUR, DAY = 3600, 86_400
WEEK = 7 * DAY
GIGABYTE = 1e9
"""A week may cost so much besides what is written; of it, AGAIN_AT_ONCE_BYTES may go in the first hours."""
STEP_SECONDS = 10
REPORT_SECONDS = 5
"""The operator asks for /progress so often."""
Write = Callable[[int, int], None]
"""What a program writes from one second to another."""


@dataclass(frozen=True)
class Kind:
    """A pod: its part, and what its program writes below the workspace and prints."""

    part: contract.Part
    program: Callable[[Path, Callable[[bytes], None], Clock], Write]


def _metrics_and_events(workers: int) -> Callable[[Path, Callable[[bytes], None], Clock], Write]:
    """Of a built-in program: a line and three scalars each two seconds; a chief's lines have all its workers."""

    def begin(root: Path, say: Callable[[bytes], None], clock: Clock) -> Write:
        metrics = MetricsFile(4, root / contract.METRICS_FILE)
        events = ScalarWriter(root / contract.TENSORBOARD, clock=clock.monotonic)
        of_workers = {
            f"worker-{number}": {"examples": 1234, "seconds": "x" * 90} for number in range(workers)
        }

        def write(since: int, until: int) -> None:
            for second in range(since + since % 2, until, 2):
                loss = 1 / (second + 1)
                metrics.add("train", {"step": second, "loss": loss, "examples": second * 64, **of_workers})
                events.add(second, {"train/loss": loss, "train/rate": 1234.5, "train/accuracy": 0.5})
                say(b"step %10d of 1000000: loss 0.12345, accuracy 0.98765, 1234.5 examples/s, epoch 12, 1 h left\n"
                    % second)  # fmt: skip

        return write

    return begin


def _progress_bar(_root: Path, say: Callable[[bytes], None], _clock: Clock) -> Write:
    """1 kB/s."""

    def write(since: int, until: int) -> None:
        for second in range(since, until):
            say(b"".join(b"\r%90d/604800 [..]" % (10 * second + tenth) for tenth in range(10)))
            if second % 1000 == 999:
                say(b"\n")

    return write


def _plain_log(_root: Path, say: Callable[[bytes], None], _clock: Clock) -> Write:
    """1 kB/s of whole lines."""

    def write(since: int, until: int) -> None:
        for second in range(since, until):
            say(b"".join(b"%98d\n" % (10 * second + tenth) for tenth in range(10)))

    return write


def _one_event_file(root: Path, say: Callable[[bytes], None], _clock: Clock) -> Write:
    """As torch's and TensorFlow's SummaryWriter: one file for the whole run, 150 B/s; and a log."""
    writer = ScalarWriter(root / contract.TENSORBOARD, rotate_seconds=1e12, rotate_bytes=1 << 60)

    def write(since: int, until: int) -> None:
        for second in range(since, until):
            writer.add(second, {f"train/a/long/name/{n}": 1.0 for n in range(4)})
        say(b"step %d\n" % since)

    return write


KINDS = {
    "horovod-rank-0": Kind("primary", _metrics_and_events(0)),
    "progress-bar": Kind("other", _progress_bar),
    "plain-log": Kind("other", _plain_log),
    "chief-of-8": Kind("primary", _metrics_and_events(8)),
    "foreign-events": Kind("primary", _one_event_file),
}


SAMPLE = Sample(
    seconds=15.0,
    programs={
        str(rank): ProgramFigures(1.234, 5, 12_345_678_901, 1_234_567_890, 123_456_789, 123_456_789)
        for rank in range(8)
    },
    cores=12.345,
    cpu_limit=16.0,
    memory=123_456_789_012,
    memory_limit=137_438_953_472,
    disk=DiskReading(123_456_789_012, 270_553_174_016),
    gpus={str(gpu): GpuReading(0.93, 51_234_567_890, 85_520_809_984, 612.345) for gpu in range(8)},
)
"""Of a pod with eight ranks and GPUs."""


class SimulatedPod:
    """A pod whose seconds are given to it."""

    def __init__(self, kind: Kind, root: Path) -> None:
        self.clock = Clock()
        self.sink = Sink(self.clock)
        self.root = root
        self.log = root / contract.LOGS / "rank-0.log"
        fence = Fence(self.sink, contract.CLAIM_FILE, 1) if kind.part == "primary" else None
        if fence:
            fence.hold()
        files = PodFiles(root, root, kind.part, 1, (self.log.name,), "worker-0")
        self.uploader = FileUploader(self.sink, pod_sources(files, fence), self.clock)
        self.cpu = 0.0
        """Seconds of what is dtj-launch's: output, passes and reports."""
        self.printed = 0
        self.logged = 0
        self._lines = Lines(self.clock.monotonic)
        self._log = LogFile(self.log)
        self._write = kind.program(root, self._say, self.clock)
        self._recorder = Recorder(root, "worker-0", 1, self.clock.monotonic)
        self._sampled_at = 0.0

    def pass_seconds(self, since: int, until: int) -> None:
        """What happens in some seconds, and a pass at their end."""
        self._write(since, until)
        self.clock.reach(until)
        begun = time.process_time()
        if until >= self._sampled_at + pause(self._sampled_at, 0.0):
            self._sampled_at = until
            self._recorder.add(SAMPLE, until)
        self.uploader.upload_pass(ended=False, died_ns=None)
        if until % REPORT_SECONDS == 0:
            self.uploader.uploaded_below(contract.MODEL)
            self.uploader.uploaded_below(contract.TENSORBOARD)
        self.cpu += time.process_time() - begun

    def end(self) -> bool:
        """The last pass; whether all is uploaded."""
        return self.uploader.upload_pass(ended=True, died_ns=None)

    @property
    def written(self) -> int:
        """Bytes that the program wrote below its workspace, those of its log included that are removed."""
        paths = (path for path in self.root.rglob("*") if path.is_file() and path.parent != self.log.parent)
        return self.logged + sum(path.stat().st_size for path in paths)

    @property
    def disk(self) -> int:
        """Bytes of the log on the pod's disk."""
        files = [self.log, *(rotated(self.log, number) for number in rotated_numbers(self.log))]
        return sum(file.stat().st_size for file in files if file.exists())

    def _say(self, block: bytes) -> None:
        self.printed += len(block)
        begun = time.process_time()
        lines = self._lines.take(block)
        self.logged += len(lines)
        self._log.write(lines)
        self.cpu += time.process_time() - begun


def allowed_bytes(written: int, seconds: int) -> float:
    """What a pod that wrote so many bytes may send: 1.2 times as much, and 1 GB a week."""
    return 1.2 * written + AGAIN_AT_ONCE_BYTES + (GIGABYTE - AGAIN_AT_ONCE_BYTES) * seconds / WEEK


def allowed_objects(seconds: int) -> float:
    """3,000 a week."""
    return 3000 * seconds / WEEK


def simulated(kind: Kind, root: Path, seconds: int) -> dict[str, float]:
    """The figures of one pod after so many seconds."""
    pod = SimulatedPod(kind, root)
    marks: dict[int, tuple[float, float]] = {}
    second, last_hour = 0, seconds // HOUR
    while second < seconds:
        measured = second // HOUR in (0, 1, last_hour - 1)
        step = 1 if measured else STEP_SECONDS
        pod.pass_seconds(second, second + step)
        second += step
        if second % HOUR == 0:
            marks[second // HOUR] = (pod.cpu, _memory_megabytes())
            note(f"hour {second // HOUR}: {pod.sink.bytes / 1e6:.0f} MB in {len(pod.sink.sizes)} objects")
    if not pod.end():
        raise RuntimeError("the last pass left something")
    last = max(marks)
    written = pod.written
    return {
        "printed, MB": pod.printed / 1e6,
        "written, MB": written / 1e6,
        "sent, MB": pod.sink.bytes / 1e6,
        "may be sent, MB": allowed_bytes(written, seconds) / 1e6,
        "lost, bytes": written - pod.sink.kept,
        "objects": len(pod.sink.sizes),
        "may be objects": allowed_objects(seconds),
        "puts": pod.sink.puts,
        "log on disk, MB": pod.disk / 1e6,
        "CPU at the start, % of a core": (marks[2][0] - marks[1][0]) / HOUR * 100,
        "CPU at the end, % of a core": (marks[last][0] - marks[last - 1][0]) / HOUR * 100,
        "memory at the start, MB": marks[1][1],
        "memory at the end, MB": marks[last][1],
        "memory, grown by MB": marks[last][1] - marks[1][1],
    }


def targets(name: str) -> Iterator[Target]:
    """What a pod is held to."""
    yield Target(f"week/{name}/bytes-sent", "sent, MB", lambda figures: figures["may be sent, MB"])
    yield Target(f"week/{name}/bytes-lost", "lost, bytes", 0, of_a_ratio=True)
    yield Target(f"week/{name}/objects", "objects", lambda figures: figures["may be objects"])
    yield Target(f"week/{name}/log-on-disk-MB", "log on disk, MB", 2 * 64 * 1.05, of_a_ratio=True)
    for when in ("start", "end"):
        yield Target(
            f"week/{name}/cpu-at-the-{when}-%", f"CPU at the {when}, % of a core", 1, of_a_ratio=True
        )
    yield Target(f"week/{name}/memory-grown-after-an-hour-MB", "memory, grown by MB", 8, of_a_ratio=True)


def _memory_megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def _in_a_process(name: str, seconds: int) -> dict[str, float]:
    with TemporaryDirectory(prefix="dtj-week-") as folder:
        return simulated(KINDS[name], Path(folder), seconds)


def main() -> None:
    """Exit code 1 where a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.week")
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--pods", nargs="+", choices=KINDS, default=list(KINDS))
    arguments = parser.parse_args()
    print(machine())
    columns, lines = {}, []
    for name in arguments.pods:
        note(name)
        # Each in a process of its own: the memory of one is not another's.
        with get_context("spawn").Pool(1) as pool:
            columns[name] = pool.apply(_in_a_process, (name, int(arguments.days * DAY)))
        lines += verdicts(targets(name), columns[name])
    print(table(columns))
    print("\n".join(lines))
    sys.exit(1 if any(line.endswith("missed") for line in lines) else 0)


if __name__ == "__main__":
    main()

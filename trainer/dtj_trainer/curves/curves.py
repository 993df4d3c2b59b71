"""Follows what a program reports of its training, adds rows to metrics.jsonl, and returns the progress.

The sources, the highest first: rows that the program writes itself, what it reports by `dtj_trainer.progress`, the
scalars of its TensorBoard event files, and its output. From the first row of a source on, lower ones add nothing more
in the attempt.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from dtj_trainer import contract, progress
from dtj_trainer.clock import now_text, text_of
from dtj_trainer.curves.event_scalars import EventFile, Scalar
from dtj_trainer.curves.output import OutputReader
from dtj_trainer.curves.reading import TrainingReading, loss_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dtj_trainer.background import Background

LOOK_SECONDS = 2.0
MOST_ROWS = 8
"""The most rows of kind `train` that one look adds. Of more, some between the first and the last are left out."""
MOST_OTHER_ROWS = 50
MOST_OUTPUT_BYTES = 8 * 1024
"""The most bytes of new output that one look reads: the newest ones."""
MARK_SECONDS, MOST_MARKS = 10.0, 30
"""Seconds between two kept marks of time and step, and the number of marks: the rate is that of five minutes."""
SEARCH_SECONDS = 30.0
MOST_ENTRIES, DEEPEST, MOST_FILES = 2000, 6, 16
"""Limits of the search for event files: entries of folders, levels below a folder, and event files of an attempt."""


class CurveSource(IntEnum):
    """Where rows come from; a higher one counts more."""

    OUTPUT = 1
    TENSORBOARD = 2
    REPORT = 3
    PROGRAM = 4

    @property
    def word(self) -> contract.Source:
        """The word of the contract."""
        return _WORDS[self]


_Rows = dict[str, dict[str, float]]
"""Values by kind of row and name."""
_OF_STEPS = ("step", "totalSteps", "percent", "etaSeconds", "stepsPerSecond")
_WORDS: dict[CurveSource, contract.Source] = {
    CurveSource.OUTPUT: "Output",
    CurveSource.TENSORBOARD: "TensorBoard",
    CurveSource.REPORT: "Report",
    CurveSource.PROGRAM: "Program",
}


class Curves:
    """The curves of one program in one attempt. `look` runs in one thread; `progress` may be called by any."""

    def __init__(
        self,
        metrics: Path,
        progress_file: Path,
        logs: Sequence[Path],
        folders: Callable[[], Iterable[Path]],
        attempt: int,
        *,
        utilisation: Path,
        output: contract.ReadOutput = "true",
    ) -> None:
        """`metrics`: the file that gets the rows. `logs`: where the output may be; the first that is there counts.

        `folders`: where the program may write event files. `utilisation`: the folder below which dtj writes its own.
        """
        self._metrics = metrics
        self._progress_file = progress_file
        self._log = _Tail(logs)
        self._folders = folders
        self._utilisation = utilisation
        self._attempt = attempt
        self._read_output = output
        self._output = OutputReader()
        self._began = time.time()
        self._events: dict[Path, EventFile] = {}
        self._searched = float("-inf")
        self._lock = threading.Lock()
        self._rows = _Tail([metrics])
        self._size: int | None = None
        self._source: CurveSource | None = None
        self._reported: object = None
        self._told: contract.Progress = {}
        self._lines = 0
        self._marks: deque[tuple[float, int]] = deque(maxlen=MOST_MARKS)

    def start(self, background: Background) -> None:
        """Look in the background."""
        self._size = _size(self._metrics)

        def follow() -> None:
            while not background.wait(LOOK_SECONDS):
                self.look()

        background.start(follow, "curves")

    def progress(self) -> contract.Progress:
        """Return the progress by TensorBoard or output; empty where neither says anything."""
        return self._told.copy()

    def begin_round(self) -> None:
        """Forget the progress: another program begins. Its rows follow those of the one before."""
        with self._lock:
            self._look()  # Read what the former program wrote, so that it is no progress of the next program.
            self._told, self._reported = {}, None
            self._marks.clear()
            self._output = OutputReader()
            self._lines = 0

    def look(self) -> None:
        """Read what is new, from the highest source down to the one that counts."""
        with self._lock:
            self._look()

    def look_last(self) -> None:
        """Look once more, for LOOK_SECONDS at most: a file server that hangs must not hold up the end of the pod."""
        last = threading.Thread(target=self.look, name="last-curves", daemon=True)
        last.start()
        last.join(LOOK_SECONDS)

    def _look(self) -> None:
        if _size(self._metrics) != (self._size or 0):
            self._source = CurveSource.PROGRAM  # The program writes its rows itself, and stays the source.
        if self._source is CurveSource.PROGRAM:
            with suppress(OSError):
                self._look_at_rows()
            return
        with suppress(OSError):
            self._look_at_report()
        if self._counts(CurveSource.TENSORBOARD):
            with suppress(OSError):
                self._look_at_events()
        if self._counts(CurveSource.OUTPUT) and self._read_output != "false":
            with suppress(OSError):
                self._look_at_output()

    def _counts(self, source: CurveSource) -> bool:
        return self._source is None or source >= self._source

    def _look_at_rows(self) -> None:
        readings = []
        for line in self._rows.lines():
            with suppress(ValueError, TypeError, AttributeError, OverflowError):
                row = json.loads(line)
                if row.get("kind", "train") == "train" and row.get("attempt", self._attempt) == self._attempt:
                    values = {name: float(row[name]) for name in ("loss",) if row.get(name) is not None}
                    reading = TrainingReading(int(row["step"]), None, row.get("epoch"), None, values)
                    readings.append((reading, rows_of(values)))
        if readings:
            self._tell(CurveSource.PROGRAM, readings)

    def _look_at_report(self) -> None:
        found, own = progress.read_with_values(self._progress_file)
        step = found.get("step")
        if step is None or step == self._reported:
            return
        self._reported = step
        values = {**own}
        for name in ("loss", "accuracy", "examplesPerSecond"):
            if (value := found.get(name)) is not None:
                values[name] = float(value)  # type: ignore[arg-type]
        self._add(
            CurveSource.REPORT,
            [(None, TrainingReading(step, found.get("totalSteps"), found.get("epoch"), None, values))],
        )

    def _look_at_events(self) -> None:
        now = time.monotonic()
        if now - self._searched >= SEARCH_SECONDS:
            self._searched = now
            for path in _event_files(self._folders(), self._utilisation, self._began):
                if len(self._events) < MOST_FILES:
                    self._events.setdefault(path, EventFile(path))
        scalars: list[Scalar] = []
        for path, file in list(self._events.items()):
            try:
                scalars += [one for one in file.more() if one.wall_time >= self._began]
            except OSError:
                del self._events[path]
        by_step: dict[int, list[Scalar]] = {}
        for one in scalars:
            by_step.setdefault(one.step, []).append(one)
        readings = []
        for step, found in by_step.items():
            values = {one.tag: one.value for one in found}
            epoch = values.pop("epoch", None)
            if step >= 0 and values:
                readings.append((found[-1].wall_time, TrainingReading(step, None, epoch, None, values)))
        self._add(CurveSource.TENSORBOARD, readings)

    def _look_at_output(self) -> None:
        readings = self._output.take(self._log.lines())
        if self._output.contradicted:
            # While the program prints, report progress without a step: contradictory steps must not look like a
            # stall, which would restart the job.
            if self._output.lines != self._lines or "step" in self._told:
                self._told = {"source": CurveSource.OUTPUT.word, "updatedTime": now_text()}
            self._lines = self._output.lines
            return
        self._add(CurveSource.OUTPUT, [(None, reading) for reading in readings])

    def _add(self, source: CurveSource, readings: Sequence[tuple[float | None, TrainingReading]]) -> None:
        """Add the rows of readings, and take the progress from the last. Times are in seconds since 1970."""
        if not readings:
            return
        self._source = source
        training: list[str] = []
        other: list[str] = []
        measured = [(at, reading, rows_of(reading.values)) for at, reading in readings]
        for at, reading, found in measured:
            # A progress bar without measures still shows a rate: it gets a row without values.
            for kind, values in (found or ({"train": {}} if reading.step is not None else {})).items():
                row = self._row(source, kind, at, reading, values)
                (training if kind == "train" else other).append(row)
        self._append([*_some(training, MOST_ROWS), *other[-MOST_OTHER_ROWS:]])
        # Skip values that the program reports itself: the job's status gets them from the progress file.
        if source is not CurveSource.REPORT:
            self._tell(source, [(reading, found) for _, reading, found in measured])

    def _row(
        self,
        source: CurveSource,
        kind: str,
        at: float | None,
        reading: TrainingReading,
        values: dict[str, float],
    ) -> str:
        row: dict[str, object] = {"kind": kind, "time": now_text() if at is None else text_of(at)}
        row["attempt"] = self._attempt
        if reading.step is not None:
            row["step"] = reading.step
        elif reading.examples is not None:  # A row needs a step: count examples or epochs in place of steps.
            row |= {"step": reading.examples, "unit": "examples"}
        else:
            row |= {"step": int(reading.epoch or 0), "unit": "epochs"}
        if reading.examples is not None:
            row["examples"] = reading.examples
        if reading.epoch is not None:
            row["epoch"] = reading.epoch
        return json.dumps({**row, "source": source.word, **values}) + "\n"

    def _append(self, rows: Sequence[str]) -> None:
        content = "".join(rows).encode()
        if not content:
            return
        try:
            with self._metrics.open("ab") as file:
                file.write(content)
            self._size = (self._size or 0) + len(content)
        except OSError:  # Go on with a full disk: the job's status still shows the progress.
            self._size = _size(self._metrics)

    def _tell(self, source: CurveSource, measured: Sequence[tuple[TrainingReading, _Rows]]) -> None:
        """Set the progress that the status shows from the newest readings and their rows."""
        told = self._told.copy()
        before = (told.get("step"), told.get("epoch"), told.get("loss"))
        readings = [reading for reading, _ in measured]
        if any(reading.anew for reading in readings):
            readings = readings[max(at for at, reading in enumerate(readings) if reading.anew) :]
            for name in _OF_STEPS:
                told.pop(name, None)  # type: ignore[misc]
            self._marks.clear()
        stepping = [reading for reading in readings if reading.step is not None and reading.leads]
        newest = max(stepping, key=lambda reading: reading.step or 0) if stepping else readings[-1]
        if newest.leads and newest.step is not None and newest.step >= told.get("step", 0):
            for name in _OF_STEPS:
                told.pop(name, None)  # type: ignore[misc]
            told["step"] = newest.step
            if newest.total is not None and newest.total >= newest.step:
                told["totalSteps"] = newest.total
            self._derive(told, newest.step)
        if newest.epoch is not None:
            told["epoch"] = int(newest.epoch)
        for _, rows in measured:
            if (loss := loss_of(rows.get("train", {}))) is not None:
                told["loss"] = loss
            for kind in ("validation", "test"):
                if (accuracy := rows.get(kind, {}).get("accuracy")) is not None and 0 <= accuracy <= 1:
                    told["accuracy"] = accuracy
        if (told.get("step"), told.get("epoch"), told.get("loss")) != before:
            told["updatedTime"] = now_text()
        trusted = source is CurveSource.OUTPUT and self._read_output == "trusted"
        told["source"] = "TrustedOutput" if trusted else source.word
        self._told = told

    def _derive(self, told: contract.Progress, step: int) -> None:
        now, total = time.monotonic(), told.get("totalSteps", 0)
        if not self._marks or now - self._marks[-1][0] >= MARK_SECONDS:
            self._marks.append((now, step))
        since, begun = self._marks[0]
        if step > begun and now > since:
            told["stepsPerSecond"] = round((step - begun) / (now - since), 4)
        if total > 0:
            told["percent"], left = progress.remaining(step, total, self._marks[0], now)
            if left is not None:
                told["etaSeconds"] = left


class _Tail:
    """The new lines of a log that grows."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._inode = 0
        self._offset = 0
        self._rest = b""

    def lines(self) -> list[str]:
        """Return the lines that are complete since the last call; of much output, the newest. Raises OSError."""
        path = next((path for path in self._paths if path.exists()), None)
        if path is None:
            return []
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._inode or status.st_size < self._offset:
                self._inode, self._offset, self._rest = status.st_ino, 0, b""
            begin = max(self._offset, status.st_size - MOST_OUTPUT_BYTES)
            skipped = begin > self._offset
            file.seek(begin)
            content = file.read(status.st_size - begin)
            self._offset = begin + len(content)
        *whole, rest = (content if skipped else self._rest + content).split(b"\n")
        self._rest = rest[-MOST_OUTPUT_BYTES:]
        # Where output was skipped, leave out the first line, of which only the end may have been read.
        return [line.decode(errors="replace") for line in whole[1 if skipped else 0 :]]


def _event_files(folders: Iterable[Path], foreign: Path, since: float) -> Iterable[Path]:
    """Yield the event files below some folders that were written since a time, of MOST_ENTRIES entries at most.

    The folder `foreign` is passed over.
    """
    # Linux stamps files by a coarse clock, which is up to 10 ms behind that of `time.time`.
    since -= 0.01
    seen = 0
    waiting = deque((folder, 0) for folder in dict.fromkeys(folders))
    while waiting:
        folder, depth = waiting.popleft()
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                seen += 1
                if seen > MOST_ENTRIES:
                    return
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        if depth < DEEPEST and entry.name[0] != "." and Path(entry.path) != foreign:
                            waiting.append((Path(entry.path), depth + 1))
                    elif ".tfevents." in entry.name and entry.is_file() and entry.stat().st_mtime >= since:
                        yield Path(entry.path)


def _some(rows: Sequence[str], most: int) -> list[str]:
    """Return `most` rows at most, evenly chosen, and always the last one."""
    if len(rows) <= most:
        return list(rows)
    return [rows[(number + 1) * len(rows) // most - 1] for number in range(most)]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0

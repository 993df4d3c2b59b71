"""The output of a program: lines, progress bars, and a log of limited size on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtj_trainer.artifacts import rotation
from dtj_trainer.artifacts.rotation import rotated, rotated_numbers
from dtj_trainer.launch import output
from dtj_trainer.launch.output import LONGEST_LINE_BYTES, PROGRESS_BAR_SECONDS, Lines, LogFile


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def lines_of(*blocks: bytes) -> list[bytes]:
    lines = Lines(Clock())
    found = [line for block in blocks for line in lines.take(block)]
    return [*found, *lines.end()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a\nb\n\nc", [b"a", b"b", b"", b"c"]),
        (b"a\r\nb\r\n", [b"a", b"b"]),
        (b"10%\n20%\r\n", [b"10%", b"20%"]),
        (b"\r 1%\n", [b" 1%"]),
        (b"99%\r    \rdone\n", [b"done"]),
        (b"99%\r    \r\n", [b"99%"]),  # tqdm's leave=False, and a newline by somebody else.
        (b"99%\r", [b"99%"]),
        (b"x" * 40_000 + b"\n", [b"x" * LONGEST_LINE_BYTES, b"x" * LONGEST_LINE_BYTES, b"x" * 7232]),
    ],
)
def test_a_line_is_its_last_state_in_whatever_blocks_it_comes(text: bytes, expected: list[bytes]) -> None:
    if len(text) > 1000:
        assert b"".join(lines_of(text)) == b"".join(expected)
    else:
        assert lines_of(text) == expected
        for at in range(1, len(text)):
            found = lines_of(text[:at], text[at:])
            # A state that a block ends with may be shown before it is overwritten.
            assert [line for line in found if line in expected] == expected
            assert len(found) <= len(expected) + 1


def test_a_progress_bar_is_shown_now_and_then_and_at_its_end() -> None:
    clock = Clock()
    lines = Lines(clock)
    shown: list[bytes] = []
    for tenth in range(600):
        clock.now = tenth / 10
        shown += lines.take(b"\r%3d/600 [01:00<02:00, 10.0it/s]" % tenth)
    assert len(shown) == 60 / PROGRESS_BAR_SECONDS
    shown += lines.take(b"\r600/600\nTraceback:\n")
    assert shown[-2:] == [b"600/600", b"Traceback:"]


def test_a_log_is_rotated_and_keeps_so_many_former_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "ROTATE_BYTES", 1000)
    log = LogFile(tmp_path / "logs" / "x.log", kept=2)
    lines = [b"%099d" % number for number in range(100)]
    for line in lines:
        log.write(line)
    path = tmp_path / "logs" / "x.log"
    assert rotated_numbers(path) == [8, 9]
    files = [rotated(path, 8), rotated(path, 9), path]
    assert max(file.stat().st_size for file in files) <= 1000
    assert b"".join(file.read_bytes() for file in files).split() == lines[-30:]


def test_a_log_that_can_not_be_rotated_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "ROTATE_BYTES", 100)
    path = tmp_path / "x.log"
    log = LogFile(path)
    rename = Path.rename

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    log.write(b"1" * 90)
    monkeypatch.setattr(Path, "rename", refuse)
    log.write(b"2" * 90)
    monkeypatch.setattr(Path, "rename", rename)
    log.write(b"3" * 90)
    log.write(b"4" * 90)
    found = [line for number in rotated_numbers(path) for line in rotated(path, number).read_bytes().split()]
    assert b"4" * 90 in path.read_bytes()
    assert b"1" * 90 in found
    assert rotation.MOST_ROTATED * rotation.ROTATE_BYTES <= 1 << 30

"""The output of a program: lines, progress bars, and a log of limited size on disk."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dtj_trainer.artifacts import segments
from dtj_trainer.artifacts.segments import rotated, rotated_numbers
from dtj_trainer.launch import output
from dtj_trainer.launch.output import LONGEST_LINE_BYTES, PROGRESS_BAR_SECONDS, Lines, LogFile, writer_to


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def lines_of(*blocks: bytes) -> list[bytes]:
    lines = Lines(Clock())
    text = b"".join([*map(lines.take, blocks), lines.end()])
    assert text.endswith(b"\n")
    return text[:-1].split(b"\n")


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
    shown = b""
    for tenth in range(600):
        clock.now = tenth / 10
        shown += lines.take(b"\r%3d/600 [01:00<02:00, 10.0it/s]" % tenth)
    assert shown.count(b"\n") == 60 / PROGRESS_BAR_SECONDS
    shown += lines.take(b"\r600/600\nTraceback:\n")
    assert shown.endswith(b"\n600/600\nTraceback:\n")


def test_short_lines_go_on_together_in_pieces_that_the_kernel_does_not_divide() -> None:
    lines = b"".join(b"%099d\n" % number for number in range(600))
    reader, writer = os.pipe()
    os.write(writer, lines + b"half a line")
    os.close(writer)
    with os.fdopen(reader) as pipe:
        complete, last = output.lines_of(pipe.fileno())
    assert (complete, last) == (lines, b"half a line\n")

    # Each write to such a socket is a message.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        long_line = b"x" * 2 * select.PIPE_BUF + b"\n"
        writer_to(ours.fileno(), b"[rank 0] ")(lines + long_line + b"end\n")
        ours.shutdown(socket.SHUT_WR)
        messages = list(iter(lambda: theirs.recv(3 * select.PIPE_BUF), b""))
    assert b"".join(messages) == b"".join(b"[rank 0] " + line for line in [
        *lines.splitlines(keepends=True), long_line, b"end\n",
    ])  # fmt: skip
    *short, long, end = messages
    assert len(short) < 20, "of 600 lines"
    assert max(map(len, short)) <= select.PIPE_BUF
    assert all(message.endswith(b"\n") for message in messages)
    assert (long, end) == (b"[rank 0] " + long_line, b"[rank 0] end\n")


def test_a_terminal_gets_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, terminal = os.openpty()
    try:
        write = writer_to(terminal)
        written: list[bytes] = []
        monkeypatch.setattr(os, "write", lambda _, block: written.append(block) or len(block))
        write(b"a\nbb\n\nccc\n")
        assert written == [b"a\n", b"bb\n", b"\n", b"ccc\n"]
    finally:
        os.close(controller)
        os.close(terminal)


RANK = """
import sys
from dtj_trainer.launch.output import writer_to
write = writer_to(1, f"[rank {sys.argv[1]}] ".encode())
lines = (sys.argv[1].encode() * 99 + b"\\n") * 600
print("ready", file=sys.stderr, flush=True)
sys.stdin.read()
for _ in range(20):
    write(lines)
"""


def test_lines_of_several_processes_in_one_pipe_stay_whole() -> None:
    reader, writer = os.pipe()
    pipes = {"stdin": subprocess.PIPE, "stdout": writer, "stderr": subprocess.PIPE}
    ranks = [subprocess.Popen([sys.executable, "-c", RANK, str(rank)], **pipes) for rank in range(3)]
    os.close(writer)
    for rank in ranks:
        assert rank.stderr
        assert rank.stderr.readline() == b"ready\n"
    for rank in ranks:
        assert rank.stdin
        rank.stdin.close()
    # The pipe is full most of the time, so that each rank waits in the middle of its lines.
    text = b"".join(iter(lambda: os.read(reader, 1000), b""))
    os.close(reader)
    assert [rank.wait() for rank in ranks] == [0, 0, 0]
    for rank in ranks:
        assert rank.stderr
        rank.stderr.close()
    found = text.splitlines()
    whole = [b"[rank %d] %s" % (rank, b"%d" % rank * 99) for rank in range(3)]
    assert [found.count(line) for line in whole] == [12_000] * 3
    assert len(found) == 36_000


def test_a_log_is_rotated_and_keeps_so_many_former_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "ROTATE_BYTES", 1000)
    log = LogFile(tmp_path / "logs" / "x.log", kept=2)
    lines = [b"%099d" % number for number in range(100)]
    for line in lines:
        log.write(line + b"\n")
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

    log.write(b"1" * 90 + b"\n")
    monkeypatch.setattr(Path, "rename", refuse)
    log.write(b"2" * 90 + b"\n")
    monkeypatch.setattr(Path, "rename", rename)
    log.write(b"3" * 90 + b"\n")
    log.write(b"4" * 90 + b"\n")
    found = [line for number in rotated_numbers(path) for line in rotated(path, number).read_bytes().split()]
    assert b"4" * 90 in path.read_bytes()
    assert b"1" * 90 in found
    assert segments.MOST_ROTATED * segments.ROTATE_BYTES <= 1 << 30

"""The stacks of the ranks of a stalled training, grouped by the place in the program at which a rank is. Pure.

`ranks` reads the files, which dtj-launch wrote by py-spy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dtj.ui.answers import ApiAnswer
from dtj.ui.usage import order

MOST_FILES = 512
"""The largest number of files that one answer reads, the newest first."""
MOST_BYTES = 16 << 20
"""The largest number of bytes of these files."""
_KEY = re.compile(r"logs/attempt-(\d{1,9})/stacks-([^/]{1,80})-(\d{1,9})\.txt")
_HEADER = re.compile(r"(?m)^.{1,80} at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+\-:\d]*)$")
_PROCESS = re.compile(r"(?m)^== process \d+: ")
_THREAD = re.compile(r'Thread \S+ \([^)]*\)(?:: "(.*)")?')
_FRAME = re.compile(r" {4}(?P<function>\S.*) \((?P<file>[^()]+?)(?::\d+)?\)")
_KERNEL_THREAD = re.compile(r"thread \d+ \(.*\): .*")
_STARTERS = ("torch/distributed/run.py", "torch/distributed/launcher/", "accelerate/commands/")
"""Files of programs that start the ranks of a pod and wait for them."""
_NOT_OF_THE_PROGRAM = {"<module>", "_run_code", "_run_module_as_main"}
_LONGEST = 300


class StackFile(ApiAnswer):
    """The stacks of one rank at one moment."""

    file: str
    """The name of the file; its folder is `logs/attempt-<attempt>`."""
    attempt: int
    dump: int
    """The number of the dump in its pod, from 1."""
    rank: str
    """The rank, or `<role>-<index>` of a program that is no rank."""
    size: int
    time: str | None
    """RFC 3339."""
    where: str | None
    """The innermost frame of the main thread; without a Python stack, the kernel's line about the thread; null: the
    file has no stack."""
    called_from: str | None
    """The outermost function of the program."""


class Group(ApiAnswer):
    """The ranks that are at the same place in the program."""

    where: str | None
    ranks: list[str]


class Dump(ApiAnswer):
    """The stacks of all ranks at one moment."""

    attempt: int
    dump: int
    groups: list[Group]
    """The smallest group first: its ranks are at another place than the others."""
    files: list[StackFile]


class StacksAnswer(ApiAnswer):
    """The stacks in the bucket of a job, the newest first."""

    dumps: list[Dump]
    files: int
    """The number of files in the bucket."""
    left_out: int
    """The number of files that were not read, because they exceed MOST_FILES or MOST_BYTES."""


class StackText(ApiAnswer):
    """The content of a file of stacks."""

    text: str
    cut: bool
    """Whether the text lacks the end of the file."""


class StackKey(NamedTuple):
    """A file of stacks in the bucket."""

    attempt: int
    dump: int
    rank: str
    key: str

    @classmethod
    def of(cls, key: str) -> StackKey | None:
        """Read a key of the bucket; None for a key of another kind."""
        found = _KEY.fullmatch(key)
        return cls(int(found[1]), int(found[3]), found[2], key) if found else None


def keys_to_read(sizes: Mapping[str, int]) -> tuple[list[StackKey], int]:
    """Return the files to read, the newest dumps first, and the number of those that are left out."""
    found = [key for key in map(StackKey.of, sizes) if key]
    found.sort(key=lambda key: (-key.attempt, -key.dump, order(key.rank)))
    chosen, total = [], 0
    for key in found[:MOST_FILES]:
        total += sizes[key.key]
        if total > MOST_BYTES:
            break
        chosen.append(key)
    return chosen, len(found) - len(chosen)


def stacks_of(files: Iterable[tuple[StackKey, bytes]], left_out: int, search: str = "") -> StacksAnswer:
    """Group the ranks by their place in the program. search: only files with this text, in upper or lower case."""
    wanted, dumps, count = search.casefold(), dict[tuple[int, int], list[StackFile]](), 0
    for key, content in files:
        count += 1
        text = content.decode(errors="replace")
        if wanted in text.casefold():
            dumps.setdefault((key.attempt, key.dump), []).append(_file(key, text, len(content)))
    return StacksAnswer(
        dumps=[
            Dump(attempt=attempt, dump=dump, groups=_groups(held), files=held)
            for (attempt, dump), held in dumps.items()
        ],
        files=count + left_out,
        left_out=left_out,
    )


def _groups(files: Sequence[StackFile]) -> list[Group]:
    ranks: dict[str | None, list[str]] = {}
    for file in files:
        ranks.setdefault(file.where, []).append(file.rank)
    return [
        Group(where=where, ranks=ranks[where]) for where in sorted(ranks, key=lambda each: len(ranks[each]))
    ]


def _file(key: StackKey, text: str, size: int) -> StackFile:
    header = _HEADER.match(text)
    stack = _stack(text)
    return StackFile(
        file=key.key.rpartition("/")[2],
        attempt=key.attempt,
        dump=key.dump,
        rank=key.rank,
        size=size,
        time=header[1] if header else None,
        where=stack.where if stack else None,
        called_from=stack.called_from if stack else None,
    )


@dataclass(frozen=True)
class _Stack:
    where: str
    called_from: str | None
    starts_others: bool


def _stack(text: str) -> _Stack | None:
    """Return the main thread of the first process that trains, else of any process with a Python stack.

    Without a Python stack, return the kernel's first line about a thread; None without such a line.
    """
    processes = _PROCESS.split(text)[1:]
    found = [stack for process in processes if (stack := _main_thread(process.splitlines()[1:]))]
    if found:
        return next((stack for stack in found if not stack.starts_others), found[0])
    first = next((line for line in text.splitlines() if _KERNEL_THREAD.fullmatch(line)), None)
    return _Stack(first[:_LONGEST], None, starts_others=False) if first else None


def _main_thread(lines: Sequence[str]) -> _Stack | None:
    threads = [(name, frames) for name, frames in _threads(lines) if frames]
    if not threads:
        return None
    _, frames = next((thread for thread in threads if thread[0] == "MainThread"), threads[0])
    own = [frame for frame in frames if frame["function"] not in _NOT_OF_THE_PROGRAM]
    outermost = own[-1] if own and own[-1] is not frames[0] else None
    return _Stack(
        frames[0][0].strip()[:_LONGEST],
        outermost[0].strip()[:_LONGEST] if outermost else None,
        starts_others=any(starter in frame["file"] for frame in frames for starter in _STARTERS),
    )


def _threads(lines: Sequence[str]) -> Iterator[tuple[str, list[re.Match[str]]]]:
    """Yield the name and the frames of each thread that py-spy printed, the innermost frame first."""
    name: str | None = None
    frames: list[re.Match[str]] = []
    for line in lines:
        if thread := _THREAD.fullmatch(line):
            if name is not None:
                yield name, frames
            name, frames = thread[1] or "", []
        elif name is not None and (frame := _FRAME.fullmatch(line)):
            frames.append(frame)
    if name is not None:
        yield name, frames

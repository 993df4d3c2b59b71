"""Which processes of a pod belong to which rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

RankOf = Callable[[int], str | None]
"""Returns the rank that a process is, by its environment; None for a process that is none."""


def no_rank(pid: int) -> str | None:
    """Say of every process that it is no rank: for programs that start none."""
    del pid
    return None


def by_program(
    programs: Mapping[str, int], children: Mapping[int, Sequence[int]], rank_of: RankOf
) -> dict[str, list[int]]:
    """Return the processes of each program, its first process first, then its descendants.

    A rank below a program that is no rank itself is a program of its own: its processes do not count for the program
    that started it, such as torchrun.

    programs: the first process of each. children: by process.
    """
    found: dict[str, list[int]] = {}
    todo = [(name, pid) for name, pid in programs.items()]
    for name, pid in todo:  # `todo` grows.
        found.setdefault(name, []).append(pid)
        for child in children.get(pid, ()):
            rank = None if name.isdecimal() else rank_of(child)
            todo.append((rank or name, child))
    return found

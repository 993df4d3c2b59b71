"""The words of `dtj submit` and `dtj run`, with those after `--`, which are the program's."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

_KEY = "dtj.words"


@dataclass(frozen=True)
class Words:
    """What stands on the command line after `dtj`."""

    command: str
    before: tuple[str, ...]
    """The words up to `--`."""
    after: tuple[str, ...] | None
    """The words after `--`; None without `--`."""

    def line(self, *, name: str | None = None, flag: str = "") -> str:
        """Return the command line, to be pasted into a shell.

        name: replaces the value of --name. flag: is added.
        """
        words, skip = list[str](), False
        for word in self.before:
            if skip or (name and word.startswith("--name=")):
                skip = False
            elif name and word == "--name":
                skip = True
            else:
                words.append(word)
        added = [*(["--name", name] if name else []), *([flag] if flag and flag not in words else [])]
        rest = () if self.after is None else ("--", *self.after)
        return shlex.join(["dtj", self.command, *words, *added, *rest])


class WithWords(TyperCommand):
    """A command that takes words of the program after `--`. `words_of` returns them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Set the words after `--` apart, and parse the others."""
        cut = args.index("--") if "--" in args else None
        before, after = args[:cut], None if cut is None else tuple(args[cut + 1 :])
        ctx.meta[_KEY] = Words(ctx.info_name or "", tuple(before), after)
        return super().parse_args(ctx, before)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the pieces of the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- WORDS…]"]


def words_of(ctx: typer.Context) -> Words:
    """Return the words of a command of class WithWords."""
    words: Words = ctx.meta[_KEY]
    return words


def is_program(target: Path) -> bool:
    """Return whether a target is a script or a folder, not a job file."""
    return target.suffix == ".py" or target.is_dir()

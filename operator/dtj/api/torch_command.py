"""What a command says of how the ranks of torch.distributed start."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from posixpath import basename

_PYTHON = re.compile(r"python[0-9.]*")
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate launch",
}
_SHELLS = ("sh", "bash", "dash", "zsh", "ash", "ksh")


@dataclass(frozen=True)
class Launcher:
    """A program in a command that starts the ranks of a pod."""

    name: str
    """`torchrun`, `accelerate launch` or `deepspeed`."""
    options: tuple[str, ...]
    """The words after the program: its options, the script, and the script's arguments."""


def launchers_in(words: Sequence[str]) -> list[Launcher]:
    """Return the programs in a command, or in the text that the command gives to a shell, that start ranks."""
    return [found for command in _commands(words) if (found := _launcher(command)) is not None]


def _commands(words: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the command, or the commands in the text of a shell."""
    for index, word in enumerate(words):
        if basename(word) in _SHELLS:
            text = next((at for at, option in enumerate(words[index:], index) if option.endswith("c")), None)
            if text is not None and words[text].startswith("-"):
                yield from _in_shell(" ".join(words[text + 1 : text + 2]))
                return
    yield words


def _in_shell(text: str) -> Iterator[Sequence[str]]:
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=";&|()\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    command: list[str] = []
    try:
        for word in lexer:
            if set(word) <= set(";&|()\n"):
                yield command
                command = []
            else:
                command.append(word)
    except ValueError:
        command = text.split()
    yield command


def _launcher(words: Sequence[str]) -> Launcher | None:
    for index, word in enumerate(words):
        program, rest = basename(word), words[index + 1 :]
        if program in ("torchrun", "deepspeed"):
            return Launcher(program, tuple(rest))
        if program == "accelerate" and rest[:1] == ["launch"]:
            return Launcher("accelerate launch", tuple(rest[1:]))
        if _PYTHON.fullmatch(program):
            return _module(rest)
        if word.endswith((".py", ".sh")):
            return None
    return None


def _module(words: Sequence[str]) -> Launcher | None:
    """Return the launcher that Python runs as a module. words: the words after Python's own."""
    for index, word in enumerate(words):
        if word == "-m":
            name = _MODULES.get("".join(words[index + 1 : index + 2]))
            return Launcher(name, tuple(words[index + 2 :])) if name else None
        if not word.startswith("-"):
            return None
    return None

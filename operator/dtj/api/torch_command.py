"""The programs in a command that start ranks of torch.distributed: torchrun, `accelerate launch` and deepspeed. Pure.

A command is a list of words, as in a container. A word may be a text that the command gives to a shell (`bash -c`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from posixpath import basename

TORCHRUN, ACCELERATE, DEEPSPEED = "torchrun", "accelerate launch", "deepspeed"
_MODULES = {
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": TORCHRUN,
    "accelerate.commands.launch": ACCELERATE,
    "deepspeed.launcher.runner": DEEPSPEED,
}
_PYTHON = re.compile(r"python[0-9.]*")
_MODULE_OPTION = re.compile(r"-[a-zA-Z]*m")
_SHELLS = ("sh", "bash", "dash", "zsh", "ash", "ksh")
_SHELL_WORDS = frozenset({"if", "then", "elif", "else", "while", "until", "do", "!", "{", "time", "exec"})
_WRAPPERS = {
    *("env", "nohup", "tini", "dumb-init", "sudo", "setpriv", "timeout", "stdbuf"),
    *("numactl", "taskset", "nice", "ionice", "nsys"),
    *("uv", "poetry", "pipenv", "pixi", "conda", "mamba", "micromamba"),
}
"""Programs that start the program among their arguments."""
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=.*", re.DOTALL)
_QUOTED_OR_COMMENT = re.compile(
    r"""(?m)(?P<quoted>'[^']*'|"(?:\\[\s\S]|[^"\\])*"|\\[\s\S])|(?:^|(?<=\s))#.*$"""
)
_SEPARATORS = ";&|()\n"
# Options without a value. The parsers of all three take `-` and `_` as the same.
_SWITCHES = {
    TORCHRUN: {
        *("--standalone", "--module", "-m", "--no-python", "--run-path", "--use-env", "--virtual-local-rank"),
    },
    ACCELERATE: {
        *("--cpu", "--multi-gpu", "--tpu", "--tpu-cluster", "--no-tpu-cluster", "--tpu-use-sudo"),
        *("--use-deepspeed", "--use-fsdp", "--use-megatron-lm", "--use-parallelism-config"),
        *("--module", "-m", "--no-python", "--quiet", "-q", "--debug", "--downcast-bf16"),
        *("--dynamo-use-dynamic", "--dynamo-use-fullgraph", "--dynamo-use-regional-compilation"),
        *("--same-network", "--enable-cpu-affinity", "--fp8-use-autocast-during-eval"),
    },
    DEEPSPEED: {
        *("--module", "--no-python", "--no-local-rank", "--no-ssh", "--no-ssh-check", "--force-multi"),
        *("--save-pid", "--enable-each-rank-log", "--elastic-training", "--bind-cores-to-rank"),
    },
}


@dataclass(frozen=True)
class Option:
    """One option of a launcher."""

    written: str
    """The option as the command has it, with its value: `--nnodes=1`."""
    value: str
    """Its value; empty for an option without one."""
    word: str
    """The word of the command that has the option."""

    @property
    def literal(self) -> str | None:
        """The value; None where a variable gives it."""
        return None if "$" in self.value else self.value


@dataclass(frozen=True)
class Launcher:
    """A program in a command that starts the ranks of a pod."""

    name: str
    """TORCHRUN, ACCELERATE or DEEPSPEED."""
    options: Mapping[str, Option]
    """By name, with `-` in place of `_`. Of an option that is given twice, the last."""
    word: str
    """The word of the command that has the launcher: the launcher, or the text of a shell."""
    at: int | None
    """Position in the command of the word after the launcher; None in the text of a shell."""


def launchers_in(words: Sequence[str], text: str | None = None) -> list[Launcher]:
    """Return the launchers in a command, or in the text that the command gives to a shell.

    text: the text of the shell that runs the command, if a shell does.
    """
    if (inner := _shell_text(words)) is None:
        return [] if (found := _launcher(words)) is None else [_read(*found, words, text)]
    return [found for command in _commands(inner) for found in launchers_in(command, text or inner)]


def _shell_text(words: Sequence[str]) -> str | None:
    """Return the text that a command gives to a shell by its option -c."""
    for start, word in enumerate(words):
        if basename(word) in _SHELLS:
            rest = iter(words[start + 1 :])
            for option in rest:
                if not option.startswith(("-", "+")):
                    return None
                if option.endswith("c") and not option.startswith("--"):
                    return next(rest, None)
                if option.endswith(("o", "O")):
                    next(rest, None)
            return None
        if not _is_before_program(words[0]):
            return None
    return None


def _commands(text: str) -> Iterator[list[str]]:
    """Yield the commands of a shell's text."""
    text = _QUOTED_OR_COMMENT.sub(lambda found: found["quoted"] or "", text.replace("\\\n", " "))
    lexer = shlex.shlex(text, posix=True, punctuation_chars=_SEPARATORS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        words = list(lexer)
    except ValueError:  # A quote that has no end: a here-document, or a pattern.
        yield from (command.split() for command in re.split(f"[{_SEPARATORS}]", text))
        return
    command: list[str] = []
    for word in words:
        if word and set(word) <= set(_SEPARATORS):
            yield command
            command = []
        else:
            command.append(word)
    yield command


def _is_before_program(word: str) -> bool:
    return word in _SHELL_WORDS or basename(word) in _WRAPPERS or _ASSIGNMENT.fullmatch(word) is not None


def _launcher(words: Sequence[str]) -> tuple[str, int] | None:
    """Return the name of the launcher in a command, and the position of the word after the launcher."""
    wrapped = False
    for index, word in enumerate(words):
        if (found := _launcher_at(words, index)) is not None:
            return found
        if _PYTHON.fullmatch(basename(word)):
            return None
        wrapped = wrapped or basename(word) in _WRAPPERS
        if not wrapped and not _is_before_program(word):
            return None
    return None


def _launcher_at(words: Sequence[str], index: int) -> tuple[str, int] | None:
    program = basename(words[index])
    if program in (TORCHRUN, DEEPSPEED):
        return program, index + 1
    if program == "accelerate-launch":
        return ACCELERATE, index + 1
    if program == "accelerate" and list(words[index + 1 : index + 2]) == ["launch"]:
        return ACCELERATE, index + 2
    return _run_by_python(words, index + 1) if _PYTHON.fullmatch(program) else None


def _run_by_python(words: Sequence[str], index: int) -> tuple[str, int] | None:
    """Return the launcher that Python runs as a module or as a script. index: of the word after Python."""
    while index < len(words) and words[index].startswith("-"):
        if _MODULE_OPTION.fullmatch(words[index]):
            name = _MODULES.get("".join(words[index + 1 : index + 2]))
            return (name, index + 2) if name else None
        index += 2 if words[index] in ("-X", "-W") else 1
    script = words[index : index + 1]
    return _launcher_at(words, index) if script and not _PYTHON.fullmatch(basename(script[0])) else None


def _read(name: str, at: int, words: Sequence[str], text: str | None) -> Launcher:
    """Read the options of a launcher up to the first word that is none: the script."""
    options: dict[str, Option] = {}
    rest = iter(words[at:])
    for word in rest:
        if not word.startswith("-") or word in ("-", "--"):
            break
        flag, equals, value = word.partition("=")
        written = word
        if not flag.startswith("--") and len(flag) > 2:
            flag, value = word[:2], word[2:]
        elif not equals and flag.replace("_", "-") not in _SWITCHES[name]:
            value = next(rest, "")
            written = f"{word} {value}"
        options[flag.replace("_", "-")] = Option(written, value, word if text is None else text)
    return Launcher(name, options, text or words[at - 1], at if text is None else None)

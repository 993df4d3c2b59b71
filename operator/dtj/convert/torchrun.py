"""The options of torchrun in a command that say which ranks run where.

Options win over the variables PET_* of the operator. dtj's ranks are static, and the variables say all.
Source: torch.distributed.run of PyTorch 2.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dtj.api.torch_command import TORCHRUN, launchers_in

_BY_VARIABLES = frozenset(
    {"nnodes", "nproc_per_node", "node_rank", "master_addr", "master_port", "standalone", "max_restarts"}
    | {"rdzv_backend", "rdzv_endpoint", "rdzv_conf"}
)
_SWITCHES = frozenset({"standalone", "m", "module", "no_python", "run_path", "use_env", "virtual_local_rank"})
_OTHERS = frozenset(
    {"rdzv_id", "monitor_interval", "start_method", "role", "log_dir", "r", "redirects", "t", "tee"}
    | {"event_log_handler", "local_ranks_filter", "local_addr", "logs_specs", "numa_binding"}
    | {"signals_to_handle", "duplicate_stdout_filters", "duplicate_stderr_filters"}
)
_LAUNCHER = re.compile(
    r"(?:^|(?<=[\s;&|(/]))(?:torchrun|python[0-9.]*(?:\s+-[a-zA-Z]+)*?\s+-m\s+torch\.distributed\.(?:run|launch))(?=\s)"
)
_WORD = re.compile(r"""[ \t]*((?:"(?:\\.|[^"\\])*"|'[^']*'|\\.|\$\{[^}]*\}|[^\s"'\\;&|<>()])+)""")
_THIS_HOST = re.compile(
    r"(localhost|127(\.[0-9]+){3}|0\.0\.0\.0|\[?(::1|0:0:0:0:0:0:0:1)\]?|\$\{[^}]*:?[=-]localhost\})(:.*)?"
)


@dataclass(frozen=True)
class Torchrun:
    """A command that calls torchrun once."""

    options: dict[str, str]
    """The values of the options that say which ranks run where, with `_` in the names; empty for a switch."""
    left_out: list[str]
    """These options, as written."""
    command: list[str]
    """The command without these options."""

    def literal(self, name: str) -> str | None:
        """Return the value of an option; None if the option is absent, or if a variable has its value."""
        value = self.options.get(name)
        return None if value is None or "$" in value else value

    def faults(self, nodes: int) -> Iterator[tuple[str, str]]:
        """Yield the options by which the command would not start one training on so many nodes."""
        numbers = (self.literal("nnodes") or str(nodes)).split(":")
        if len(set(numbers)) > 1:
            yield (
                f"--nnodes {':'.join(numbers)}",
                "elastic: the number of workers is fixed in dtj; write one number",
            )
        elif numbers[0] != str(nodes):
            yield f"--nnodes {numbers[0]}", f"the job has {nodes} nodes: write --nnodes {nodes}"
        if nodes == 1:
            return
        if "standalone" in self.options:
            yield "--standalone", f"each of {nodes} nodes would train by itself: remove the option"
        for name in ("rdzv_endpoint", "master_addr"):
            if _THIS_HOST.fullmatch(self.options.get(name, "")):
                yield (
                    f"--{name} {self.options[name]}",
                    f"each of {nodes} nodes would wait for itself: remove the option",
                )


def read_torchrun(words: Sequence[str]) -> Torchrun | None:
    """Return the call of torchrun in a command or in the text of its shell; None if there is none, or several."""
    launchers = launchers_in(words)
    if [launcher.name for launcher in launchers] != [TORCHRUN]:
        return None
    (launcher,) = launchers
    if launcher.at is not None:
        start = launcher.at
        options, left_out, kept, rest = _split([(word, word) for word in words[start:]])
        return Torchrun(options, left_out, [*words[:start], *kept, *rest])
    if (read := _read_text(launcher.word)) is None:
        return None
    return Torchrun(read[0], read[1], [read[2] if word == launcher.word else word for word in words])


def _read_text(text: str) -> tuple[dict[str, str], list[str], str] | None:
    text = text.replace("\\\n", " ")
    launchers = list(_LAUNCHER.finditer(text))
    if len(launchers) != 1:
        return None
    start = end = launchers[0].end()
    words: list[tuple[str, str]] = []
    while word := _WORD.match(text, end):
        words.append((word[1], _unquoted(word[1])))
        end = word.end()
    options, left_out, kept, rest = _split(words)
    return options, left_out, " ".join([text[:start], *kept, *rest]) + text[end:]


def _split(
    words: Sequence[tuple[str, str]],
) -> tuple[dict[str, str], list[str], list[str], list[str]]:
    """Return options by name, the same as written, the other options, and script and arguments.

    words: each as written, and without quotes.
    """
    options: dict[str, str] = {}
    left_out: list[str] = []
    kept: list[str] = []
    at = 0
    while at < len(words) and words[at][1].startswith("-"):
        flag, equals, value = words[at][1].partition("=")
        name = flag.lstrip("-").replace("-", "_")
        if name not in _BY_VARIABLES | _SWITCHES | _OTHERS:
            break
        size = 1 if equals or name in _SWITCHES else 2
        written = [word for word, _ in words[at : at + size]]
        if name in _BY_VARIABLES:
            options[name] = value if size == 1 else "".join(value for _, value in words[at + 1 : at + 2])
            left_out += written
        else:
            kept += written
        at += size
    return options, left_out, kept, [word for word, _ in words[at:]]


def _unquoted(word: str) -> str:
    try:
        return "".join(shlex.split(word))
    except ValueError:
        return word

"""Conversion to strategy TorchDistributed: the number of ranks in each worker, and who starts the ranks.

Options of torchrun win over the variables PET_* of the other operator. Source: torch.distributed.run of PyTorch 2.
The options about ranks are left out: dtj's ranks are static, and its own variables PET_* replace the options.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dtj.api.job import Manifest
from dtj.api.spec import StartedBy
from dtj.api.torch_command import TORCHRUN, launchers_in
from dtj.api.torch_distributed import TORCH_DISTRIBUTED, VARIABLES, WORKER
from dtj.convert.notes import Notes
from dtj.convert.replicas import ConvertedRole, common_spec, refuse_entrypoint, secure

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
    """The values of the options about number and place of ranks, with `_` in the names; empty for a switch."""
    left_out: list[str]
    """The words of the options in `options`, as written in the command."""
    command: list[str]
    """The command without these options."""

    def literal(self, name: str) -> str | None:
        """Return the value of an option; None if the option is absent, or if its value has a shell variable."""
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
    """Return the options of _BY_VARIABLES by name, their words as written, the other options, and the rest.

    words: each word as written, and without quotes. The rest is the script with its arguments.
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


_PYTHON = re.compile(r"(?:^|[\s;&|(/])python[0-9.]*(?=\s|$)")
_SCRIPT = re.compile(r"\S\.sh(?=\s|$)")
_WORLD_SIZE = re.compile(r"\$[({]?WORLD_SIZE\b")


@dataclass(frozen=True)
class Asked:
    """The number of ranks in each node that the job of the other operator asks for."""

    procs: str
    """A number, or auto, gpu or cpu, as `torchrun --nproc-per-node` takes them."""
    field: str
    """The field of the input from which `procs` comes, for notes."""
    python_is_rank: bool = False
    """Whether a program without torchrun is itself a rank, because RANK is the node's number, as in a PyTorchJob."""

    @property
    def number(self) -> int:
        """`procs` as a number, or 1 if it depends on the node: the factor of WORLD_SIZE in a PyTorchJob."""
        return int(self.procs) if self.procs.isdecimal() else 1


class _OfTheNode(Exception):
    """The number of ranks depends on the node, or can't be read. The message is the note for the user."""


def torch_spec(role: ConvertedRole, asked: Asked, notes: Notes) -> Manifest:
    """Return dtj's spec of a job with this role alone. If the job can't be converted, the notes have the reasons."""
    role.name = WORKER
    where = f"{role.path}.template.spec.containers.command"
    words = [*role.program[0], *role.program[1]]
    if not role.program[0]:
        refuse_entrypoint(role, where, notes)
        return {}
    for name in [name for name in role.env if name in VARIABLES]:
        value = role.env.pop(name).get("value")
        notes.add(
            f"{role.path}.template.spec.containers.env[{name}]", value, "left out: the operator sets it"
        )
    torch: Manifest = {}
    gpus = next(iter(role.accelerators.values()), 0)
    try:
        procs, by_command = _start(words, asked, gpus)
    except _OfTheNode as error:
        notes.refuse(asked.field, asked.procs, str(error))
        return {}
    if procs != (gpus or 1):
        torch["procsPerWorker"] = procs
    if by_command:
        torch["startedBy"] = StartedBy.COMMAND.value
        notes.add(
            where,
            None,
            f"runs once in each worker, and starts the ranks itself: PET_NPROC_PER_NODE is {procs}",
        )
    if (torchrun := read_torchrun(words)) is not None:
        _settle_torchrun(torchrun, role, procs, where, notes)
    _refuse_world_size(role, asked, procs, where, notes)
    secure([role], False, notes)
    spec = {"strategy": TORCH_DISTRIBUTED.name, **common_spec([role])}
    return spec | ({"torch": torch} if torch else {})


def _start(words: list[str], asked: Asked, gpus: int) -> tuple[int, bool]:
    """Return the ranks in each worker, and whether the job needs `startedBy: Command`.

    Raises _OfTheNode.
    """
    torchrun = read_torchrun(words)
    if torchrun is not None:
        return _ranks_in_node(torchrun.literal("nproc_per_node") or asked.procs, gpus), False
    launchers = launchers_in(words)
    if launchers and launchers[0].name != TORCHRUN:
        # Launchers other than torchrun do not read PET_NPROC_PER_NODE, so `auto` and the like have no meaning.
        return (asked.number if asked.procs.isdecimal() else gpus or 1), False
    text = " ".join(words)
    if asked.python_is_rank and asked.number == 1 and _PYTHON.search(text) and not _SCRIPT.search(text):
        return 1, False
    return _ranks_in_node(asked.procs, gpus), not launchers


def _ranks_in_node(procs: str, gpus: int) -> int:
    """Return the number of ranks that torchrun starts for `--nproc-per-node` and these GPUs. Raises _OfTheNode."""
    if procs.isdecimal() and int(procs):
        return int(procs)
    if procs in ("auto", "gpu") and gpus:
        return gpus
    if procs in ("auto", "cpu"):
        raise _OfTheNode(
            "one rank for each CPU of the node, and nodes differ: write the number of ranks in each node"
        )
    if procs == "gpu":
        raise _OfTheNode(
            "one rank for each GPU, and the pods have no GPU: write the number of ranks in each node"
        )
    raise _OfTheNode("must be a number, auto, gpu or cpu")


def _settle_torchrun(torchrun: Torchrun, role: ConvertedRole, procs: int, where: str, notes: Notes) -> None:
    """Remove torchrun's options about number and place of ranks. The operator's variables PET_* replace them."""
    for option, why in torchrun.faults(role.replicas):
        notes.refuse(where, option, why)
    if torchrun.left_out:
        restarts = torchrun.literal("max_restarts") or "0"
        retries = "" if restarts == "0" else "; runPolicy.backoffLimit limits the restarts of the whole job"
        notes.add(
            where,
            " ".join(torchrun.left_out),
            f"left out: torchrun has the operator's variables PET_*, with PET_NNODES: {role.replicas} and "
            f"PET_NPROC_PER_NODE: {procs}{retries}",
        )
        role.program = (torchrun.command, [])


def _refuse_world_size(role: ConvertedRole, asked: Asked, procs: int, where: str, notes: Notes) -> None:
    words = [*role.program[0], *role.program[1]]
    if asked.python_is_rank and asked.number != procs and _WORLD_SIZE.search(" ".join(words)):
        notes.refuse(
            where,
            "WORLD_SIZE",
            f"{role.replicas * asked.number} in Kubeflow, and {role.replicas * procs} in dtj, the number of ranks: "
            "write PET_NNODES for the number of nodes",
        )

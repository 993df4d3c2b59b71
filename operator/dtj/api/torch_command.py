"""The programs in a command that start ranks of torch.distributed: torchrun, `accelerate launch` and deepspeed. Pure.

A command is a list of words, as in a container. A word may be a text that the command gives to a shell (`bash -c`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
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
# Options without a value. The parsers of all three programs treat `-` and `_` in an option as the same.
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
    """The options by name, with `-` in place of `_`. The last one wins if an option is given twice."""
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
    except ValueError:  # A quote has no end, as in a here-document or a glob pattern.
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
    """Return the launcher that Python runs as a module or as a script. index: that of the word after `python`."""
    while index < len(words) and words[index].startswith("-"):
        if _MODULE_OPTION.fullmatch(words[index]):
            name = _MODULES.get("".join(words[index + 1 : index + 2]))
            return (name, index + 2) if name else None
        index += 2 if words[index] in ("-X", "-W") else 1
    script = words[index : index + 1]
    return _launcher_at(words, index) if script and not _PYTHON.fullmatch(basename(script[0])) else None


def _read(name: str, at: int, words: Sequence[str], text: str | None) -> Launcher:
    """Read the options of a launcher. The first word that is not an option is the script and ends the options."""
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


# The options that give `accelerate launch` the machines of a job. accelerate reads no environment variables for them.
#
# Source: accelerate 1.15, `commands/launch.py` and `utils/launch.py`. With `--multi_gpu`, accelerate starts processes
# by torchrun's code, on machines without a GPU too.

ENV_USE_CPU = "ACCELERATE_USE_CPU"
"""accelerate reads this variable. Without it, a process that finds no GPU ignores RANK and WORLD_SIZE, and trains
alone."""
VARIABLES = {
    "--num_machines": "PET_NNODES",
    "--num_processes": "WORLD_SIZE",
    "--machine_rank": "PET_NODE_RANK",
    "--main_process_ip": "MASTER_ADDR",
    "--main_process_port": "MASTER_PORT",
}
"""By option: the environment variable of a worker's container that has the value for the option."""
_KINDS = ("multi-gpu", "cpu", "tpu", "use-deepspeed", "use-fsdp", "use-megatron-lm", "config-file")
"""Options of which one tells accelerate how to start the processes. With none of them, --multi_gpu is added."""


def missing_options(launcher: Launcher, workers: int, procs: int) -> list[str]:
    """Return the options that an `accelerate launch` lacks, with references as the kubelet expands them.

    workers: pods of the job. procs: ranks in each pod.
    """
    given = launcher.options
    missing = [
        f"{option}=$({variable})"
        for option, variable in VARIABLES.items()
        if option.replace("_", "-") not in given
    ]
    if workers * procs > 1 and not any(f"--{kind}" in given for kind in _KINDS):
        missing.insert(0, "--multi_gpu")
    # DeepSpeed's own launchers reach the other machines by ssh. A configuration file may ask for DeepSpeed.
    deepspeed = "--use-deepspeed" in given or "--config-file" in given
    if workers > 1 and deepspeed and "--deepspeed-multinode-launcher" not in given:
        missing.append("--deepspeed_multinode_launcher=standard")
    return missing


# Faults of the launchers in a command. Options of a launcher win over the variables that the operator sets, so that
# an option can make each worker a training of its own, or give other numbers to the ranks.

_THIS_HOST = re.compile(r"(localhost|127(\.[0-9]+){3}|0\.0\.0\.0|\[?(::1|0:0:0:0:0:0:0:1)\]?)(:[0-9]+)?")


@dataclass(frozen=True)
class World:
    """The ranks of a job."""

    workers: int
    """Pods of the job."""
    procs: int
    """Ranks in each pod."""
    gpus: int
    """GPUs of each pod."""


def launcher_faults(launcher: Launcher, world: World) -> Iterator[tuple[Option | None, str]]:
    """Yield the faults of a launcher: the option at fault, or None for the launcher itself, and the message."""
    if launcher.name == DEEPSPEED and world.workers > 1:
        yield (
            None,
            f"the deepspeed command starts the ranks of other hosts by ssh, and the {world.workers} workers serve no "
            "ssh: start the script itself ([python, train.py]), and dtj gives each rank the RANK, LOCAL_RANK and "
            "WORLD_SIZE that deepspeed.initialize reads, or start the script by torchrun",
        )
        return
    for name, wrong in _CHECKS[launcher.name].items():
        option = launcher.options.get(name)
        if option is not None and option.literal is not None and (said := wrong(option.literal, world)):
            yield option, f"{option.written} {said}: {_remedy(launcher, name)}"
    if launcher.name == ACCELERATE and launcher.at is None:
        yield from _unsaid(launcher, world)


def _unsaid(launcher: Launcher, world: World) -> Iterator[tuple[None, str]]:
    """Yield a fault where options are missing in the text of a shell, into which the operator inserts nothing."""
    if world.workers == 1 and world.procs == (world.gpus or 1):
        return  # No option is needed: by default, accelerate starts one process for each GPU, or one without GPUs.
    if missing := missing_options(launcher, world.workers, world.procs):
        yield (
            None,
            "accelerate launch takes the number of machines and processes, the rank and the address from its options "
            f"alone: write `accelerate launch {' '.join(map(_in_shell, missing))} …`, or make accelerate the command "
            "itself ([accelerate, launch, train.py]), and the operator inserts the options",
        )


def _in_shell(option: str) -> str:
    """Return an option with `$NAME`, which a shell expands, in place of `$(NAME)`, which the kubelet expands."""
    return re.sub(r"\$\((\w+)\)", r"$\1", option)


def _remedy(launcher: Launcher, name: str) -> str:
    if _CHECKS[launcher.name][name] is _not_the_procs:
        return (
            "remove it; torch.procsPerWorker, by default the worker's gpus, else 1, gives the number of ranks"
        )
    if launcher.name == TORCHRUN and name != "--standalone":
        return f"remove it; torchrun reads PET_{name[2:].replace('-', '_').upper()}, which the operator sets"
    for option, variable in VARIABLES.items() if launcher.name == ACCELERATE else ():
        if option.replace("_", "-") == name:
            whole = f"{option}=$({variable})"
            return (
                f"remove it, and the operator inserts {whole}" if launcher.at else f"write {_in_shell(whole)}"
            )
    return "remove it"


def _not_the_workers(value: str, world: World) -> str | None:
    count = str(world.workers)
    return None if value in (count, f"{count}:{count}") else f"must be the number of workers, {count}"


def _not_the_ranks(value: str, world: World) -> str | None:
    count = world.workers * world.procs
    return None if value == str(count) else f"must be the number of ranks of all workers, {count}"


def _one_rank_for_all(value: str, world: World) -> str | None:
    if world.workers == 1:
        return None if value == "0" else "must be 0, the index of the only worker"
    return f"gives all {world.workers} workers the same rank"


def _this_host(value: str, world: World) -> str | None:
    if world.workers == 1 or not _THIS_HOST.fullmatch(value):
        return None
    return f"names each worker's own host, so that the {world.workers} workers never meet"


def _dynamic(value: str, world: World) -> str | None:
    if world.workers == 1 or value == "static":
        return None
    return "must be static, because other backends give the ranks to the workers in any order, not by their index"


def _alone(_: str, world: World) -> str | None:
    return f"lets each of the {world.workers} workers train alone" if world.workers > 1 else None


def _restarts(value: str, world: World) -> str | None:
    if world.workers == 1 or value == "0":
        return None
    return (
        "must be 0, because ranks that one worker starts again can't join those of the others (the operator starts "
        "all workers again, runPolicy.backoffLimit times)"
    )


def _not_the_procs(value: str, world: World) -> str | None:
    if value == str(world.procs) or (value in ("gpu", "auto") and world.gpus == world.procs):
        return None
    return f"must be the number of ranks of a worker, {world.procs}"


def _own_port(value: str, world: World) -> str | None:
    return "gives each worker another port" if value == "0" and world.workers > 1 else None


def _one_process(_: str, world: World) -> str | None:
    return f"starts one process in a worker, and not {world.procs}" if world.procs > 1 else None


_Check = Callable[[str, World], str | None]
_CHECKS: Mapping[str, Mapping[str, _Check]] = {
    TORCHRUN: {
        "--standalone": _alone,
        "--nnodes": _not_the_workers,
        "--node-rank": _one_rank_for_all,
        "--nproc-per-node": _not_the_procs,
        "--rdzv-endpoint": _this_host,
        "--master-addr": _this_host,
        "--rdzv-backend": _dynamic,
        "--max-restarts": _restarts,
    },
    ACCELERATE: {
        "--num-machines": _not_the_workers,
        "--num-processes": _not_the_ranks,
        "--machine-rank": _one_rank_for_all,
        "--main-process-ip": _this_host,
        "--main-process-port": _own_port,
        "--rdzv-backend": _dynamic,
        "--max-restarts": _restarts,
        "--cpu": _one_process,
    },
    DEEPSPEED: {"--num-gpus": _not_the_procs},
}
"""By option: a function that returns the fault of a literal value, to be read after the option; None: no fault."""

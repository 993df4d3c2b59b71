"""Parser of launcher commands, such as `mpirun … python train.py` and `horovodrun … python train.py`.

The result has the program, and the options that matter for dtj's mpirun.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MPIRUN = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
HOROVODRUN = ("horovodrun",)
_SHELLS = ("sh", "bash", "dash")

# The options by their number of values. A command with an unlisted option can't be parsed: the word after the option
# may be a value or the program.
_MPIRUN_VALUES = {
    0: "allow-run-as-root v verbose q quiet tag-output timestamp-output oversubscribe nooversubscribe nolocal "
    "report-bindings display-map display-allocation pernode bynode byslot bind-to-core bind-to-none l "
    "use-hwthread-cpus debug-daemons d enable-recovery disable-recovery xml genvall genvnone prepend-rank",
    1: "n np c x H host hostfile machinefile f hosts bind-to map-by rank-by wdir wd npernode N ppn perhost prefix "
    "output-filename timeout stdin rf rankfile report-uri tune am cpus-per-proc cpus-per-rank genvlist envlist "
    "npersocket launch-agent personality path bootstrap iface launcher",
    2: "mca gmca prtemca pmixmca genv env",
}
_HOROVODRUN_VALUES = {
    0: "gloo mpi js verbose disable-cache tcp autotune hierarchical-allreduce hierarchical-allgather "
    "timeline-mark-cycles prefix-output-with-timestamp",
    1: "n np num-proc min-np min-num-proc max-np max-num-proc host-discovery-script slots slots-per-host H hosts "
    "hostfile p ssh-port i ssh-identity-file network-interface network-interfaces start-timeout mpi-args "
    "output-filename timeline-filename fusion-threshold-mb cycle-time-ms cache-capacity log-level config-file "
    "num-nccl-streams thread-affinity reset-limit elastic-timeout gloo-timeout-seconds binding-args",
}
_HYDRA = (
    *("genv", "genvall", "genvlist", "genvnone", "envlist", "env", "ppn", "perhost", "hosts", "f"),
    *("bootstrap", "iface", "launcher", "prepend-rank", "l"),
)
"""Options that mpirun has in MPICH and Intel MPI, but not in Open MPI."""
_HOROVOD_ENV = {
    "timeline-filename": "HOROVOD_TIMELINE",
    "timeline-mark-cycles": "HOROVOD_TIMELINE_MARK_CYCLES",
    "cycle-time-ms": "HOROVOD_CYCLE_TIME",
    "cache-capacity": "HOROVOD_CACHE_CAPACITY",
    "log-level": "HOROVOD_LOG_LEVEL",
    "num-nccl-streams": "HOROVOD_NUM_NCCL_STREAMS",
    "thread-affinity": "HOROVOD_THREAD_AFFINITY",
    "autotune": "HOROVOD_AUTOTUNE",
    "hierarchical-allreduce": "HOROVOD_HIERARCHICAL_ALLREDUCE",
    "hierarchical-allgather": "HOROVOD_HIERARCHICAL_ALLGATHER",
}
_ELASTIC = ("min-np", "min-num-proc", "max-np", "max-num-proc", "host-discovery-script", "reset-limit")
# MCA parameters that dtj sets on the command line of mpirun. The environment must not set the same parameters.
_DTJS_MCA = ("pml", "btl")
_DTJS_MCA_PREFIXES = ("plm_", "orte_", "prte_", "rmaps_", "ras_")
_COUNTS = ("n", "np", "c", "num-proc")
_PER_NODE = ("npernode", "N", "ppn", "perhost", "slots", "slots-per-host")
_HOSTS = ("H", "host", "hosts")
_HOSTFILES = ("hostfile", "machinefile", "f")
# Options that place ranks in a way that dtj does not support.
_PLACING = ("rf", "rankfile", "npersocket", "launch-agent", "nolocal")
_REFERENCE = re.compile(r"\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")


class NoProgram(ValueError):
    """The command does not show for certain which words are the program."""


@dataclass
class Launch:
    """The parts of a launcher's command."""

    program: list[str] = field(default_factory=list)
    starter: list[str] = field(default_factory=list)
    """mpirun or horovodrun with its options."""
    counting: list[list[str]] = field(default_factory=list)
    """The options that set the number of ranks, each with its values."""
    dropped: list[list[str]] = field(default_factory=list)
    """The options that have no effect on dtj's mpirun, each with its values."""
    ranks: int | None = None
    """The number of ranks, from -np."""
    per_node: int | None = None
    """The number of ranks on each node, from -npernode."""
    by_node: bool = False
    """Whether successive ranks go to successive nodes, instead of filling one node after another."""
    oversubscribes: bool = False
    """Whether there may be more ranks than slots."""
    hosts: dict[str, int | None] | None = None
    """The number of ranks by host, from -H; None for a host without a number."""
    hostfile: str | None = None
    as_root: bool = False
    odd: list[str] = field(default_factory=list)
    """Options that place or count ranks in a way that the conversion does not follow."""
    hydra: list[str] = field(default_factory=list)
    """Options, or a program name, that Open MPI does not have."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables that the options set for the ranks."""
    exported: list[str] = field(default_factory=list)
    """Names of variables that mpirun copies from the launcher to the ranks."""
    workdir: str | None = None
    elastic: dict[str, str] = field(default_factory=dict)
    """Options that only an elastic run has."""

    @property
    def by_horovodrun(self) -> bool:
        """Whether horovodrun starts the ranks."""
        return posixpath.basename(self.starter[0]) in HOROVODRUN

    @property
    def path(self) -> str | None:
        """The path of mpirun, if the command has one."""
        return self.starter[0] if "/" in self.starter[0] and not self.by_horovodrun else None


def parse_launch(words: Sequence[str], env: Mapping[str, str | None] | None = None) -> Launch:
    """Parse a launcher's command. Raises NoProgram if the parser can't identify the program for certain.

    env: the launcher's variables, with which the kubelet expands `$(NAME)`; None for an unknown value.
    """
    words = _without_shell(words)
    first = posixpath.basename(_expanded(words[0], env or {})[0]) if words else ""
    if first in MPIRUN:
        table = _MPIRUN_VALUES
    elif first in HOROVODRUN:
        table = _HOROVODRUN_VALUES
    else:
        raise NoProgram(f"begins with {first or 'nothing'}, not with mpirun or horovodrun")
    arities = {option: count for count, options in table.items() for option in options.split()}
    launch = Launch(hydra=[first] if first.endswith(".hydra") else [])
    index = 1
    while index < len(words) and words[index].startswith("-") and words[index] != "-":
        begin, option = index, words[index]
        index += 1
        if option == "--":
            break
        name, equals, value = option.lstrip("-").partition("=")
        if name not in arities:
            raise NoProgram(f"has the option {option}, of which dtj does not know how many values follow")
        values = [value] if equals else list(words[index : index + arities[name]])
        index += 0 if equals else arities[name]
        _read(launch, words[begin:index], name, values, env or {}, horovodrun=first in HOROVODRUN)
    launch.program = list(words[index:])
    launch.starter = [_expanded(words[0], env or {})[0], *words[1:index]]
    if not launch.program:
        raise NoProgram("has no program after the options")
    if ":" in launch.program:
        raise NoProgram("starts several programs, and dtj's mpirun starts one")
    return launch


def _without_shell(words: Sequence[str]) -> list[str]:
    """Return the words of the command that a shell runs, as in [sh, -c, mpirun python train.py]. Raises NoProgram."""
    if not words or posixpath.basename(words[0]) not in _SHELLS:
        return list(words)
    if len(words) != 3 or not (words[1].startswith("-") and words[1].endswith("c")):
        raise NoProgram("is a shell script")
    if set(words[1]) & {"l", "i"}:
        raise NoProgram("runs in a shell that first reads its profile")
    script = words[2].strip().replace("\\\n", " ").removeprefix("exec ")
    # With one of these characters, a shell expands words or runs several commands.
    if any(sign in script for sign in "$`;&|<>*?~#{}[]\n("):
        raise NoProgram("is a shell script that does more than start mpirun")
    try:
        return shlex.split(script)
    except ValueError:
        raise NoProgram("is a shell script with an open quote") from None


def _expanded(word: str, env: Mapping[str, str | None]) -> tuple[str, bool]:
    """Return the word as the kubelet expands it, and whether all values are known."""
    names = [name for name in _REFERENCE.findall(word) if name in env]
    values = {name: value for name in names if (value := env[name]) is not None and "$(" not in value}
    known = len(values) == len(names) and not (names and "$$" in word)
    return (_REFERENCE.sub(lambda match: values.get(match[1], match[0]), word) if known else word), known


def _read(
    launch: Launch,
    words: list[str],
    name: str,
    values: list[str],
    env: Mapping[str, str | None],
    *,
    horovodrun: bool,
) -> None:
    expanded = [_expanded(value, env) for value in values]
    values = [value for value, _ in expanded]
    if not all(known for _, known in expanded):
        launch.odd.append(shlex.join(words))
    value = values[0] if values else ""
    if not horovodrun and name in _HYDRA:
        launch.hydra.append(words[0])
    if _read_number_of_ranks(launch, words, name, values):
        launch.counting.append(words)
        return
    if _read_variables(launch, name, values):
        return
    if name in ("wdir", "wd"):
        launch.workdir = value
    elif name == "allow-run-as-root":
        launch.as_root = True
    elif horovodrun and name in _ELASTIC:
        launch.elastic[name] = value
    elif not (horovodrun and _read_horovod(launch, name, value)):
        launch.dropped.append(words)


def _read_number_of_ranks(launch: Launch, words: list[str], name: str, values: list[str]) -> bool:
    """Read an option about ranks and hosts. Return whether the option only counts ranks."""
    value = values[0] if values else ""
    if name in (*_COUNTS, *_PER_NODE):
        number = int(value) if re.fullmatch("[1-9][0-9]{0,6}", value) else None
        if number is None:
            launch.odd.append(shlex.join(words))
        elif name in _COUNTS:
            launch.ranks = number
        else:
            launch.per_node = number
        return True
    if name == "pernode":
        launch.per_node = 1
        return True
    if name == "oversubscribe" or (name.endswith("mca") and value == "rmaps_base_oversubscribe"):
        launch.oversubscribes |= values[-1:] in ([], ["1"], ["true"], ["yes"])
        return True
    if name in _HOSTS:
        launch.hosts = _hosts(value)
    elif name in _HOSTFILES:
        launch.hostfile = value
    elif name == "bynode":
        launch.by_node = True
    elif name == "map-by" or (name.endswith("mca") and value == "rmaps_base_mapping_policy"):
        _read_mapping(launch, words, values[-1])
    elif name in _PLACING:
        launch.odd.append(shlex.join(words))
    return False


def _read_mapping(launch: Launch, words: list[str], policy: str) -> None:
    unit, *modifiers = policy.split(":")
    modifiers = [modifier.upper() for modifier in modifiers]
    if unit.lower() == "ppr" and len(modifiers) > 1 and modifiers[1] == "NODE" and modifiers[0].isdecimal():
        launch.per_node = int(modifiers[0])
    elif unit.lower() == "ppr":
        launch.odd.append(shlex.join(words))
    elif unit.lower() == "node":
        launch.by_node = True
    launch.oversubscribes |= "OVERSUBSCRIBE" in modifiers


def _hosts(value: str) -> dict[str, int | None]:
    """Parse the value of `-H`, such as `a:2,b:2`. Each mention of a host adds to its slots."""
    hosts: dict[str, int | None] = {}
    for entry in filter(None, value.split(",")):
        host, _, slots = entry.partition(":")
        number = int(slots) if slots.isdecimal() else None
        hosts[host] = (hosts[host] or 1) + (number or 1) if host in hosts else number
    return hosts


def _read_variables(launch: Launch, name: str, values: list[str]) -> bool:
    """Read an option that sets a variable of the ranks. Return whether the option does so."""
    value = values[0] if values else ""
    if name == "x":
        variable, equals, content = value.partition("=")
        if equals:
            launch.env[variable] = content
        else:
            launch.exported.append(variable)
    elif name in ("genvlist", "envlist"):
        launch.exported += [variable for variable in value.split(",") if variable]
    elif name in ("genv", "env") and len(values) == 2:
        launch.env[value] = values[1]
    elif name.endswith("mca") and len(values) == 2 and _is_free(value):
        launch.env[f"OMPI_MCA_{value}"] = values[1]
    else:
        return False
    return True


def _read_horovod(launch: Launch, name: str, value: str) -> bool:
    if name in _HOROVOD_ENV:
        launch.env[_HOROVOD_ENV[name]] = value or "1"
    elif name == "fusion-threshold-mb" and value.isdecimal():
        launch.env["HOROVOD_FUSION_THRESHOLD"] = str(int(value) * 1024 * 1024)
    elif name == "disable-cache":
        launch.env["HOROVOD_CACHE_CAPACITY"] = "0"
    else:
        return False
    return True


def _is_free(parameter: str) -> bool:
    return parameter not in _DTJS_MCA and not parameter.startswith(_DTJS_MCA_PREFIXES)

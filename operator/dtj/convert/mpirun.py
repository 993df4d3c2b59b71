"""The program in a launcher's `mpirun … python train.py` or `horovodrun … python train.py`, and what its options mean
for a job whose mpirun is dtj's own.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

MPIRUN = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
HOROVODRUN = ("horovodrun",)
_SHELLS = ("sh", "bash", "dash")

# How many words follow an option. Only those known here can be left out: of another, nobody can say whether the
# word after it is its value or the program.
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
# What dtj's own mpirun has: the same on its command line and in the environment would contradict it.
_DTJS_MCA = ("pml", "btl")
_DTJS_MCA_PREFIXES = ("plm_", "orte_", "prte_", "rmaps_", "ras_")


class NoProgram(ValueError):
    """The program can't be told from the words around it."""


@dataclass
class Launch:
    """A launcher's command, taken apart."""

    program: list[str] = field(default_factory=list)
    starter: list[str] = field(default_factory=list)
    """mpirun or horovodrun with its options."""
    ranks: int | None = None
    """As -np says."""
    env: dict[str, str] = field(default_factory=dict)
    """What its options set for the ranks."""
    exported: list[str] = field(default_factory=list)
    """Names of variables that the ranks get from the launcher."""
    workdir: str | None = None
    elastic: list[str] = field(default_factory=list)
    """Options that only an elastic run has."""


def taken_apart(words: Sequence[str]) -> Launch:
    """Read a launcher's words. Raises NoProgram where that would be a guess."""
    words = _without_shell(words)
    first = posixpath.basename(words[0]) if words else ""
    if first in MPIRUN:
        table = _MPIRUN_VALUES
    elif first in HOROVODRUN:
        table = _HOROVODRUN_VALUES
    else:
        raise NoProgram(f"begins with {first or 'nothing'}, where dtj needs to see mpirun or horovodrun")
    arities = {option: count for count, options in table.items() for option in options.split()}
    launch = Launch()
    index = 1
    while index < len(words) and words[index].startswith("-") and words[index] != "-":
        option = words[index]
        index += 1
        if option == "--":
            break
        name, equals, value = option.lstrip("-").partition("=")
        if name not in arities:
            raise NoProgram(f"has the option {option}, of which dtj can't tell where it ends")
        values = [value] if equals else list(words[index : index + arities[name]])
        index += 0 if equals else arities[name]
        _read_option(launch, name, values, horovodrun=first in HOROVODRUN)
    launch.program, launch.starter = list(words[index:]), list(words[:index])
    if not launch.program:
        raise NoProgram("has no program after the options")
    if ":" in launch.program:
        raise NoProgram("starts several programs, and dtj starts one")
    return launch


def _without_shell(words: Sequence[str]) -> list[str]:
    """The words of a simple command that a shell runs, as in [sh, -c, mpirun python train.py]."""
    if not words or posixpath.basename(words[0]) not in _SHELLS:
        return list(words)
    if len(words) != 3 or not (words[1].startswith("-") and words[1].endswith("c")):
        raise NoProgram("is a shell script")
    script = words[2].strip().replace("\\\n", " ").removeprefix("exec ")
    # What a shell would expand, or more than one command: a list of words would not do the same.
    if any(sign in script for sign in "$`;&|<>*?\n("):
        raise NoProgram("is a shell script that does more than to start mpirun")
    try:
        return shlex.split(script)
    except ValueError:
        raise NoProgram("is a shell script with an open quote") from None


def _read_option(launch: Launch, name: str, values: list[str], *, horovodrun: bool) -> None:
    value = values[0] if values else ""
    if name in ("n", "np", "c", "num-proc"):
        launch.ranks = int(value) if value.isdecimal() else None
    elif name == "x":
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
    elif name in ("wdir", "wd"):
        launch.workdir = value
    elif horovodrun:
        _read_horovod(launch, name, value)


def _read_horovod(launch: Launch, name: str, value: str) -> None:
    if name in _HOROVOD_ENV:
        launch.env[_HOROVOD_ENV[name]] = value or "1"
    elif name == "fusion-threshold-mb" and value.isdecimal():
        launch.env["HOROVOD_FUSION_THRESHOLD"] = str(int(value) * 1024 * 1024)
    elif name in _ELASTIC:
        launch.elastic.append(f"--{name} {value}")


def _is_free(parameter: str) -> bool:
    return parameter not in _DTJS_MCA and not parameter.startswith(_DTJS_MCA_PREFIXES)


def lost_options(starter: Sequence[str]) -> Iterator[tuple[str, str]]:
    """MCA parameters that contradict dtj's: name and value."""
    usual = {("pml", "ob1"), ("btl", "^openib")}
    for word, name, value in zip(starter, starter[1:], starter[2:], strict=False):
        if word.lstrip("-") in ("mca", "gmca") and not _is_free(name) and (name, value) not in usual:
            yield name, value

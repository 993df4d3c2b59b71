"""Open MPI's mpirun: its command line, and what its own messages mean."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dtj_trainer.launch.settings import Settings

RANK_SCRIPT = "rank.sh"
HOSTFILE = "hostfile"
# openib warns where there is no InfiniBand. ofi is for one-sided access alone, which Horovod does not use, and polls
# sockets whenever a rank waits: a tenth of a training on two cores.
NOT_USED = "^openib,ofi"


def mpirun_command(settings: Settings, command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The mpirun that starts every rank by `rank.sh`.

    Options with two dashes are understood by Open MPI 4 and 5 alike.
    """
    hostfile = settings.config_dir / HOSTFILE
    given = {"OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"} & set(environment)
    return [
        settings.mpirun,
        *([] if given else ["--hostfile", str(hostfile)]),
        *("-n", str(settings.world_size), "--bind-to", "none", "--map-by", "slot"),
        *("--mca", "pml", "ob1", "--mca", "btl", NOT_USED),
        *settings.mpi_args,
        *rank_command(settings, command),
    ]


def rank_command(settings: Settings, command: Sequence[str]) -> list[str]:
    """What starts one rank."""
    return ["/bin/sh", str(settings.config_dir / RANK_SCRIPT), *command]


def local_mpirun_command(settings: Settings, command: Sequence[str]) -> list[str]:
    """The mpirun that starts every rank on this machine; ranks reach each other in shared memory.

    The machine is named so that neither a default hostfile nor a batch system gives other hosts.
    """
    return [
        *("mpirun", "--host", f"localhost:{settings.world_size}", "--oversubscribe"),
        *("-n", str(settings.world_size), "--bind-to", "none"),
        *("--mca", "pml", "ob1", "--mca", "btl", "self,vader"),
        *("--mca", "oob_tcp_if_include", "lo", "--mca", "oob_tcp_disable_ipv6_family", "true"),
        *settings.mpi_args,
        *rank_command(settings, command),
    ]


def local_mpirun_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of that mpirun: ranks that wait leave the processors, which may be few, to others."""
    settings = {"OMPI_MCA_mpi_yield_when_idle": "1"}
    if os.geteuid() != 0:
        # Each rank has its `/dtj` by a user namespace of its own (own_root.py), and the kernel lets no process read
        # another's memory across user namespaces: Open MPI would warn of that in each run.
        settings["OMPI_MCA_btl_vader_single_copy_mechanism"] = "none"
    return {**settings, **mpirun_environment(environment)}


def mpirun_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of mpirun: it refuses to run as root unless told twice."""
    allowed = dict(environment)
    if os.geteuid() == 0:
        allowed |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        allowed |= {"PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return allowed


class Blame(NamedTuple):
    """What mpirun said about the process that ended the job; None where it said nothing."""

    rank: int | None = None
    host: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    too_few_slots: bool = False


_BY_SIGNAL = re.compile(r"process rank (\d+) with PID \d+ on node (\S+) exited on signal (\d+)", re.DOTALL)
_PROCESS_NAME = re.compile(r"Process name: \[\[\d+,\d+\],(\d+)\]")
_EXIT_CODE = re.compile(r"Exit code:\s+(\d+)")
_NON_ZERO = re.compile(r"process(?:es)? returned\s+a non-zero exit code")
_TOO_FEW_SLOTS = re.compile(r"There are not enough slots available")


def read_blame(lines: Sequence[str], own_exit_code: int) -> Blame:
    """Read mpirun's closing message: for images whose ranks tell nothing themselves.

    `own_exit_code` is mpirun's: that of the first process that failed, where the message names none.
    """
    text = "\n".join(lines)
    if _TOO_FEW_SLOTS.search(text):
        return Blame(too_few_slots=True)
    if found := _BY_SIGNAL.search(text):
        return Blame(rank=int(found[1]), host=found[2], signal=int(found[3]))
    if code := _EXIT_CODE.search(text):
        name = _PROCESS_NAME.search(text)
        return Blame(rank=int(name[1]) if name else None, exit_code=int(code[1]))
    if _NON_ZERO.search(text):
        return Blame(exit_code=own_exit_code)
    return Blame()

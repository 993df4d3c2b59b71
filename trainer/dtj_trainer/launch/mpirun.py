"""Open MPI's mpirun: its command line, and the meaning of its messages."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dtj_trainer.launch.settings import Settings

RANK_SCRIPT = "rank.sh"
HOSTFILE = "hostfile"
# openib warns without InfiniBand. ofi serves one-sided communication only, which Horovod does not use, and polls
# sockets while a rank waits, which costs a tenth of a training on two cores.
NOT_USED = "^openib,ofi"


def mpirun_command(settings: Settings, command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the mpirun command that starts every rank by `rank.sh`.

    Options with two dashes work in Open MPI 4 and 5.
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
    """Return the command that starts one rank."""
    return ["/bin/sh", str(settings.config_dir / RANK_SCRIPT), *command]


def local_mpirun_command(settings: Settings, command: Sequence[str]) -> list[str]:
    """Return the mpirun command that starts every rank on this machine. Ranks communicate by shared memory.

    `--host` overrides a default hostfile and the hosts of a batch system.
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
    """Return the environment of a local mpirun: ranks that wait yield the processors, which may be few."""
    settings = {"OMPI_MCA_mpi_yield_when_idle": "1"}
    if os.geteuid() != 0:
        # Each rank has a user namespace for its `/dtj` (own_root.py), and the kernel forbids reading another
        # process's memory across user namespaces. Open MPI would warn about it in each run.
        settings["OMPI_MCA_btl_vader_single_copy_mechanism"] = "none"
    return {**settings, **mpirun_environment(environment)}


def mpirun_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of mpirun. mpirun runs as root only with both variables."""
    allowed = dict(environment)
    if os.geteuid() == 0:
        allowed |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        allowed |= {"PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return allowed


class Blame(NamedTuple):
    """What mpirun printed about the process that ended the job; None for what it did not print."""

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
    """Parse mpirun's final message, for images whose ranks report nothing themselves.

    `own_exit_code` is mpirun's own code, which is that of the first failed process.
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

"""Where the ranks of a Horovod job run, and how they are started: on hosts by ssh, or on this machine.

`launcher` waits for the hosts and runs the command. Not here: the content of the hostfile, which the operator writes
(`dtj.plan.horovod`), and the start of a rank on its host (`horovod_rank`).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from dtj_trainer import contract
from dtj_trainer.launch.peers import HostAnswer, ask_all, wait_for_peers
from dtj_trainer.launch.settings import Settings, control_socket
from dtj_trainer.launch.supervisor_socket import SupervisorGone, connect

# These functions make the commands and environments of Open MPI's mpirun, and read its hostfile.

RANK_SCRIPT = "rank.sh"
HOSTFILE = "hostfile"
# openib warns without InfiniBand. ofi serves one-sided communication only, which Horovod does not use, and polls
# sockets while a rank waits, which costs a tenth of a training on two cores.
NOT_USED = "^openib,ofi"


def mpirun_command(
    settings: Settings, command: Sequence[str], environment: Mapping[str, str], number: int = 0
) -> list[str]:
    """Return the mpirun command that starts every rank by `rank.sh`. `number`: the round.

    Options with two dashes work in Open MPI 4 and 5.
    """
    hostfile = settings.config_dir / HOSTFILE
    given = {"OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"} & set(environment)
    return [
        settings.mpirun,
        *([] if given else ["--hostfile", str(hostfile)]),
        *("-n", str(settings.world_size), "--bind-to", "none", "--map-by", "slot"),
        *("--mca", "pml", "ob1", "--mca", "btl", NOT_USED),
        *(("-x", f"{contract.ENV_ROUND}={number}") if number else ()),
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
    """Return the environment of a local mpirun. Waiting ranks yield the processor: ranks may outnumber processors."""
    settings = {"OMPI_MCA_mpi_yield_when_idle": "1"}
    if os.geteuid() != 0:
        # Each rank has a user namespace for its `/dtj` (own_root.py), and the kernel forbids reading another
        # process's memory across user namespaces. Open MPI would warn about it in each run.
        settings["OMPI_MCA_btl_vader_single_copy_mechanism"] = "none"
    return {**settings, **mpirun_environment(environment)}


def mpirun_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of mpirun. For root, Open MPI 4 needs the variables OMPI_…, and Open MPI 5 PRTE_…."""
    allowed = dict(environment)
    if os.geteuid() == 0:
        allowed |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        allowed |= {"PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return allowed


class HostfileError(ValueError):
    """The hostfile is missing or names no host."""


def read_hosts(hostfile: Path) -> list[str]:
    """List the hosts of an Open MPI hostfile, each once, in the file's order."""
    try:
        lines = hostfile.read_text().splitlines()
    except OSError as error:
        raise HostfileError(f"the hostfile {hostfile} can't be read: {error.strerror}") from error
    words = (line.split("#", 1)[0].split() for line in lines)
    hosts = list(dict.fromkeys(line[0] for line in words if line))
    if not hosts:
        raise HostfileError(f"the hostfile {hostfile} names no host")
    return hosts


class Start(NamedTuple):
    """The command that starts all ranks and ends after them, and its environment."""

    command: list[str]
    environment: dict[str, str]


class RankHosts(Protocol):
    """The hosts of one job."""

    def wait(self) -> None:
        """Return when all hosts are ready. Raises HostfileError or PeersUnreachable."""

    def lost(self) -> dict[str, str]:
        """Return the hosts that no longer answer, with the reason."""

    def start(self, program: Sequence[str], number: int) -> Start:
        """Return the command that starts the program as every rank of a round."""


def worker_names(settings: Settings) -> list[str]:
    """Return the names of the workers within the job, by index."""
    return [f"worker-{index}" for index in range(settings.world_size // settings.slots_per_worker)]


class SshHosts:
    """The hosts of the hostfile, where mpirun starts ranks by ssh."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def wait(self) -> None:
        """Return when all hosts answer. Raises HostfileError or PeersUnreachable."""
        settings = self._settings
        self._names = read_hosts(settings.config_dir / HOSTFILE)
        fault = f"can't be reached by ssh on port {settings.ssh_port}"
        wait_for_peers(self._names, self._ask, settings.peer_timeout, "hosts", fault)

    def lost(self) -> dict[str, str]:
        """Return the hosts that no longer answer, with the reason."""
        return _not_ready(self._ask(self._names))

    def start(self, program: Sequence[str], number: int) -> Start:
        """Return an mpirun command with the hostfile."""
        command = mpirun_command(self._settings, program, self._settings.environment, number)
        return Start(command, mpirun_environment(self._settings.environment))

    def _ask(self, names: list[str]) -> dict[str, HostAnswer]:
        return ask_all(names, self._settings.ssh_port)


class LocalWorkers:
    """Workers that are processes of this machine, where mpirun or gloo starts all ranks."""

    def __init__(self, settings: Settings, workspaces: str) -> None:
        """`workspaces`: the common prefix of all workers' workspaces."""
        self._settings = settings
        self._roots = {
            name: Path(f"{workspaces}{index}") for index, name in enumerate(worker_names(settings))
        }

    def wait(self) -> None:
        """Return when all supervisors answer. Raises PeersUnreachable."""
        wait_for_peers(list(self._roots), self._ask, self._settings.peer_timeout, "workers", "are not ready")

    def lost(self) -> dict[str, str]:
        """Return the workers whose supervisor no longer answers."""
        return _not_ready(self._ask(list(self._roots)))

    def start(self, program: Sequence[str], number: int) -> Start:
        """Return an mpirun command if mpirun is installed, else gloo, unless the job chooses."""
        settings = self._settings
        environment = {**settings.environment, contract.ENV_ROUND: str(number)}
        ranks_by = settings.ranks_by or ("mpi" if shutil.which("mpirun") else "gloo")
        if ranks_by == "mpi":
            return Start(local_mpirun_command(settings, program), local_mpirun_environment(environment))
        starter = [sys.executable, "-m", "dtj_trainer.launch.gloo_ranks", str(settings.world_size)]
        return Start([*starter, *rank_command(settings, program)], environment)

    def wait_until_open(self, number: int) -> None:
        """Return when each worker is open for ranks of this round, or never will be."""
        for root in self._roots.values():
            self._ask_one(root, number)

    def _ask(self, names: list[str]) -> dict[str, HostAnswer]:
        return {name: self._ask_one(self._roots[name], 0) for name in names}

    def _ask_one(self, root: Path, number: int) -> HostAnswer:
        supervisor = connect(control_socket(root))
        if supervisor is None:
            return HostAnswer.NO_SUPERVISOR
        try:
            # gloo gives up when ranks start half a minute apart, as they would after restores of different lengths.
            supervisor.ready(number)
        except SupervisorGone:
            return HostAnswer.NO_SUPERVISOR
        finally:
            supervisor.close()
        return HostAnswer.READY


def _not_ready(answers: dict[str, HostAnswer]) -> dict[str, str]:
    return {name: answer.value for name, answer in answers.items() if answer is not HostAnswer.READY}


def rank_hosts(settings: Settings) -> RankHosts:
    """Return the hosts of this process's job."""
    return local_workers(settings) if settings.local_workers else SshHosts(settings)


def local_workers(settings: Settings) -> LocalWorkers:
    """Return the workers of a job whose ranks all run on this machine."""
    assert settings.local_workers is not None
    return LocalWorkers(settings, settings.local_workers)

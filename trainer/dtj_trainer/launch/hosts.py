"""Where the ranks of a Horovod job run, and how they are started: on hosts by ssh, or on this machine."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from dtj_trainer.launch.control import SupervisorGone, connect
from dtj_trainer.launch.mpirun import (
    HOSTFILE,
    local_mpirun_command,
    local_mpirun_environment,
    mpirun_command,
    mpirun_environment,
    rank_command,
)
from dtj_trainer.launch.peers import Answer, ask_all, read_hosts, wait_for_peers
from dtj_trainer.launch.settings import Settings, control_socket


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

    def start(self, program: Sequence[str]) -> Start:
        """Return the command that starts the program as every rank."""


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

    def start(self, program: Sequence[str]) -> Start:
        """Return an mpirun command with the hostfile."""
        command = mpirun_command(self._settings, program, self._settings.environment)
        return Start(command, mpirun_environment(self._settings.environment))

    def _ask(self, names: list[str]) -> dict[str, Answer]:
        return ask_all(names, self._settings.ssh_port)


class LocalWorkers:
    """Workers that are processes of this machine, where mpirun or gloo starts all ranks."""

    def __init__(self, settings: Settings, workspaces: str) -> None:
        """`workspaces`: the common prefix of all workers' workspaces."""
        self._settings = settings
        count = settings.world_size // settings.slots_per_worker
        self._roots = {f"worker-{index}": Path(f"{workspaces}{index}") for index in range(count)}

    def wait(self) -> None:
        """Return when all supervisors answer. Raises PeersUnreachable."""
        wait_for_peers(list(self._roots), self._ask, self._settings.peer_timeout, "workers", "are not ready")

    def lost(self) -> dict[str, str]:
        """Return the workers whose supervisor no longer answers."""
        return _not_ready(self._ask(list(self._roots)))

    def start(self, program: Sequence[str]) -> Start:
        """Return an mpirun command if mpirun is installed, else gloo, unless the job chooses."""
        settings = self._settings
        ranks_by = settings.ranks_by or ("mpi" if shutil.which("mpirun") else "gloo")
        if ranks_by == "mpi":
            return Start(
                local_mpirun_command(settings, program), local_mpirun_environment(settings.environment)
            )
        starter = [sys.executable, "-m", "dtj_trainer.launch.gloo_ranks", str(settings.world_size)]
        return Start([*starter, *rank_command(settings, program)], dict(settings.environment))

    def _ask(self, names: list[str]) -> dict[str, Answer]:
        return {name: self._ask_one(self._roots[name]) for name in names}

    def _ask_one(self, root: Path) -> Answer:
        supervisor = connect(control_socket(root))
        if supervisor is None:
            return Answer.NO_SUPERVISOR
        try:
            # gloo gives up when ranks start half a minute apart, as they would after restores of different lengths.
            supervisor.ready()
        except SupervisorGone:
            return Answer.NO_SUPERVISOR
        finally:
            supervisor.close()
        return Answer.READY


def _not_ready(answers: dict[str, Answer]) -> dict[str, str]:
    return {name: answer.value for name, answer in answers.items() if answer is not Answer.READY}


def rank_hosts(settings: Settings) -> RankHosts:
    """Return the hosts of this process's job."""
    return LocalWorkers(settings, settings.local_workers) if settings.local_workers else SshHosts(settings)

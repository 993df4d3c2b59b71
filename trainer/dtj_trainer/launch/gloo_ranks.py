"""Starts all ranks on this machine, and lets Horovod connect them by gloo, without mpirun.

`python -m dtj_trainer.launch.gloo_ranks RANKS COMMAND…`. Horovod's own horovodrun would do the same, but it shows the
environment with its secrets in the process list, listens on all interfaces, and gives ranks only 5 s to save a
checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

from dtj_trainer import contract
from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.launch.failure import signal_name
from dtj_trainer.launch.mpirun_hosts import local_workers
from dtj_trainer.launch.output import writer_to
from dtj_trainer.launch.program import STOP_ALL_RANKS
from dtj_trainer.launch.settings import read_settings
from dtj_trainer.launch.termination import RankExit, marker_line
from dtj_trainer.parent_death import die_with_parent

KILL_SECONDS = 5.0
"""Seconds from the SIGTERM after another rank's failure to SIGKILL."""
LOOPBACK = "127.0.0.1"
LOOPBACK_INTERFACE = "lo"


def rank_environments(ranks: int) -> list[Mapping[str, str]]:
    """Start the ranks' rendezvous server; return the variables by which each rank finds the others.

    Raises ImportError without Horovod.
    """
    from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
    from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    slots = get_host_assignments([HostInfo("localhost", ranks)], ranks)
    server = RendezvousHTTPServer((LOOPBACK, 0), RendezvousHandler, 0)
    server.init(slots)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    shared = create_run_env_vars(LOOPBACK, [LOOPBACK_INTERFACE], str(server.server_port))
    return [{**shared, **create_slot_env_vars(slot)} for slot in slots]


class GlooRanks:
    """The ranks of one run. Use it in the main thread."""

    def __init__(self) -> None:
        self._running: dict[int, int] = {}
        """The rank of each process."""
        self._stopping = False
        self._exit_code = 0

    def run(self, command: Sequence[str], environments: Sequence[Mapping[str, str]]) -> int:
        """Run until all ranks have ended; return the exit code of the first rank that failed."""
        signal.signal(STOP_ALL_RANKS, lambda number, _: self._stop(number))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._end())
        for rank, environment in enumerate(environments):
            if self._stopping:
                break
            process = subprocess.Popen(  # noqa: S603 - the launcher gives the command
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                preexec_fn=die_with_parent(),
            )
            self._running[process.pid] = rank
        while self._running:
            pid, status = os.wait()
            rank_ended = self._running.pop(pid, None)
            if rank_ended is not None:
                self._ended(rank_ended, os.waitstatus_to_exitcode(status))
        return self._exit_code

    def _ended(self, rank: int, code: int) -> None:
        if code == 0:
            return
        self._exit_code = self._exit_code or (code if code > 0 else 128 - code)
        if code < 0 and not self._stopping:
            message = f"the process of rank {rank} was killed by {signal_name(-code)}"
            _print_exit(
                {"class": FailureClass.SIGNAL, "message": message, "rank": rank, "exitCode": 128 - code}
            )
        self._end()

    def _end(self) -> None:
        """End all ranks, after a failure of one rank or after a signal."""
        self._stop(signal.SIGTERM)
        killing = threading.Timer(KILL_SECONDS, self._stop, (signal.SIGKILL,))
        killing.daemon = True
        killing.start()

    def _stop(self, number: int) -> None:
        self._stopping = True
        for pid in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _print_exit(exit_report: RankExit) -> None:
    writer_to(sys.stdout.fileno())(marker_line(exit_report).encode())


def main() -> int:
    """Run the command line; return the exit code."""
    ranks, command = int(sys.argv[1]), sys.argv[2:]
    try:
        environments = rank_environments(ranks)
    except ImportError as error:
        message = f"ranks can't be started by gloo: {error}; install horovod, or mpirun (openmpi-bin)"
        _print_exit(
            {
                "class": FailureClass.COMMAND_NOT_FOUND,
                "message": message,
                "exitCode": contract.EXIT_COMMAND_NOT_FOUND,
            }
        )
        return contract.EXIT_COMMAND_NOT_FOUND
    if number := int(os.environ.get(contract.ENV_ROUND) or 0):
        # Wait in later rounds only: before the first start of the ranks, the launcher itself waits for the workers.
        local_workers(read_settings(os.environ)).wait_until_open(number)
    return GlooRanks().run(command, environments)


if __name__ == "__main__":
    sys.exit(main())

"""One pod's part in the rounds of its job: its connections, and what each round changes in its environment.

The agent of rank 0's pod is the coordinator: see `restart_in_place`. What the pod does in a round is in `replica`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from dtj_trainer.launch.peers import StartBarrier, listener_on
from dtj_trainer.launch.pod_connections import PodConnections
from dtj_trainer.launch.restart_in_place import Coordinator
from dtj_trainer.launch.round_agent import Agent, AgentAction
from dtj_trainer.launch.round_messages import Go, Snapshot
from dtj_trainer.launch.round_server import RoundLink, RoundServer
from dtj_trainer.launch.settings import Settings
from dtj_trainer.launch.termination import RankExit

_PORTS_TRIED = 100


class PodRounds:
    """The rounds on the side of one pod. Use it in the main thread, and not in a handler of signals: a handler may
    interrupt another call.
    """

    def __init__(
        self,
        settings: Settings,
        barrier: StartBarrier,
        held: PodConnections | socket.socket,
        *,
        newest_snapshot: Callable[[], Snapshot | None],
        record: Callable[[RankExit | None], None],
        take: Callable[[AgentAction], None],
    ) -> None:
        """Join the rounds of the job in the background.

        `held`: what `barrier` has returned; owned from now on. `newest_snapshot`: called in rank 0's pod, in a thread
        of its own. `record`, `take`: see RoundLink.
        """
        self._server: RoundServer | None = None
        first, port = None, None
        if isinstance(held, PodConnections):
            self._server, port = _server(settings, held, newest_snapshot), held.port
            self._server.start()
        else:
            first = held
        self._link = RoundLink(Agent(settings.peer_timeout), lambda: barrier.connect(port), record, take)
        self._link.start(first)

    def failed(self, report: RankExit) -> None:
        """Take in the failure of a program that was not asked to stop."""
        self._link.happened(lambda agent, now: agent.failed(report, now))

    def done(self) -> None:
        """Take in that all programs succeeded."""
        self._link.happened(lambda agent, _: agent.done())

    def ended(self, number: int) -> None:
        """Take in that no process of the programs is left after EndPrograms of this round."""
        self._link.happened(lambda agent, _: agent.ended(number))

    def leave(self, why: str) -> None:
        """Take part in no later round. `why`: a predicate of which the pod is the subject."""
        self._link.happened(lambda agent, _: agent.leave(why))

    def close(self) -> None:
        """Close the connections. The agents of other pods go on without rounds if this pod was the coordinator."""
        self._link.close()
        if self._server:
            self._server.close()


def _server(
    settings: Settings, connections: PodConnections, newest_snapshot: Callable[[], Snapshot | None]
) -> RoundServer:
    pod, rounds = settings.pod, settings.pod.rounds
    assert rounds is not None
    names = [f"{pod.role}-{index}" for index in range(settings.world_size // pod.slots)]
    coordinator = Coordinator(names, rounds.before, rounds.limit, settings.peer_timeout)
    first_port = int(settings.environment.get("MASTER_PORT") or 0)
    return RoundServer(connections, coordinator, lambda: (newest_snapshot(), free_port(first_port + 1)))


def free_port(first: int) -> int:
    """Return a port on which nothing listens: the first one from `first`, where the kernel gives none to clients."""
    for port in (*range(max(first, 1024), min(first + _PORTS_TRIED, 65536)), 0):
        try:
            with listener_on("", port) as listener:
                found: int = listener.getsockname()[1]
                return found
        except OSError:
            continue
    raise OSError("no port is free in this pod for the next MASTER_PORT")


def round_variables(environment: Mapping[str, str], go: Go) -> dict[str, str]:
    """Return the variables that have another value in a round than at the start of the pod."""
    found = {name: str(go.port) for name in ("MASTER_PORT", "PET_MASTER_PORT") if name in environment}
    if endpoint := environment.get("PET_RDZV_ENDPOINT"):
        found["PET_RDZV_ENDPOINT"] = f"{endpoint.rpartition(':')[0]}:{go.port}"
    if (restarts := environment.get("TORCHELASTIC_RESTART_COUNT", "")).isdecimal():
        found["TORCHELASTIC_RESTART_COUNT"] = str(int(restarts) + go.round)
    return found


def first_line(go: Go) -> str:
    """Return the line before the output of a round's programs in their logs."""
    failure = go.failure
    cause = f"{failure.get('role', 'pod')}-{failure['index']}: {failure['message']}" if failure else "unknown"
    return f"dtj: round {go.round} begins, after the failure of {cause}"

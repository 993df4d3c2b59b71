"""`python -m tests.bench.rounds`: what a restart in place costs the coordinator and the operator.

* The coordinator's CPU with 1,000 and with 5,000 agents. The coordinator is the real one, with real connections. The
  agents are one process that answers for all of them.
* The operator's requests and CPU for a job of 5,000 pods, beside a restart of the same job by new pods. The CPU of
  the doubles does not count: of the API server, which is in memory, and of the cache, which searches all objects for
  those of a job where the operator's own has an index.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from dtj.api.identity import KIND
from dtj.status.observed import read_report
from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.launch.pod_connections import PodConnections, hello_of, read_hello
from dtj_trainer.launch.restart_in_place import Coordinator
from dtj_trainer.launch.round_messages import (
    Failed,
    Go,
    Join,
    Joined,
    Ready,
    Snapshot,
    Stop,
    coordinator_message,
    line_of,
)
from dtj_trainer.launch.round_server import RoundServer
from dtj_trainer.launch.termination import RankExit
from tests.bench.machine import machine
from tests.bench.targets import Target, verdicts
from tests.unit.support.world import KEY, World

SIZES = (1000, 5000)
RESTARTS = 5
JOB = "a-uid"
TARGETS = (
    Target("5,000/1,000 agents", "5,000/1,000 agents", 5.5, at_least=False, of_a_ratio=True),
    Target("operator, in place/new pods", "in place/new pods", 0.02, of_a_ratio=True),
    Target("writes of the status a restart", "writes", 1, of_a_ratio=True),
    Target("requests for pods a restart", "pod requests", 0, of_a_ratio=True),
)
KILLED: RankExit = {
    "class": FailureClass.SIGNAL,
    "message": "the program was killed by SIGKILL",
    "exitCode": 137,
    "index": 1,
}


def agents(port: int, count: int) -> None:
    """Answer for all agents. Whenever all of them have begun a round, say so, and let one fail at the next line."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    selector = selectors.DefaultSelector()
    connections = []
    for index in range(count):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(hello_of(JOB, 1, index) + line_of(Join()))
        selector.register(connection, selectors.EVENT_READ, index)
        connections.append(connection)
    begun = number = 0
    while True:
        for key, _ in selector.select():
            connection = connections[key.data]
            try:
                lines = connection.recv(65536).splitlines()
            except ConnectionResetError:  # The server closes the connection before it has read everything.
                return
            if not lines:
                return
            for line in lines:
                message = coordinator_message(line)
                if isinstance(message, Stop):
                    connection.sendall(line_of(Ready(message.round)))
                elif isinstance(message, Joined | Go):
                    number = message.round if isinstance(message, Go) else 0
                    begun += 1
        if begun == count:
            begun = 0
            print(number, flush=True)
            sys.stdin.readline()
            connections[1].sendall(line_of(Failed(number, KILLED)))


def coordinate(count: int) -> float:
    """Restart the ranks of so many agents; return the median CPU seconds of the server from a failure to all `go`."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    numbers = itertools.count(1)
    connections = PodConnections(listener, lambda line: read_hello(line, JOB, 1, count), count).__enter__()
    server = RoundServer(
        connections,
        Coordinator([f"worker-{index}" for index in range(count)], 0, RESTARTS + 1, 300),
        lambda: (Snapshot(1, next(numbers), "0" * 64), 29500),
    )
    words = [sys.executable, "-m", __spec__.name, "agents", str(listener.getsockname()[1]), str(count)]
    clock = time.pthread_getcpuclockid(server.start())
    seconds = []
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for restart in range(RESTARTS + 1):
            assert int(process.stdout.readline()) == restart
            seconds.append(time.clock_gettime(clock))
            process.stdin.write("fail\n")
            process.stdin.flush()
        server.close()
    return statistics.median(after - before for before, after in itertools.pairwise(seconds))


def measured(count: int) -> float:
    """The same in a process of its own."""
    words = [sys.executable, "-m", __spec__.name, "coordinate", str(count)]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


class Weighed(World):
    """Adds up the CPU seconds of passes, without those of the doubles."""

    seconds = 0.0

    def weigh(self) -> None:
        """Leave out the seconds of the API server and of the search for a job's objects from now on."""
        self.cluster._carry_out = self._left_out(self.cluster._carry_out)  # type: ignore[method-assign]
        for kind in ("pods", "services", "configs", "deployments", "records"):
            setattr(self.view, kind, self._left_out(getattr(self.view, kind)))

    def _left_out(self, do: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any) -> Any:
            begun = time.process_time()
            try:
                return do(*given)
            finally:
                self.seconds -= time.process_time() - begun

        return timed

    async def turn(self) -> None:
        begun = time.process_time()
        await super().turn()
        self.seconds += time.process_time() - begun


async def operate(count: int) -> dict[str, float]:
    """Return the operator's CPU and requests for restarts of a job of so many pods."""
    policy = {"restartStrategy": "InPlaceRestart", "backoffLimit": 2 * RESTARTS}
    world = Weighed(
        strategy="TorchDistributed", replicaSpecs={"worker": {"replicas": count}}, runPolicy=policy
    )
    world.weigh()
    world.kubelet.program = lambda pod, ran: None
    await world.until(lambda: world.phase == "Running", 1000)
    await world.rest()
    in_place, asked = [], Counter[tuple[str, str]]()
    for restart in range(1, RESTARTS + 1):
        report, _ = read_report(json.dumps({"restarts": {"count": restart, "failure": dict(KILLED)}}))
        assert report is not None
        world.progress.reports[KEY] = report
        begun, calls = world.seconds, len(world.cluster.calls)
        # The pass that counts the restart, and the one that the write of the status causes.
        for _ in range(2):
            world.view.deliver()
            await world.turn()
        in_place.append(world.seconds - begun)
        asked += Counter((call.verb, call.kind) for call in world.cluster.calls[calls:])
        assert world.status["restarts"]["inPlace"] == restart
    begun = world.seconds
    world.kubelet.program = lambda pod, ran: (1, json.dumps(KILLED)) if ran > 9 and _is_first(pod) else None
    await world.until(lambda: world.status["attempt"] == 2, 1000)
    world.kubelet.program = lambda pod, ran: None
    await world.until(lambda: world.phase == "Running", 1000)
    pod_requests = sum(times for (_, kind), times in asked.items() if kind == "Pod")
    return {
        "in place": statistics.median(in_place),
        "new pods": world.seconds - begun,
        "writes": asked["patch", KIND] / RESTARTS,
        "pod requests": pod_requests / RESTARTS,
    }


def _is_first(pod: dict[str, Any]) -> bool:
    return bool(pod["metadata"]["name"].endswith("-worker-0"))


def main() -> int:
    """Measure alternating pairs of the coordinator, and the operator once."""
    ratios = []
    print(machine())
    for number in range(int(os.environ.get("ROUNDS", "5"))):
        found = {count: measured(count) for count in (SIZES if number % 2 else reversed(SIZES))}
        ratios.append(found[SIZES[1]] / found[SIZES[0]])
        print(
            *(f"{count} agents {found[count] * 1000:.0f} ms of CPU," for count in SIZES),
            f"ratio {ratios[-1]:.2f}",
        )
    of_operator = asyncio.run(operate(SIZES[1]))
    print(
        f"operator, {SIZES[1]} pods: {of_operator['in place'] * 1000:.0f} ms of CPU in place, "
        f"{of_operator['new pods'] * 1000:.0f} ms by new pods"
    )
    figures = of_operator | {
        "5,000/1,000 agents": statistics.median(ratios),
        "in place/new pods": of_operator["in place"] / of_operator["new pods"],
    }
    lines = verdicts(TARGETS, figures)
    print(*lines, sep="\n")
    return any(line.endswith("missed") for line in lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["agents"]:
        agents(int(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1:2] == ["coordinate"]:
        print(coordinate(int(sys.argv[2])))
    else:
        sys.exit(main())

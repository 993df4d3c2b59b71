"""Rounds: their messages, the decision, and agents that restart their ranks over real connections.

`test_round_machines` has what holds in every order of events.
"""

from __future__ import annotations

import json
import socket
import threading
from queue import SimpleQueue

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trainer.conftest import until

from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.launch import pod_connections, restart_in_place
from dtj_trainer.launch import round_messages as wire
from dtj_trainer.launch.pod_connections import PodConnections, hello_of, read_hello
from dtj_trainer.launch.round_agent import (
    Agent,
    EndPrograms,
    FindSnapshot,
    Send,
    StartPrograms,
    WithoutRounds,
)
from dtj_trainer.launch.round_server import RoundLink, RoundServer

SNAPSHOT = wire.Snapshot(1, 4, "ab" * 32)
LATER = wire.Snapshot(1, 5, "cd" * 32)
WAIT = 60
NAMES = ["worker-0", "worker-1", "worker-2"]


def report(index: int, what: str = FailureClass.SIGNAL, code: int = 137) -> dict:
    return {"class": what, "message": "killed", "exitCode": code, "index": index, "rank": index}


# --- messages --------------------------------------------------------------------------------

FROM_AGENTS = [
    wire.Join(None),
    wire.Join(3),
    wire.Failed(2, report(1)),
    wire.Done(0),
    wire.Ready(7),
    wire.Found(7, SNAPSHOT),
    wire.Found(7, None, "the newest checkpoint is not complete"),
    wire.Leave("was told to end"),
]
FROM_COORDINATOR = [
    wire.Joined(),
    wire.Stop(0),
    wire.Seek(3),
    wire.Go(1, 29500, SNAPSHOT),
    wire.Go(1, 29500),
    wire.Go(2, 29500, SNAPSHOT, report(1)),
    wire.End("no new checkpoint"),
    wire.Wait("2 pods"),
]


@pytest.mark.parametrize("message", FROM_AGENTS, ids=str)
def test_a_message_of_an_agent_arrives_as_it_was(message):
    assert wire.agent_message(wire.line_of(message)) == message
    with pytest.raises(wire.InvalidMessage):
        wire.coordinator_message(wire.line_of(message))


@pytest.mark.parametrize("message", FROM_COORDINATOR, ids=str)
def test_a_message_of_the_coordinator_arrives_as_it_was(message):
    assert wire.coordinator_message(wire.line_of(message)) == message
    with pytest.raises(wire.InvalidMessage):
        wire.agent_message(wire.line_of(message))


def test_the_words_of_go_are_written_down():
    """Agents of other images read the same line."""
    assert json.loads(wire.line_of(wire.Go(1, 29500, SNAPSHOT))) == {
        "say": "go",
        "round": 1,
        "port": 29500,
        "snapshot": {"claim": 1, "number": 4, "sha256": "ab" * 32},
    }


def test_a_report_of_any_size_fits_into_a_line_and_is_safe_to_show():
    long = report(1) | {"message": "é\x1b[31m\n" * 90, "lastLogLines": ["é\x00" * 5000] * 90, "phases": {}}
    line = wire.line_of(wire.Failed(0, long))

    assert len(line) <= wire.LINE_BYTES
    arrived = wire.agent_message(line).report
    assert arrived["message"].isprintable()
    assert all(each.isprintable() for each in arrived["lastLogLines"])
    assert "phases" not in arrived


GO = {"say": "go", "round": 1, "port": 29500, "snapshot": SNAPSHOT._asdict()}
FAILED = {"say": "failed", "round": 0, "report": report(1)}


@pytest.mark.parametrize(
    "changes",
    [
        {"round": True},
        {"round": 0},
        {"round": 1.0},
        {"round": 10**4299},
        {"port": "29500; rm"},
        {"port": 22},
        {"port": 65536},
        {"snapshot": "../../etc"},
        {"failure": "Signal"},
        {"failure": report(1) | {"class": "rm -r"}},
        {"snapshot": SNAPSHOT._asdict() | {"sha256": "../" + "a" * 61}},
        {"snapshot": SNAPSHOT._asdict() | {"number": -1}},
        {"say": "run"},
        {"say": ["go"]},
    ],
    ids=lambda changes: str(changes)[:40],
)
def test_a_go_with_anything_else_is_refused(changes):
    with pytest.raises(wire.InvalidMessage):
        wire.coordinator_message(json.dumps(GO | changes).encode())


@pytest.mark.parametrize("field", ["class", "message", "exitCode", "index"])
def test_a_failure_without_what_names_it_is_refused(field):
    lacking = {name: value for name, value in report(1).items() if name != field}
    with pytest.raises(wire.InvalidMessage, match=field):
        wire.agent_message(json.dumps(FAILED | {"report": lacking}).encode())


def test_a_go_starts_no_words():
    """Fields that nobody knows do not arrive."""
    go = wire.coordinator_message(json.dumps(GO | {"command": ["sh"], "env": {"LD_PRELOAD": "x"}}).encode())

    assert go == wire.Go(1, 29500, SNAPSHOT)


@given(st.binary(max_size=200) | st.sampled_from([b"[" * 8000, b'{"say":' * 1000, b"9" * 8000, b"x" * 9000]))
def test_garbage_is_refused_and_nothing_else(line):
    for read in (wire.agent_message, wire.coordinator_message):
        with pytest.raises(wire.InvalidMessage):
            read(line)
    assert read_hello(line, "uid", 1, 4) is None


@pytest.mark.parametrize(
    ("said", "pod"),
    [
        (hello_of("uid", 3, 1), (1, 3)),
        (hello_of("uid", 4, 1), (1, 4)),
        (hello_of("uid", 2, 1), None),
        (hello_of("other", 3, 1), None),
        (hello_of("uid", 3, 4), None),
        (hello_of("uid", 3, -1), None),
        (b'{"job": "uid", "attempt": 3, "index": true}\n', None),
    ],
)
def test_a_hello_names_a_pod_of_this_or_a_later_attempt(said, pod):
    found = read_hello(said, "uid", 3, 4)
    assert (found and (found.index, found.birth)) == pod


# --- the decision ----------------------------------------------------------------------------


def history(round_: int = 0, before: int = 0, began=None, newest=None) -> restart_in_place.Past:
    return restart_in_place.Past(round_, before, began, newest, 29500)


KILLED = [restart_in_place.PodEnd("worker-1", report(1))]


@pytest.mark.parametrize(
    ("ends", "past", "limit", "decision"),
    [
        (KILLED, history(), 6, wire.Go(1, 29500, None)),
        (KILLED, history(newest=SNAPSHOT), 6, wire.Go(1, 29500, SNAPSHOT)),
        (KILLED, history(1, began=SNAPSHOT, newest=LATER), 6, wire.Go(2, 29500, LATER)),
        (KILLED, history(1, newest=SNAPSHOT), 6, wire.Go(2, 29500, SNAPSHOT)),
        (KILLED, history(1, began=SNAPSHOT, newest=SNAPSHOT), 6, "no new checkpoint"),
        (KILLED, history(1, began=LATER, newest=SNAPSHOT), 6, "no new checkpoint"),
        (KILLED, history(1), 6, "no new checkpoint"),
        (KILLED, history(), 0, "restarted 0 times: backoffLimit is 0"),
        (KILLED, history(1, 2, SNAPSHOT, LATER), 3, "restarted 3 times: backoffLimit is 3"),
        (KILLED, history(1, 1, SNAPSHOT, LATER), 3, wire.Go(2, 29500, LATER)),
        (
            [*KILLED, restart_in_place.PodEnd("worker-2", leaves="was told to end")],
            history(),
            6,
            "worker-2 was told to end",
        ),
        (
            [*KILLED, restart_in_place.PodEnd("worker-2", lost=True)],
            history(),
            6,
            "connection to worker-2 is lost",
        ),
        ([restart_in_place.PodEnd("worker-0", done=True), *KILLED], history(), 6, "worker-0 has succeeded"),
    ],
)
def test_a_round_follows_by_these_rules(ends, past, limit, decision):
    found = restart_in_place.decide_round(ends, past, limit)
    if isinstance(decision, str):
        assert isinstance(found, wire.End)
        assert decision in found.why
    else:
        assert found == decision


@pytest.mark.parametrize("what", sorted(restart_in_place.NEVER_IN_PLACE))
def test_no_round_follows_a_failure_that_the_same_pods_would_have_again(what):
    ends = [*KILLED, restart_in_place.PodEnd("worker-2", report(2, what))]
    assert isinstance(restart_in_place.decide_round(ends, history(newest=SNAPSHOT), 6), wire.End)


def test_an_own_failure_is_the_cause_before_a_lost_connection():
    lost = restart_in_place.PodEnd("worker-0", report(0, FailureClass.CONNECTION_LOST))
    assert restart_in_place.cause_of([lost, *KILLED]) == KILLED[0].report
    assert restart_in_place.cause_of([lost]) == lost.report
    assert restart_in_place.cause_of([restart_in_place.PodEnd("worker-0", done=True)]) is None


def test_a_failure_that_may_follow_another_gives_it_time_to_show():
    assert restart_in_place.patience(report(1)) == 0
    assert (
        restart_in_place.patience(report(1, FailureClass.CONNECTION_LOST, 1))
        == restart_in_place.CAUSE_SECONDS
    )
    # A rank that leaves after the others have agreed to save.
    assert restart_in_place.patience(report(1, FailureClass.CONNECTION_LOST, 143)) == 45


# --- races of the prototype, and pods of other births ----------------------------------------


def joined(count: int = 2) -> restart_in_place.Coordinator:
    coordinator = restart_in_place.Coordinator(NAMES[:count], 0, 6, WAIT)
    for index in range(count):
        actions = coordinator.joined(index, index, 1, wire.Join(), 0)
    assert actions == [restart_in_place.Tell(wire.Joined())]
    return coordinator


def test_the_end_of_an_earlier_connection_is_not_that_of_the_later_one():
    """The new connection is accepted before the end of the old one is read."""
    coordinator = joined()
    assert coordinator.joined(7, 1, 1, wire.Join(0), 1) == [restart_in_place.Close(1)]
    assert coordinator.broke(1, 1) == []
    assert coordinator.tick(1 + restart_in_place.BACK_SECONDS) == [restart_in_place.Tell(wire.Stop(0))]


def test_a_pod_that_is_done_before_the_others_is_no_loss():
    coordinator = joined()
    assert coordinator.said(1, wire.Done(0), 1) == []
    assert coordinator.broke(1, 2) == []
    assert coordinator.tick(100) == []
    assert coordinator.said(0, wire.Done(0), 101) == []
    assert coordinator.over


def test_nothing_is_stopped_where_no_round_can_follow():
    coordinator = joined()
    coordinator.said(1, wire.Done(0), 1)
    assert coordinator.said(0, wire.Failed(0, report(0)), 1) == [
        restart_in_place.Tell(wire.End("worker-1 has succeeded and ended"))
    ]


def test_a_pod_that_was_told_to_end_lets_all_ranks_save_together():
    """Nobody is stopped: the ranks of all pods go on to their checkpoint."""
    coordinator = joined()
    assert coordinator.said(1, wire.Leave("was told to end"), 1) == [
        restart_in_place.Tell(wire.End("worker-1 was told to end"))
    ]
    agent = Agent(WAIT)
    agent.connected()
    agent.heard(wire.Joined(), 0)
    assert agent.heard(wire.End("worker-1 was told to end"), 1) == [WithoutRounds("worker-1 was told to end")]


def stopped() -> restart_in_place.Coordinator:
    coordinator = joined()
    assert coordinator.said(1, wire.Failed(0, report(1)), 1) == [restart_in_place.Tell(wire.Stop(0))]
    return coordinator


def test_a_later_pod_takes_the_place_of_one_that_has_ended_its_programs_and_never_the_reverse():
    coordinator = stopped()
    coordinator.said(1, wire.Ready(0), 2)
    assert coordinator.joined(8, 1, 2, wire.Join(None), 2) == [
        restart_in_place.Close(1),
        restart_in_place.Say(8, wire.Stop(0)),
    ]
    assert coordinator.joined(9, 1, 1, wire.Join(0), 3) == [restart_in_place.Close(9)]
    assert coordinator.said(9, wire.Ready(0), 3) == []
    coordinator.said(0, wire.Ready(0), 3)
    assert coordinator.said(8, wire.Ready(0), 3) == [restart_in_place.Prepare()]


def test_a_later_pod_of_one_whose_ranks_may_run_ends_the_rounds():
    assert stopped().joined(8, 1, 2, wire.Join(), 2) == [
        restart_in_place.Tell(wire.End("worker-1 was replaced while ranks of the former pod may still run"))
    ]


def test_a_pod_that_leaves_while_the_snapshot_is_sought_is_waited_for():
    coordinator = stopped()
    coordinator.said(0, wire.Ready(0), 2)
    assert coordinator.said(1, wire.Ready(0), 2) == [restart_in_place.Prepare()]
    coordinator.broke(1, 3)
    assert coordinator.prepared(SNAPSHOT, 29501, 4) == []
    assert coordinator.joined(5, 1, 1, wire.Join(0), 5) == [restart_in_place.Say(5, wire.Stop(0))]
    assert coordinator.said(5, wire.Ready(0), 6) == [restart_in_place.Prepare()]
    assert coordinator.prepared(SNAPSHOT, 29501, 7) == [
        restart_in_place.Tell(wire.Go(1, 29501, SNAPSHOT, report(1)))
    ]


def test_the_pod_of_rank_0_is_asked_where_it_is_not_the_coordinators():
    coordinator = restart_in_place.Coordinator(NAMES[:2], 0, 6, WAIT, asks=True)
    agent = Agent(WAIT)
    agent.connected()
    for index in range(2):
        coordinator.joined(index, index, 1, wire.Join(), 0)
    agent.heard(wire.Joined(), 0)
    coordinator.said(1, wire.Failed(0, report(1)), 1)
    agent.heard(wire.Stop(0), 1)
    agent.ended(0)
    coordinator.said(1, wire.Ready(0), 2)
    assert coordinator.said(0, wire.Ready(0), 3) == [restart_in_place.Say(0, wire.Seek(0))]
    assert agent.heard(wire.Seek(0), 3) == [FindSnapshot()]
    assert agent.found(SNAPSHOT) == [Send(wire.Found(0, SNAPSHOT))]

    assert coordinator.said(1, wire.Found(0, LATER), 4) == [], "another pod's does not count"
    # It is asked again on its next connection.
    coordinator.broke(0, 5)
    coordinator.joined(2, 0, 1, wire.Join(0), 6)
    assert coordinator.said(2, wire.Ready(0), 7) == [restart_in_place.Say(2, wire.Seek(0))]
    (told,) = coordinator.said(2, wire.Found(0, SNAPSHOT), 8)
    assert (told.message.round, told.message.snapshot) == (1, SNAPSHOT)


def test_no_round_follows_where_the_pod_of_rank_0_has_no_snapshot_for_all():
    coordinator = restart_in_place.Coordinator(NAMES[:1], 0, 6, WAIT, asks=True)
    coordinator.joined(0, 0, 1, wire.Join(), 0)
    coordinator.said(0, wire.Failed(0, report(0)), 1)
    coordinator.said(0, wire.Ready(0), 2)
    assert coordinator.said(0, wire.Found(0, None, "it is torn"), 3) == [
        restart_in_place.Tell(wire.End("it is torn"))
    ]


def test_an_agent_that_missed_a_go_does_not_tell_of_its_earlier_failure():
    agent = Agent(WAIT)
    agent.connected()
    agent.heard(wire.Joined(), 0)
    agent.failed(report(1), 1)
    agent.ended(0)
    agent.broke(2)
    assert [each.message for each in agent.connected()] == [wire.Join(0), wire.Failed(0, report(1))]
    assert [each.message for each in agent.heard(wire.Stop(1), 3)] == [wire.Ready(1)]
    agent.broke(4)
    assert [each.message for each in agent.connected()] == [wire.Join(1)]


def test_an_agent_that_says_twice_that_its_programs_have_ended_ends_those_of_the_next_round():
    """As a launcher whose mpirun ended by itself shortly before it was to be killed."""
    agent = Agent(WAIT)
    agent.connected()
    agent.heard(wire.Joined(), 0)
    agent.failed(report(1), 1)
    assert agent.heard(wire.Stop(0), 1) == [EndPrograms(0)]
    assert agent.ended(0) == [Send(wire.Ready(0))]
    agent.heard(wire.Go(1, 29501, SNAPSHOT, report(1)), 2)
    assert agent.ended(0) == []
    assert agent.heard(wire.Stop(1), 3) == [EndPrograms(1)]


# --- over real connections -------------------------------------------------------------------


class Pod:
    """A pod without programs: the test is its main thread."""

    def __init__(self, port: int, index: int, attempt: int = 1) -> None:
        self.actions: SimpleQueue = SimpleQueue()
        self.recorded: list = []
        self.sockets: list[socket.socket] = []
        self.agent = Agent(WAIT)

        def connect() -> socket.socket:
            connection = socket.create_connection(("127.0.0.1", port), 5)
            connection.sendall(hello_of("uid", attempt, index))
            self.sockets.append(connection)
            return connection

        self.link = RoundLink(self.agent, connect, self.recorded.append, self.actions.put)
        self.link.start()

    def failed(self, what: dict) -> None:
        self.link.happened(lambda agent, now: agent.failed(what, now))

    def ends(self, number: int) -> None:
        """Take in that the programs of this round are to end, and have ended."""
        assert self.next() == EndPrograms(number)
        self.link.happened(lambda agent, _: agent.ended(number))

    def next(self):
        return self.actions.get(timeout=WAIT)


@pytest.fixture
def world():
    """A coordinator, and a way to add pods."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    found: list = [SNAPSHOT]
    connections = PodConnections(listener, lambda line: read_hello(line, "uid", 1, 3), 3).__enter__()
    server = RoundServer(
        connections, restart_in_place.Coordinator(NAMES, 0, 6, WAIT), lambda: (found[-1], 29501)
    )
    server.start()
    pods: list[Pod] = []

    def add(index: int) -> Pod:
        pods.append(Pod(port, index))
        return pods[-1]

    yield port, add, found
    for pod in pods:
        pod.link.close()
    server.close()


def begun(add) -> list[Pod]:
    pods = [add(index) for index in range(3)]
    until(lambda: all(pod.agent.began for pod in pods), "all pods have joined")
    return pods


def test_all_pods_start_again_from_one_snapshot(world):
    _, add, found = world
    pods = begun(add)
    for number, snapshot in enumerate((SNAPSHOT, LATER), 1):
        found.append(snapshot)
        pods[1].failed(report(1))
        assert pods[1].recorded[-1] == report(1), "the message is written before anybody hears of the failure"
        for pod in pods:
            pod.ends(number - 1)
        assert [pod.next() for pod in pods] == [
            StartPrograms(wire.Go(number, 29501, snapshot, report(1)))
        ] * 3
        assert pods[1].recorded[-1] is None


def test_a_second_failure_without_a_new_checkpoint_ends_the_containers(world):
    _, add, _ = world
    pods = begun(add)
    for number in range(2):
        pods[2].failed(report(2))
        for pod in pods:
            pod.ends(number)
        answers = [pod.next() for pod in pods]
    assert answers == [WithoutRounds("no new checkpoint was taken since the last restart in place")] * 3


def test_a_pod_whose_connection_broke_comes_back(world, monkeypatch):
    _, add, _ = world
    monkeypatch.setattr(restart_in_place, "CAUSE_SECONDS", 0.1)
    pods = begun(add)
    pods[2].sockets[0].shutdown(socket.SHUT_RDWR)
    for pod in reversed(pods):
        pod.ends(0)
    lost = {
        "class": FailureClass.CONNECTION_LOST,
        "message": "the connection to worker-2 broke",
        "exitCode": 69,
        "index": 2,
    }
    assert [pod.next() for pod in pods] == [StartPrograms(wire.Go(1, 29501, SNAPSHOT, lost))] * 3


def test_the_cause_that_all_pods_get_is_short():
    coordinator = joined()
    long = report(1) | {"message": "é" * 3000, "lastLogLines": ["line"] * 20}
    coordinator.said(1, wire.Failed(0, long), 1)
    for index in range(2):
        coordinator.said(index, wire.Ready(0), 2)
    (told,) = coordinator.prepared(None, 29501, 3)
    assert told.message.failure == report(1) | {"message": "é" * wire.LONGEST_TEXT}
    assert wire.coordinator_message(wire.line_of(told.message)) == told.message


def test_a_coordinator_that_ends_lets_the_programs_of_others_run():
    coordinator = joined()
    assert coordinator.closes() == [
        restart_in_place.Tell(wire.End("the pod that coordinates the restarts has ended"))
    ]
    assert coordinator.closes() == []


def test_a_pod_that_does_not_come_back_ends_the_rounds(world, monkeypatch):
    _, add, _ = world
    monkeypatch.setattr(restart_in_place, "BACK_SECONDS", 0.1)
    pods = begun(add)
    pods[1].link.close()
    assert [pods[index].next() for index in (0, 2)] == [
        WithoutRounds("the connection to worker-1 is lost")
    ] * 2


def test_strangers_disturb_nobody(world, monkeypatch):
    port, add, _ = world
    monkeypatch.setattr(pod_connections, "_STRANGERS", 4)
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
    pods = begun(add)
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"x" * 20000, hello_of("uid", 1, 2) + b'{"say":"go"}\n'):
        with socket.create_connection(("127.0.0.1", port), WAIT) as stranger:
            stranger.sendall(garbage)
            try:
                while stranger.recv(4096):
                    pass
            except ConnectionResetError:  # More was sent than read.
                pass
    pods[0].failed(report(0))
    assert [pod.next() for pod in pods] == [EndPrograms(0)] * 3
    for each in silent:
        each.close()


def test_no_checkpoint_for_a_round_ends_the_containers(world):
    _, add, found = world
    pods = begun(add)
    found.clear()
    pods[0].failed(report(0))
    for pod in pods:
        pod.ends(0)
    assert {type(pod.next()) for pod in pods} == {WithoutRounds}


def test_the_threads_end(world):
    _, add, _ = world
    pod = add(0)
    pod.link.close()
    until(lambda: "round-link" not in {each.name for each in threading.enumerate()}, "the link's thread ends")

"""The machines of coordinator and agents, driven in every order, without sockets: what holds whatever happens.

Messages are delayed, connections break and are noticed late by either side, programs and agents die at every step,
pods are recreated while the earlier one still runs, and the earlier one comes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.launch import restart_in_place, round_agent
from dtj_trainer.launch.round_messages import (
    Failed,
    Go,
    Join,
    Leave,
    Ready,
    Snapshot,
    agent_message,
    coordinator_message,
    line_of,
)

PEER_TIMEOUT = 40.0
CLASSES = [
    FailureClass.SIGNAL,
    FailureClass.SIGNAL,
    FailureClass.APPLICATION_ERROR,
    FailureClass.CONNECTION_LOST,
    FailureClass.CONNECTION_LOST,
    FailureClass.CONNECTION_LOST,
    FailureClass.DISK_FULL,
]


@dataclass(eq=False)
class Link:
    """A connection. Each side notices its end at a time of its own."""

    number: int
    pod: ModelPod
    up: deque[bytes] = field(default_factory=deque)
    down: deque[bytes] = field(default_factory=deque)
    broken: bool = False
    agent_noticed: bool = False
    server_noticed: bool = False


@dataclass(eq=False)
class ModelPod:
    index: int
    birth: int
    agent: round_agent.Agent
    programs: int | None
    """The round whose programs run."""
    killing: bool = False
    ends: int = 0
    """The round of the last EndPrograms."""
    alive: bool = True
    link: Link | None = None
    recorded: dict | None = None
    """The termination message."""
    told: dict | None = None
    """The failure that the pod has had in this round."""
    started: list[int] = field(default_factory=list)
    done: bool = False
    seeking: bool = False
    """Whether it looks for the newest snapshot."""
    hung: bool = False
    """Whether its agent does nothing any more, and keeps its connection."""
    without_rounds: int = 0
    tried_at: float = -1.0

    @property
    def began(self) -> bool:
        """Whether a failure may be followed by a round. Before, the pod is one without rounds."""
        return self.agent._state is not round_agent._State.JOINING

    @property
    def healthy(self) -> bool:
        return self.programs is not None and not self.killing and self.told is None


class Rounds(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.links: list[Link] = []
        self.pods: list[ModelPod] = []
        self.newest: Snapshot | None = None
        self.preparing = False
        self.coordinator: restart_in_place.Coordinator | None = None
        self.began_with: Snapshot | None = None
        self.gos: list[Go] = []
        self.joined_births: dict[int, int] = {}
        """The newest birth of each index of which the coordinator has heard."""
        self.heard: list[object] = []
        """What the coordinator has heard since the last `go`."""
        self.ready: dict[int, int] = {}
        """The birth of the pod that has said `ready` in this round, by index."""

    # --- the world ---------------------------------------------------------------------------

    @initialize(
        count=st.integers(2, 3),
        before=st.integers(0, 1),
        limit=st.sampled_from([1, 2, 3, 5, 8]),
        calm=st.sampled_from([True] * 5 + [False]),
        failing=st.sampled_from([*CLASSES[:4], None]),
        hazards=st.lists(st.sampled_from(["leave", "succeed", "crash", "recreate", "hang"]), max_size=2),
        asks=st.booleans(),
    )
    def begin(
        self,
        count: int,
        before: int,
        limit: int,
        calm: bool,
        failing: str | None,
        hazards: list[str],
        asks: bool,
    ) -> None:
        self.asks = asks
        self.hazards = [*hazards, "replace"]
        self.before, self.limit, self.count = before, limit, count
        self.coordinator = restart_in_place.Coordinator(
            [f"worker-{index}" for index in range(count)], before, limit, PEER_TIMEOUT, asks=asks
        )
        for index in range(count):
            self.pods.append(ModelPod(index, 1, round_agent.Agent(PEER_TIMEOUT), 0))
        for pod in self.pods:
            self.connect(pod)
        if calm:
            self.settle()
            if failing:
                self.fails(self.pods[-1], failing, 1)

    def connect(self, pod: ModelPod) -> None:
        pod.link, pod.tried_at = Link(len(self.links), pod), self.now
        self.links.append(pod.link)
        self.act(pod, pod.agent.connected())

    def act(self, pod: ModelPod, actions: list) -> None:
        for action in actions:
            match action:
                case round_agent.Send(message):
                    if pod.link is not None and not pod.link.broken:
                        pod.link.up.append(line_of(message))
                case round_agent.Record(report):
                    pod.recorded = report
                case round_agent.EndPrograms(number):
                    assert pod.programs is not None
                    pod.killing, pod.ends = True, number
                case round_agent.FindSnapshot():
                    assert self.asks
                    assert not any(each.programs is not None for each in self.pods if each.alive), (
                        "ranks save"
                    )
                    pod.seeking = True
                case round_agent.StartPrograms(go):
                    self.start(pod, go)
                case round_agent.WithoutRounds():
                    pod.without_rounds += 1
                    assert pod.without_rounds == 1
                    if pod.told is not None or pod.killing:
                        pod.programs = None  # As without rounds: the programs of a failed pod end.

    def start(self, pod: ModelPod, go: Go) -> None:
        assert pod.programs is None, "a pod starts ranks beside its own"
        assert go.round not in pod.started, "a rank is started twice"
        assert go in self.gos, "a pod begins with another checkpoint than the others"
        for other in self.pods:
            assert not (other.alive and other.programs is not None and other.programs < go.round), (
                "ranks of two rounds run"
            )
        assert pod.recorded is None, "the failure of the round before is still in the termination message"
        pod.started.append(go.round)
        pod.programs, pod.killing, pod.told = go.round, False, None

    def act_as_coordinator(self, actions: list) -> None:
        for action in actions:
            match action:
                case restart_in_place.Tell(message):
                    if isinstance(message, Go):
                        self.check_go(message)
                    for link in self.links:
                        if link.number in self.open_at_server():
                            link.down.append(line_of(message))
                case restart_in_place.Say(number, message):
                    self.links[number].down.append(line_of(message))
                case restart_in_place.Close(number):
                    link = self.links[number]
                    link.broken = link.server_noticed = True
                    link.up.clear()
                case restart_in_place.Prepare():
                    assert not self.preparing
                    assert not self.asks
                    self.preparing = True

    def open_at_server(self) -> set[int]:
        return set(self.coordinator._connected)

    def check_go(self, go: Go) -> None:
        assert self.before + go.round <= self.limit, "more restarts than backoffLimit"
        assert go.round == len(self.gos) + 1
        assert len(self.joined_births) == self.count
        assert self.ready == self.joined_births, "`go` without all pods of the newest births"
        if go.round > 1:
            newer = go.snapshot and (self.began_with is None or go.snapshot.order > self.began_with.order)
            assert newer, "a second round without a new checkpoint"
        for message in self.heard:
            assert not isinstance(message, Leave), "`go` after a pod was told to end"
            assert not (
                isinstance(message, Failed) and message.report["class"] in restart_in_place.NEVER_IN_PLACE
            )
        own = [m.report for m in self.heard if isinstance(m, Failed) and restart_in_place.is_own(m.report)]
        assert not own or self.coordinator.failure == own[0], "the cause is not the first own failure"
        self.began_with = go.snapshot
        self.gos.append(go)
        self.heard, self.ready = [], {}

    # --- what may happen ---------------------------------------------------------------------

    def some(self, choice: int, among: list):
        return among[choice % len(among)] if among else None

    def may(self, hazard: str) -> bool:
        """Whether something may happen after which no round follows: in some examples, and once at most."""
        return bool(self.pods) and hazard in self.hazards

    def running(self) -> list[ModelPod]:
        return [
            pod
            for pod in self.pods
            if pod.alive
            and not pod.hung
            and pod.programs is not None
            and not pod.killing
            and not pod.agent.over
        ]

    def broken(self, by_agent: bool) -> list[Link]:
        return [
            link
            for link in self.links
            if link.broken
            and not (by_agent and link.pod.hung)
            and not (link.agent_noticed if by_agent else link.server_noticed)
        ]

    def steps(self) -> list[Callable[[], None]]:
        """What goes on by itself, in any order."""
        found: list[Callable[[], None]] = []
        for link in self.links:
            found += [partial(self.deliver_one, link, True)] if link.up else []
            found += [partial(self.deliver_one, link, False)] if link.down and not link.pod.hung else []
        for by_agent in (True, False):
            found += [partial(self.notice_one, link, by_agent) for link in self.broken(by_agent)]
        for pod in self.pods:
            if pod.hung:
                continue
            if pod.alive and pod.programs is not None and (pod.killing or pod.told):
                found.append(partial(self.end_programs, pod))
            if pod.alive and pod.seeking:
                found.append(partial(self.find, pod))
            if self.may_connect(pod) and pod.tried_at < self.now:
                found.append(partial(self.connect, pod))
        return [*found, self.prepare] if self.preparing else found

    @precondition(lambda self: self.steps())
    @rule(choices=st.lists(st.integers(0, 7), min_size=1, max_size=12))
    def go_on(self, choices: list[int]) -> None:
        for choice in choices:
            if steps := self.steps():
                steps[choice % len(steps)]()

    def deliver_one(self, link: Link, upwards: bool) -> None:
        if upwards:
            if not link.up:
                return
            message = agent_message(link.up.popleft())
            if self.coordinator is None or link.server_noticed:
                return
            if isinstance(message, Join):
                index, birth = link.pod.index, link.pod.birth
                if birth >= self.joined_births.get(index, 0) and not self.coordinator.over:
                    self.joined_births[index] = birth
                    self.ready.pop(index, None)
                actions = self.coordinator.joined(link.number, index, birth, message, self.now)
            else:
                if link.number in self.open_at_server() and getattr(message, "round", None) in (
                    None,
                    self.coordinator.round,
                ):
                    self.heard.append(message)
                    if isinstance(message, Ready):
                        self.ready[link.pod.index] = link.pod.birth
                actions = self.coordinator.said(link.number, message, self.now)
            self.act_as_coordinator(actions)
        elif link.down:
            line = link.down.popleft()
            if link.pod.alive and link.pod.link is link:
                self.act(link.pod, link.pod.agent.heard(coordinator_message(line), self.now))

    def prepare(self) -> None:
        self.preparing = False
        if self.coordinator is not None:
            self.act_as_coordinator(self.coordinator.prepared(self.newest, 29500, self.now))

    def find(self, pod: ModelPod) -> None:
        pod.seeking = False
        self.act(pod, pod.agent.found(self.newest))

    @precondition(lambda self: any(pod.healthy for pod in self.pods))
    @rule()
    def save(self) -> None:
        number = self.newest.number + 1 if self.newest else 1
        self.newest = Snapshot(1, number, f"{number:064x}")

    @precondition(lambda self: self.running())
    @rule(
        choice=st.integers(0, 9),
        what=st.sampled_from(CLASSES),
        leaving=st.booleans(),
        saves=st.sampled_from([True, True, False]),
        calm=st.sampled_from([True, False, False]),
    )
    def fail(self, choice: int, what: str, leaving: bool, saves: bool, calm: bool) -> None:
        pod = self.some(choice, self.running())
        if saves:
            self.save()
        self.fails(pod, what, 143 if leaving and what == FailureClass.CONNECTION_LOST else 1)
        if calm:
            self.settle()

    def fails(self, pod: ModelPod, what: str, code: int) -> None:
        pod.told = {"class": what, "message": "?", "exitCode": code, "index": pod.index}
        self.act(pod, pod.agent.failed(pod.told, self.now))

    def end_programs(self, pod: ModelPod) -> None:
        # A pod without EndPrograms has a program that ended by itself.
        number = pod.ends if pod.killing else pod.programs
        pod.programs, pod.killing = None, False
        self.act(pod, pod.agent.ended(number))

    @precondition(lambda self: self.said_ended())
    @rule(choice=st.integers(0, 9))
    def end_programs_again(self, choice: int) -> None:
        """As a launcher whose mpirun ended by itself shortly before it was to be killed."""
        pod = self.some(choice, self.said_ended())
        self.act(pod, pod.agent.ended(pod.ends))

    def said_ended(self) -> list[ModelPod]:
        return [pod for pod in self.pods if pod.alive and not pod.hung and pod.started and not pod.killing]

    @precondition(lambda self: self.may("succeed"))
    @rule(choice=st.integers(0, 9))
    def succeed(self, choice: int) -> None:
        self.hazards.remove("succeed")
        pod = self.some(choice, [pod for pod in self.running() if pod.healthy])
        if pod is not None and not pod.agent.over:
            pod.programs, pod.done = None, True
            self.act(pod, pod.agent.done())

    @precondition(lambda self: self.may("leave"))
    @rule(choice=st.integers(0, 9))
    def leave(self, choice: int) -> None:
        self.hazards.remove("leave")
        pod = self.some(choice, [pod for pod in self.pods if pod.alive and not pod.hung])
        if pod is not None:
            self.act(pod, pod.agent.leave("was told to end"))

    def may_break(self) -> list[Link]:
        """The connections between machines."""
        return [link for link in self.links if not link.broken and (link.pod.index or self.asks)]

    @precondition(lambda self: self.may_break())
    @rule(choice=st.integers(0, 9), drops=st.booleans(), noticed=st.sampled_from(["", "agent", "server"]))
    def break_link(self, choice: int, drops: bool, noticed: str) -> None:
        link = self.some(choice, self.may_break())
        self.cut(link, drops)
        if noticed and not (noticed == "agent" and link.pod.hung):
            self.notice_one(link, by_agent=noticed == "agent")

    def cut(self, link: Link, drops: bool) -> None:
        link.broken = True
        if drops:
            link.up.clear()
            link.down.clear()

    def notice_one(self, link: Link, by_agent: bool) -> None:
        if by_agent:
            link.agent_noticed = True
            link.down.clear()
            if link.pod.alive and link.pod.link is link:
                link.pod.link = None
                self.act(link.pod, link.pod.agent.broke(self.now))
        else:
            link.server_noticed = True
            link.up.clear()
            if self.coordinator is not None:
                if link.number in self.open_at_server():
                    self.ready.pop(link.pod.index, None)
                self.act_as_coordinator(self.coordinator.broke(link.number, self.now))

    def may_connect(self, pod: ModelPod) -> bool:
        wants = pod.alive and pod.link is None and not pod.agent.over
        return wants and self.coordinator is not None

    @precondition(lambda self: self.may("crash"))
    @rule(choice=st.integers(1, 9), coordinator_too=st.integers(0, 3))
    def crash(self, choice: int, coordinator_too: int) -> None:
        self.hazards.remove("crash")
        pod = self.some(choice, [pod for pod in self.pods if pod.alive and pod.index])
        if coordinator_too == 0 and self.pods:
            pod = self.pods[0]
        if pod is not None and pod.alive:
            pod.alive, pod.programs, pod.killing = False, None, False
            if pod.link is not None:
                self.cut(pod.link, drops=False)
            if pod.index == 0:
                self.coordinator, self.preparing = None, False
                for link in self.links:
                    link.broken = True

    @precondition(lambda self: self.may("hang"))
    @rule(choice=st.integers(0, 9))
    def hang(self, choice: int) -> None:
        self.hazards.remove("hang")
        self.some(choice, [pod for pod in self.pods if pod.index]).hung = True

    @precondition(lambda self: self.may("recreate") and self.coordinator is not None)
    @rule(choice=st.integers(0, 9), soon=st.booleans())
    def recreate(self, choice: int, soon: bool) -> None:
        """A later pod of an index begins, while the earlier one may still run."""
        self.hazards.remove("recreate")
        self.born_after(self.some(choice, [pod for pod in self.pods if pod.index]), soon)

    @precondition(lambda self: self.may("replace") and self.replaceable())
    @rule(choice=st.integers(0, 9))
    def replace(self, choice: int) -> None:
        """A later pod takes the place of one that has ended its programs, and may come back."""
        self.hazards.remove("replace")
        pod = self.some(choice, self.replaceable())
        if pod.link is not None:
            self.cut(pod.link, drops=True)
            self.notice_one(pod.link, by_agent=True)
        self.born_after(pod, soon=True)

    def replaceable(self) -> list[ModelPod]:
        if self.coordinator is None or not self.coordinator._stopping:
            return []
        ended = self.coordinator._ended
        return [pod for pod in self.pods if pod.index in ended and pod.index and pod.alive and not pod.hung]

    def born_after(self, pod: ModelPod, soon: bool) -> None:
        birth = max(each.birth for each in self.pods if each.index == pod.index) + 1
        new = ModelPod(pod.index, birth, round_agent.Agent(PEER_TIMEOUT, running=False), None)
        self.pods.append(new)
        self.connect(new)
        if soon:
            self.deliver_one(new.link, True)

    @rule(seconds=st.sampled_from([0.5, 3.0, 6.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for pod in self.pods:
            if pod.alive and not pod.hung:
                self.act(pod, pod.agent.tick(self.now))
        if self.coordinator is not None:
            self.act_as_coordinator(self.coordinator.tick(self.now))
            if not self.coordinator.over:
                for since in self.coordinator._lost_since.values():
                    assert self.now - since < restart_in_place.BACK_SECONDS, "a lost pod is waited for"

    @rule(seed=st.integers(0, 99))
    def calm(self, seed: int) -> None:
        """All that is under way arrives."""
        self.settle(seed)

    @invariant()
    def a_killed_pod_has_told_its_cause(self) -> None:
        for pod in self.pods:
            if pod.alive and pod.told is not None and not pod.agent.over and pod.began:
                assert pod.recorded is not None

    # --- how all of this ends ----------------------------------------------------------------

    def teardown(self) -> None:
        """Nothing else happens: each pod trains in the same round, or ends."""
        event(f"restarts: {len(self.gos)}")
        until = self.now + 4 * PEER_TIMEOUT + restart_in_place.READY_SECONDS
        while self.now < until:
            self.settle()
            self.time_passes(1.0)
        self.settle()
        for pod in self.pods:
            if not pod.alive or pod.hung or pod.agent.over or not pod.began:
                continue
            assert pod.healthy, f"pod {pod.index} waits without an end"
            assert self.coordinator is not None, "a pod trains on without the others"
            assert pod.agent.round == self.coordinator.round
            assert pod.link is not None
            assert pod.link.number in self.open_at_server()
        if self.coordinator is not None and not self.coordinator.over and self.coordinator.round:
            training = [pod for pod in self.pods if pod.alive and not pod.agent.over]
            assert len({pod.index for pod in training}) == self.count or any(
                pod.done or pod.hung for pod in self.pods
            )

    def settle(self, seed: int = 0) -> None:
        """Let all that goes on by itself happen, in an order that follows from the seed."""
        order = Random(seed)
        while steps := self.steps():
            order.choice(steps)()


def test_whatever_happens() -> None:
    run_state_machine_as_test(
        Rounds,
        settings=settings(
            max_examples=800,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

"""The faults: one function for each fault, with the cost that the fault may have."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Literal

from tests.cluster import nodes, operator_pods, switches
from tests.cluster.chaos.kill import (
    Words,
    is_mpirun,
    is_sshd,
    is_supervisor,
    is_training,
    kill,
    resume,
    stop,
)
from tests.cluster.chaos.trainings import ROLES, STRATEGIES, TELLS, TORN, Training, in_role
from tests.cluster.jobs import Manifest, until
from tests.cluster.local import cgroups
from tests.cluster.placement import away_from, if_possible_on, leaving_quickly, pods_on, spread
from tests.stub_training import ENV_TAKES_PORT

HOROVOD, PS, TORCH = STRATEGIES
STALL_SECONDS = 20
Counter = Literal["application", "infrastructure", "evaluator"]
# What is freed, when an older checkpoint goes, is taken at once.
FILL = "while sleep 0.1; do head -c 1G /dev/zero >> /dtj/checkpoints/.filler; done > /dev/null 2>&1 &"


@dataclass(frozen=True)
class Hit:
    """What was done to one training, and what the job has to say of it."""

    what: str
    counter: Counter | None = None
    """Which of the job's counters is 1 then, the others being 0; None: it goes on as if nothing had been."""
    failure: Sequence[str] = ()
    """The classes that the failure may have."""
    times: int = 1
    """The value of the counter."""
    in_place: int = 0
    """How many of these restarts are in place."""
    nodes: Mapping[str, int] | None = None
    """How often each node counts as the place of a failure; None: any."""
    pods: Sequence[str] = ()
    """The pods of which the failure may name one; empty: any."""
    message: Sequence[str] = ()
    """What the failure's message must contain."""
    files: Sequence[str] = ()
    """Keys that must be in the bucket."""
    torn: str = ""
    """The name of a file that the bucket must not have."""
    away: float | None = None
    """Seconds for which something was away that the training itself does not need."""

    @property
    def pods_stay(self) -> bool:
        """Whether nothing but processes is replaced."""
        return 0 < self.in_place == self.times


Strike = Callable[[Sequence[Training], ExitStack], Mapping[str, Hit]]
"""Hits the trainings; by strategy, what hit it. What it broke is repaired at the end of the stack, or before."""


@dataclass(frozen=True)
class Fault:
    """Something that may happen to a training."""

    name: str
    strike: Strike
    strategies: Sequence[str] = STRATEGIES
    prepare: Callable[[Manifest], None] = lambda job: None
    """Changes the job before it starts."""
    in_make_test: bool = False
    """There tests/stub_training.py is hit."""
    alone: bool = True
    """Whether it hits more than its own trainings."""


def _each(hit: Callable[[Training], Hit]) -> Strike:
    return lambda trainings, _: {training.strategy: hit(training) for training in trainings}


def _all(hit: Callable[[], Hit]) -> Strike:
    """Of the whole cluster, and costs no training anything."""

    def strike(trainings: Sequence[Training], _: ExitStack) -> Mapping[str, Hit]:
        done = hit()
        return {training.strategy: done for training in trainings}

    return strike


# --- processes and pods -------------------------------------------------------------------------


def _killed(training: Training, replicas: Sequence[str], which: Callable[[Words], bool]) -> Hit:
    replica = training.chance.choice(replicas)
    killed = f"`{kill(training.uid(replica), which)}` in {replica}"
    counter: Counter = "evaluator" if replica == "evaluator-0" else "application"
    classes = ("Signal",) if training.strategy == TORCH else ("Signal", "ConnectionLost")
    return Hit(killed, counter, classes, pods=_named(training, replica))


def _named(training: Training, replica: str) -> Sequence[str]:
    """The pod that the failure must name: whichever pod of PyTorch's ranks is hit, the others' ends only follow."""
    return (training.pod(replica),) if training.strategy == TORCH else ()


def _first_program(training: Training) -> Hit:
    if training.strategy == "Horovod":
        return _killed(training, ("launcher-0",), is_mpirun)
    return _killed(training, (TELLS[training.strategy],), is_training)


def _program_of(role: str) -> Strike:
    return _each(lambda training: _killed(training, training.replicas(role), is_training))


def _supervisor(training: Training) -> Hit:
    return _killed(training, training.replicas("chief", "worker", "ps"), is_supervisor)


def _pod_deleted(training: Training) -> Hit:
    replica = training.chance.choice(training.replicas())
    training.namespace.kubectl("delete", "pod", training.pod(replica), "--wait=false")
    counter: Counter = "evaluator" if replica == "evaluator-0" else "infrastructure"
    return Hit(replica, counter, ("PodLost",), pods=_named(training, replica))


def _with_memory_limits(job: Manifest) -> None:
    for role in set(ROLES[job["spec"]["strategy"]]) - {"launcher"}:
        job["spec"]["replicaSpecs"].setdefault(role, {})["resources"] = {"limits": {"memory": "2Gi"}}


def _out_of_memory(training: Training) -> Hit:
    replica = training.chance.choice(training.replicas("chief", "worker", "ps"))
    training.tell(replica, "take-memory")
    return Hit(replica, "application", ("OOMKilled",), pods=_named(training, replica))


def _on_a_small_disk(job: Manifest) -> None:
    disk = {"name": "checkpoints", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}
    mount = {"name": "checkpoints", "mountPath": "/dtj/checkpoints"}
    pod = {"volumes": [disk], "containers": [{"name": "trainer", "volumeMounts": [mount]}]}
    in_role(job, "worker" if job["spec"]["strategy"] != "ParameterServer" else "chief", pod)


def _disk_full(training: Training) -> Hit:
    replica = TELLS[training.strategy]
    training.namespace.kubectl("exec", training.pod(replica), "--", "sh", "-c", FILL)
    pods = _named(training, replica)
    return Hit(f"/dtj/checkpoints of {replica}", "application", ("DiskFull",), pods=pods)


# --- nodes --------------------------------------------------------------------------------------


def _on_both_nodes(hit: str) -> Callable[[Manifest], None]:
    """A pod of that role on the second node, which is hit, and all else off it; a worker where there is no other."""

    def prepare(job: Manifest) -> None:
        victim, strategy = nodes.machine().name, job["spec"]["strategy"]
        lost = hit if hit in ROLES[strategy] else "worker"
        for role in ROLES[strategy]:
            place = away_from(victim)
            if role == lost:
                place = spread(job["metadata"]["name"]) if role == "worker" else if_possible_on(victim)
            in_role(job, role, leaving_quickly() | place)

    return prepare


def _node_drained(trainings: Sequence[Training], stack: ExitStack) -> Mapping[str, Hit]:
    victim, lost = _victim(trainings, stack)
    nodes.drain(victim.name)
    return _lost_with(victim, lost)


def _node_cut_off(trainings: Sequence[Training], stack: ExitStack) -> Mapping[str, Hit]:
    victim, lost = _victim(trainings, stack)
    victim.cut_off()
    _wait_until_replaced(trainings, lost)
    for _, uid in lost.values():
        assert victim.runs(uid), "the node is silent, and its pods are not dead"
    victim.reconnect()
    for name, uid in lost.values():
        until(f"the processes of the old {name} to end", lambda uid=uid: not victim.runs(uid), 120)
    return _lost_with(victim, lost)


def _node_killed(trainings: Sequence[Training], stack: ExitStack) -> Mapping[str, Hit]:
    victim, lost = _victim(trainings, stack)
    victim.kill()
    _wait_until_replaced(trainings, lost)
    return _lost_with(victim, lost)


def _victim(
    trainings: Sequence[Training], stack: ExitStack
) -> tuple[nodes.Machine, dict[str, tuple[str, str]]]:
    """The node, which is as before at the end, and by strategy the name and the uid of the pod on it."""
    victim = stack.enter_context(nodes.restored(nodes.machine()))
    lost = {}
    for training in trainings:
        (found,) = pods_on(training.job, victim.name).items()
        lost[training.strategy] = found
    return victim, lost


def _lost_with(victim: nodes.Machine, lost: Mapping[str, tuple[str, str]]) -> Mapping[str, Hit]:
    return {
        strategy: Hit(f"{victim.name} with {name}", "infrastructure", ("PodLost", "ConnectionLost"))
        for strategy, (name, _) in lost.items()
    }


def _wait_until_replaced(trainings: Sequence[Training], lost: Mapping[str, tuple[str, str]]) -> None:
    for training in trainings:
        name, uid = lost[training.strategy]

        def again(job=training.job, name=name, uid=uid) -> bool:
            found = [p for p in job.pods() if p["metadata"]["name"] == name]
            return bool(found) and found[0]["metadata"]["uid"] != uid

        until(f"{name} to be replaced", again, 300, every=1)


# --- the cluster and what it stands on ----------------------------------------------------------


def _operator_killed() -> Hit:
    for _ in range(2):
        before = until("a leader that is ready", _ready_leader, 60)
        operator_pods.kill(operator_pods.leader())
        until("another leader", lambda before=before: operator_pods.holder() not in ("", before), 60)
    until("two replicas", lambda: len(operator_pods.replicas()) == 2, 90)
    return Hit("the leader, then the next one")


def _ready_leader() -> str | None:
    names = {pod["metadata"]["name"] for pod in operator_pods.replicas()}
    return operator_pods.holder() if len(names) == 2 and operator_pods.leader() in names else None


def _away(switch: Callable[[], switches.Switch], seconds: float) -> Strike:
    def hit() -> Hit:
        with switches.restored(switch()) as one:
            one.stop()
            time.sleep(seconds)  # how long it is away, not how long something else takes
        return Hit(f"{seconds:.0f} s", away=seconds)

    return _all(hit)


def _etcd_restarted() -> Hit:
    with switches.restored(switches.etcd()) as etcd:
        etcd.stop()
    return Hit("SIGKILL, then started")


# --- the ranks of PyTorch ------------------------------------------------------------------------


def _pods_killed(*ranks: int) -> Strike:
    """The pods of these ranks go at once, without a word."""

    def hit(training: Training) -> Hit:
        pods = [training.pod(f"worker-{rank}") for rank in ranks]
        training.namespace.kubectl("delete", "pod", *pods, "--grace-period=0", "--force", "--wait=false")
        what = " and ".join(f"worker-{rank}" for rank in ranks)
        return Hit(what, "infrastructure", ("PodLost",), pods=pods)

    return _each(hit)


def _watched(job: Manifest) -> None:
    job["spec"]["runPolicy"] = {"stallTimeoutSeconds": STALL_SECONDS, "stallPolicy": "Restart"}
    in_role(job, "worker", leaving_quickly())


def _hung(training: Training) -> Hit:
    replica = training.chance.choice(training.replicas())
    stopped = stop(training.uid(replica), is_training)
    return Hit(
        f"`{stopped}` in {replica}",
        "application",
        ("Stalled",),
        message=("the step has stayed at",),
        files=[f"logs/attempt-1/stacks-{rank}-1.txt" for rank in (0, 1)],
    )


def _port_taken_in_attempt_2(job: Manifest) -> None:
    job["spec"].setdefault("env", []).append({"name": ENV_TAKES_PORT, "value": "2"})


def _pod_deleted_before_the_port_is_taken(training: Training) -> Hit:
    training.namespace.kubectl("delete", "pod", training.pod("worker-1"), "--wait=false")
    first = training.pod("worker-0")
    return Hit(
        "worker-1; then MASTER_PORT of attempt 2",
        "infrastructure",
        ("PortInUse",),
        times=2,
        pods=(first,),
        message=("MASTER_PORT is in use",),
    )


def _left_early(training: Training) -> Hit:
    training.tell("worker-1", "leave")
    return Hit(
        "worker-1",
        "application",
        ("ApplicationError",),
        pods=(training.pod("worker-1"),),
        message=("worker 1 ended with exit code 0 while the other pods still needed it",),
    )


# --- restarts in place ---------------------------------------------------------------------------

AWAY_SECONDS = 60.0


def _in_place(
    name: str,
    strike: Strike,
    strategies: Sequence[str] = (HOROVOD, TORCH),
    prepare: Callable[[Manifest], None] = lambda job: None,
    *,
    alone: bool = False,
) -> Fault:
    """A fault of jobs whose ranks start again in their pods."""

    def prepared(job: Manifest) -> None:
        prepare(job)
        # At the end the pods are compared with those of before.
        job["spec"]["runPolicy"] = {"restartStrategy": "InPlaceRestart", "cleanPodPolicy": "None"}

    return Fault(f"in place: {name}", strike, strategies, prepared, alone=alone)


def _in_their_pods(training: Training, what: str, *replicas: str, failure: str = "Signal") -> Hit:
    """All ranks start again after the failure of one of these replicas."""
    pods = [training.pod(replica) for replica in replicas]
    return Hit(what, "application", (failure,), in_place=1, pods=pods)


def _in_new_pods(training: Training, replica: str, which: Callable[[Words], bool]) -> Hit:
    """A process without which no round follows."""
    killed = kill(training.uid(replica), which)
    classes = ("Signal", "ApplicationError", "ConnectionLost")
    return Hit(f"`{killed}` in {replica}", "application", classes, pods=_named(training, replica))


def _in_new_pods_after(which: Callable[[Words], bool]) -> Strike:
    return _each(lambda training: _in_new_pods(training, "worker-1", which))


def _ranks_killed(*ranks: int) -> Strike:
    def hit(training: Training) -> Hit:
        replicas = [f"worker-{rank}" for rank in ranks]
        kill(training.uid(replicas[0]), is_training, *map(training.uid, replicas[1:]))
        return _in_their_pods(training, f"the program in {' and '.join(replicas)}", *replicas)

    return _each(hit)


def _mpirun_killed(training: Training) -> Hit:
    killed = kill(training.uid("launcher-0"), is_mpirun)
    return _in_their_pods(training, f"`{killed}` in launcher-0", "launcher-0")


def _coordinator_killed(training: Training) -> Hit:
    return _in_new_pods(training, "launcher-0" if training.strategy == HOROVOD else "worker-0", is_supervisor)


def _rank_out_of_memory(training: Training) -> Hit:
    training.tell("worker-1", "take-memory")
    return _in_their_pods(training, "worker-1", "worker-1", failure="OOMKilled")


def _torn(training: Training) -> Hit:
    training.tell(TELLS[training.strategy], "tear")
    what = f"rank 0 while it writes {TORN}"
    return replace(_in_their_pods(training, what, TELLS[training.strategy]), torn=TORN)


def _killed_while_nobody_looks(trainings: Sequence[Training], _: ExitStack) -> Mapping[str, Hit]:
    """The operator's replicas die, too: whoever counts the restart has not seen the job before."""
    victims = [training.uid("worker-1") for training in trainings]
    operators = [pod["metadata"]["name"] for pod in operator_pods.replicas()]
    with switches.restored(switches.api_server()) as server:
        server.stop()
        for pod in operators:
            operator_pods.kill(pod)
        kill(victims[0], is_training, *victims[1:])
        time.sleep(AWAY_SECONDS)  # how long they are away, not how long something else takes
    what = f"the program in worker-1, and the API server for {AWAY_SECONDS:.0f} s"
    return {
        training.strategy: replace(_in_their_pods(training, what, "worker-1"), away=AWAY_SECONDS)
        for training in trainings
    }


def _killed_twice(training: Training) -> Hit:
    (pod,) = (p for p in training.job.pods() if p["metadata"]["name"] == training.pod("worker-1"))
    for _ in range(2):
        kill(pod["metadata"]["uid"], is_training)
    return Hit(
        "the program in worker-1, and the one that follows",
        "application",
        ("Signal",),
        times=2,
        in_place=1,
        nodes={pod["spec"]["nodeName"]: 2},
        pods=[training.pod("worker-1")],
    )


def _drained_before_go(training: Training) -> Hit:
    """The agent of worker 1 is stopped: it does not say that it is ready before worker 0 has left."""
    first, second = training.uid("worker-0"), training.uid("worker-1")
    stop(second, is_supervisor)
    kill(first, is_training)
    training.namespace.kubectl("delete", "pod", training.pod("worker-0"), "--wait=false")
    until("worker-0 to end", lambda: not cgroups.pod_processes(first), 60)
    resume(second, is_supervisor)
    return Hit(
        "the program in worker-0, then its pod", "infrastructure", ("PodLost", "ConnectionLost", "Signal")
    )


NOTHING = Fault("nothing", _all(lambda: Hit("")))
FAULTS = (
    NOTHING,
    Fault("program of launcher, chief or rank 0 killed", _each(_first_program)),
    Fault("program of worker killed", _program_of("worker")),
    Fault("program of ps killed", _program_of("ps"), (PS,)),
    Fault("program of evaluator killed", _program_of("evaluator"), (PS,)),
    Fault("dtj-launch killed", _each(_supervisor)),
    Fault("pod deleted", _each(_pod_deleted), in_make_test=True, alone=False),
    Fault("out of memory", _each(_out_of_memory), prepare=_with_memory_limits),
    Fault("disk full", _each(_disk_full), prepare=_on_a_small_disk),
    Fault("node drained", _node_drained, prepare=_on_both_nodes("worker"), in_make_test=True),
    # Without a worker the chief goes on, and would be through before it is replaced.
    Fault("node cut off and back", _node_cut_off, prepare=_on_both_nodes("ps")),
    Fault("node killed for good", _node_killed, prepare=_on_both_nodes("ps")),
    Fault("operator killed", _all(_operator_killed)),
    Fault("API server down", _away(switches.api_server, 20)),
    Fault("etcd restarted", _all(_etcd_restarted)),
    Fault("S3 down", _away(switches.store, 40), in_make_test=True),
    Fault("DNS down", _away(switches.name_server, 20)),
    Fault("pod of rank 0 killed", _pods_killed(0), (TORCH,), alone=False),
    Fault("pod of rank 1 killed", _pods_killed(1), (TORCH,), alone=False),
    Fault("all pods killed at once", _pods_killed(0, 1), (TORCH,), alone=False),
    Fault("rank hangs", _each(_hung), (TORCH,), prepare=_watched, alone=False),
    Fault(
        "port taken",
        _each(_pod_deleted_before_the_port_is_taken),
        (TORCH,),
        prepare=_port_taken_in_attempt_2,
        in_make_test=True,
        alone=False,
    ),
    Fault("rank exits early with 0", _each(_left_early), (TORCH,), in_make_test=True, alone=False),
    _in_place("rank 0 killed", _ranks_killed(0)),
    _in_place("operator and API server down", _killed_while_nobody_looks, alone=True),
    _in_place("killed again before a checkpoint", _each(_killed_twice)),
    _in_place("pod drained before the restart", _each(_drained_before_go)),
    _in_place("agent of the coordinator killed", _each(_coordinator_killed)),
    _in_place("other agent killed", _in_new_pods_after(is_supervisor)),
    _in_place("node cut off and back", _node_cut_off, prepare=_on_both_nodes("worker"), alone=True),
    _in_place("sshd killed", _in_new_pods_after(is_sshd), (HOROVOD,)),
    _in_place("mpirun killed", _each(_mpirun_killed), (HOROVOD,)),
    _in_place("rank 1 out of memory", _each(_rank_out_of_memory), prepare=_with_memory_limits),
    _in_place("checkpoint torn", _each(_torn)),
    _in_place("both ranks killed", _ranks_killed(0, 1)),
    _in_place("pod deleted", _each(_pod_deleted)),
    _in_place("rank 1 killed", _ranks_killed(1)),
)

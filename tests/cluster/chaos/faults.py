"""The faults: one function for each fault, with the cost that the fault may have."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

from tests.cluster import nodes, operator_pods, switches
from tests.cluster.chaos.kill import Words, is_mpirun, is_supervisor, is_training, kill
from tests.cluster.chaos.trainings import ROLES, STRATEGIES, Training, in_role
from tests.cluster.jobs import Manifest, until
from tests.cluster.placement import away_from, if_possible_on, leaving_quickly, pods_on, spread

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
    away: float | None = None
    """Seconds for which something was away that the training itself does not need."""


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


def _killed(training: Training, roles: Sequence[str], which: Callable[[Words], bool]) -> Hit:
    replica = training.chance.choice(training.replicas(*roles))
    killed = kill(training.uid(replica), which)
    counter: Counter = "evaluator" if replica == "evaluator-0" else "application"
    return Hit(f"`{killed}` in {replica}", counter, ("Signal", "ConnectionLost"))


def _first_program(training: Training) -> Hit:
    if training.strategy == "Horovod":
        return _killed(training, ("launcher",), is_mpirun)
    return _killed(training, ("chief",), is_training)


def _supervisor(training: Training) -> Hit:
    return _killed(training, ("chief", "worker", "ps"), is_supervisor)


def _pod_deleted(training: Training) -> Hit:
    replica = training.chance.choice(training.replicas())
    training.namespace.kubectl("delete", "pod", training.pod(replica), "--wait=false")
    return Hit(replica, "evaluator" if replica == "evaluator-0" else "infrastructure", ("PodLost",))


def _with_memory_limits(job: Manifest) -> None:
    for role in set(ROLES[job["spec"]["strategy"]]) - {"launcher"}:
        job["spec"]["replicaSpecs"].setdefault(role, {})["resources"] = {"limits": {"memory": "2Gi"}}


def _out_of_memory(training: Training) -> Hit:
    replica = training.chance.choice(training.replicas("chief", "worker", "ps"))
    training.tell(replica, "take-memory")
    return Hit(replica, "application", ("OOMKilled",))


def _on_a_small_disk(job: Manifest) -> None:
    disk = {"name": "checkpoints", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}
    mount = {"name": "checkpoints", "mountPath": "/dtj/checkpoints"}
    pod = {"volumes": [disk], "containers": [{"name": "trainer", "volumeMounts": [mount]}]}
    in_role(job, "worker" if job["spec"]["strategy"] == "Horovod" else "chief", pod)


def _disk_full(training: Training) -> Hit:
    replica = "worker-0" if training.strategy == "Horovod" else "chief-0"
    training.namespace.kubectl("exec", training.pod(replica), "--", "sh", "-c", FILL)
    return Hit(f"/dtj/checkpoints of {replica}", "application", ("DiskFull",))


# --- nodes --------------------------------------------------------------------------------------


def _on_both_nodes(hit: str) -> Callable[[Manifest], None]:
    """A pod of that role on the second node, which is hit, and all else off it; for Horovod a worker."""

    def prepare(job: Manifest) -> None:
        victim, strategy = nodes.machine().name, job["spec"]["strategy"]
        lost = "worker" if strategy == "Horovod" else hit
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


NOTHING = Fault("nothing", _all(lambda: Hit("")))
FAULTS = (
    NOTHING,
    Fault("program of launcher or chief killed", _each(_first_program)),
    Fault("program of worker killed", _each(lambda t: _killed(t, ("worker",), is_training))),
    Fault("program of ps killed", _each(lambda t: _killed(t, ("ps",), is_training)), STRATEGIES[1:]),
    Fault(
        "program of evaluator killed",
        _each(lambda t: _killed(t, ("evaluator",), is_training)),
        STRATEGIES[1:],
    ),
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
)

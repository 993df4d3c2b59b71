"""The verdict on a job after a fault: whether the job recovered as it should, and the cost."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from tests.cluster.chaos.faults import Hit
from tests.cluster.chaos.trainings import INTERVAL, Moment, newest_checkpoint, uids
from tests.cluster.jobs import Job, Manifest, Namespace, until

# Final accuracies of undisturbed runs differ by so much: workers of ParameterServer don't wait for each other.
TOLERANCE = {"Horovod": 0.02, "ParameterServer": 0.05, "TorchDistributed": 0.02}
DURING_A_SAVE = 5
"""Steps that are made until a checkpoint is complete."""
KINDS = "dtj,pods,services,endpoints,configmaps,secrets,leases,networkpolicies"
# What is in each namespace of a test: an older Kubernetes also has a Secret for the token.
OF_A_NAMESPACE = ("configmap/kube-root-ca.crt", "secret/s3-credentials")


@dataclass(frozen=True)
class Cost:
    """What a fault cost a training."""

    restarts: Manifest
    seconds: float
    """From the fault to the first step beyond those done then; where no rank 0 and no chief started again, the
    longest pause after the fault."""
    steps: int
    """Trained again."""
    accuracy: float


def judge(
    job: Job, strategy: str, hit: Hit, before: Moment, status: Manifest, expected: float | None
) -> Cost:
    """The cost, of a job that has ended; fails where something is not as it should be."""
    wrong = differences(status, strategy, hit)
    assert not wrong, f"{'; '.join(wrong)}\n{job.story()}"
    keys = job.artifacts().sizes()
    assert set(hit.files) <= keys.keys(), sorted(keys)
    assert not (hit.torn and [key for key in keys if key.endswith(hit.torn)]), sorted(keys)
    rows = job.artifacts().metrics()
    # Before it ends, who was hit indirectly may go on for a while, and save.
    begun = [row for row in rows if row["kind"] == "start" and _time(row) > before.at]
    steps = [row["step"] for row in begun]
    assert all(step >= before.saved for step in steps), (
        f"{before.saved} steps were saved, it went on from {steps}"
    )
    last = max(row["step"] for row in rows)
    assert newest_checkpoint(job.artifacts()) == last
    assert any(key.startswith("model/") for key in keys)
    accuracy = status["progress"]["accuracy"]
    if expected is not None:
        assert abs(accuracy - expected) <= TOLERANCE[strategy], f"{accuracy}, undisturbed {expected}"
    cost = Cost(
        status["restarts"], seconds_to_recover(rows, before), steps_trained_again(rows, before), accuracy
    )
    if hit.pods_stay:
        assert uids(job) == before.pods, "the pods were replaced"
        assert cost.steps <= INTERVAL + DURING_A_SAVE, f"{cost.steps} steps were lost"
    assert hit.away is None or cost.seconds < hit.away, f"it stood still for {cost.seconds:.0f} s"
    return cost


def differences(status: Manifest, strategy: str, hit: Hit) -> list[str]:
    """What the status of a job says that it must not say after this hit."""
    counters: dict[str, int] = {"application": 0, "infrastructure": 0}
    if hit.counter:
        counters[hit.counter] = hit.times
    expected: dict[str, object] = {}
    if strategy != "ParameterServer":  # There a pod may start again alone.
        expected["attempt"] = 1 + sum(counters.values()) - hit.in_place
    if hit.in_place:
        counters["inPlace"] = hit.in_place
    expected["restarts"] = counters
    if hit.nodes is not None:
        expected["nodeFailures"] = hit.nodes
    wrong = [
        f"{field} is {status.get(field)}, not {value}"
        for field, value in expected.items()
        if status.get(field) != value
    ]
    failure = status.get("failure", {})
    if hit.failure and hit.counter != "evaluator" and failure.get("class") not in hit.failure:
        wrong.append(f"the class is {failure.get('class')}, not one of {hit.failure}")
    if hit.pods and failure.get("pod") not in hit.pods:
        wrong.append(f"the pod is {failure.get('pod')}, not one of {hit.pods}")
    said = failure.get("message", "")
    return wrong + [f"{words!r} is not in {said!r}" for words in hit.message if words not in said]


def nothing_is_left(namespace: Namespace) -> None:
    """Wait until all that deleted jobs had is gone with them."""

    def left() -> list[str]:
        names = namespace.kubectl("get", KINDS, "--output=name").split()
        return [name for name in names if name not in OF_A_NAMESPACE and "/default-token-" not in name]

    until(f"all that jobs had in {namespace.name} to be gone", lambda: not left(), 240)


def seconds_to_recover(rows: list[Manifest], before: Moment) -> float:
    """From the fault to the first step beyond those done before, or to the end where all steps were done.

    Without a new start, the longest pause.
    """
    later = [row for row in rows if _time(row) > before.at]
    starts = [number for number, row in enumerate(later) if row["kind"] == "start"]
    if starts:
        done = max([before.step, *(row["step"] for row in later[: starts[0]])])
        further = (row for row in later[starts[0] :] if row["kind"] == "train" and row["step"] > done)
        return (_time(next(further, later[-1])) - before.at).total_seconds()
    times = [before.at, *(_time(row) for row in later if row["kind"] == "train")]
    return max(((b - a).total_seconds() for a, b in pairwise(times)), default=0.0)


def steps_trained_again(rows: list[Manifest], before: Moment) -> int:
    """Steps that a rank 0 or a chief had done, and did again after its next start."""
    lost, done = 0, 0
    for row in rows:
        if row["kind"] == "start":
            if _time(row) > before.at:
                done = max(done, before.step)
            lost += max(done - row["step"], 0)
            done = row["step"]
        done = max(done, row["step"])
    return lost


def _time(row: Manifest) -> datetime:
    return datetime.fromisoformat(row["time"])

"""A job that gives back the nodes that it holds, so that another one can start; `turns` decides which."""

from __future__ import annotations

from dtj.api.status import ConditionType, GaveWay, Phase
from dtj.status.again import in_attempt
from dtj.status.draft import Draft, Evaluation
from dtj.status.observed import Expected
from dtj.status.times import written_time

GAVE_WAY = "GaveWay"
"""Reason of the condition Running."""


def gives_way(draft: Draft, expected: Expected, to: str) -> Evaluation:
    """All pods end, and the job waits for its turn in an attempt of its own: no fault of the program."""
    status = draft.job.status
    attempt = max(status.attempt, 1)
    times = status.gave_way.times if status.gave_way else 0
    draft.values["gave_way"] = GaveWay(time=written_time(draft.now), times=times + 1)
    draft.values["attempt"] = attempt + 1
    draft.values["restarts"] = status.restarts.model_copy(
        update={"infrastructure": status.restarts.infrastructure + 1}
    )
    if expected.restarts_with is not None:
        draft.values["replica_attempts"] = in_attempt(draft.job, expected.attempts, attempt + 1)
    message = f"attempt {attempt} gives way to {to}: each holds a part of the nodes that it needs"
    draft.set(ConditionType.RUNNING, False, GAVE_WAY, message)
    phase = Phase.RESTARTING if status.holds(ConditionType.RESTARTING) else Phase.PENDING
    return Evaluation(draft.status(phase=phase), look_again=0.0, hold=True)

"""Restarts in place: the agents in the pods start the ranks again, and a pod reports the number of these restarts.

The agents decide without the operator, and keep within runPolicy.backoffLimit: see
`dtj_trainer.launch.restart_in_place`. The operator counts the restarts afterwards. The label LABEL_ROUNDS of a pod
has the value of `restarts.application` when the pod was made. The difference between the value in the status and this
value is the number of restarts of the present attempt that are counted already. Therefore a report that is read
twice, also by two operators, counts once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from dtj.api.names import pod_name
from dtj.api.shape import Shape
from dtj.api.status import Failure
from dtj.status.draft import Draft
from dtj.status.failure import SETTLE_SECONDS, Loss, read_termination, told_failure
from dtj.status.observed import InPlace, read_in_place
from dtj.status.pods import PodView
from dtj.status.restart_policy import counted
from dtj_trainer.contract.failure_class import FailureClass


@dataclass(frozen=True)
class _Told:
    """The report of a pod about the restarts in place of its attempt."""

    pod: PodView
    restarts: InPlace

    @property
    def before(self) -> int:
        """The number of restarts after failures of the program when the pod was made."""
        return self.pod.rounds.before if self.pod.rounds else 0

    @property
    def count(self) -> int:
        """The number of restarts in place since the pod was made, at most up to the limit, which the agents keep.
        Another program may report a higher number.
        """
        limit = self.pod.rounds.limit if self.pod.rounds else 0
        return max(min(self.restarts.count, limit - self.before), 0)


def count_in_place(
    draft: Draft, shape: Shape, reported: InPlace | None, named: Mapping[str, PodView]
) -> bool:
    """Count the restarts in place that are not counted yet. Return whether there are any.

    reported: the last report of the pod that reports the progress. named: the attempt's pods, by name.
    """
    told = max(_told(shape, reported, named), key=lambda each: each.count, default=None)
    if told is None:
        return False
    old = draft.job.status.restarts
    application = max(old.application, told.before + told.count)
    more = application - old.application
    # An older operator, which lacks the field, may have dropped `in_place` from the status, but not `application`.
    in_place = max((old.in_place or 0) + more, told.count)
    if in_place == (old.in_place or 0):
        return False
    draft.restarts = old.model_copy(update={"application": application, "in_place": in_place})
    if more:
        failure = _cause(draft, told, named)
        draft.failure = failure
        nodes = {failure.node} if failure.node else ()
        draft.node_failures = counted(draft.job.status.node_failures, nodes)
    return True


def _told(shape: Shape, reported: InPlace | None, named: Mapping[str, PodView]) -> Iterator[_Told]:
    """Yield the reports of the attempt's pods: the last answer of the reporting pod, and termination messages."""
    for name in {shape.reporter: None, **dict.fromkeys(shape.tells_the_end)}:
        pod = named.get(name)
        if pod is None or pod.rounds is None:
            continue
        if reported is not None and name == shape.reporter:
            yield _Told(pod, reported)
        message = read_termination(pod.exit) if pod.exit else None
        restarts, _ = read_in_place(message and message.get("restarts"))
        if restarts is not None:
            yield _Told(pod, restarts)


def _cause(draft: Draft, told: _Told, named: Mapping[str, PodView]) -> Failure:
    """Return the failure after which the ranks started again, at the pod that the report names."""
    cause = told.restarts.failure
    role, index = cause.get("role", told.pod.role), cause.get("index", told.pod.index)
    host = (cause.get("host") or "").split(".", 1)[0]
    pod = named.get(host) or named.get(pod_name(draft.job.name, role, index)) or told.pod
    return told_failure(draft.job.attempt, pod, cause.get("class") or FailureClass.APPLICATION_ERROR, cause)


def awaiting_count(loss: Loss, shape: Shape, named: Mapping[str, PodView]) -> Loss:
    """Return the loss with the time to settle in which the pods that tell the end may end too.

    The next attempt waits for the end of these pods anyway. Without their counts, a program that fails again soon
    after each restart in place would have twice as many restarts as runPolicy.backoffLimit.
    """
    telling = (named[name] for name in shape.tells_the_end if name in named)
    awaited = any(pod.rounds and pod.exit is None and not pod.silent for pod in telling)
    if loss.infrastructure or not awaited:
        return loss
    return replace(loss, settle=max(loss.settle, SETTLE_SECONDS))

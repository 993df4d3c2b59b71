"""Which changes of a job's pods call for a pass at once, and which may wait for the next."""

from __future__ import annotations

from dtj.reconcile.view import OwnedPod

_ENDS = ("Succeeded", "Failed")


def urgent(before: object | None, after: object | None) -> bool:
    """Whether a change of an object may let a job go on, or stop. None: the object is not there.

    An object that came was made by a pass. A pod that got a node, whose image is pulled or whose container starts
    changes figures of the status alone.
    """
    if isinstance(after, OwnedPod):
        return _decisive(after) != (_decisive(before) if isinstance(before, OwnedPod) else _FRESH)
    return before is not None


def _decisive(pod: OwnedPod) -> tuple[object, ...]:
    view = pod.view
    end = view.phase if view.phase in _ENDS else ""
    return end, view.ready, view.ended, view.exit, view.deleting, view.disrupted, view.silent


_FRESH = "", False, False, None, False, False, False

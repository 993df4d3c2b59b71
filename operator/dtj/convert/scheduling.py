"""Conversion of queues, gangs and priorities of a Kubeflow job to dtj's `schedulingPolicy`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dtj.api.job import Manifest
from dtj.api.mpijob import QUEUE_ANNOTATIONS
from dtj.api.scheduling_rules import COSCHEDULING_SCHEDULER, KUEUE_QUEUE, VOLCANO_SCHEDULER
from dtj.convert.form import Metadata, RunPolicy, Template
from dtj.convert.notes import Notes

_PATH = "spec.runPolicy.schedulingPolicy"
_PRIORITY = "kueue.x-k8s.io/priority-class"
_LEFT_OUT = {
    "minResources": "left out: dtj sums up the requests of the pods",
    "scheduleTimeoutSeconds": "left out: runPolicy.startDeadlineSeconds ends a job whose pods get no nodes in time",
}


def scheduling(
    metadata: Metadata, policy: RunPolicy, templates: Iterable[Template], members: int, notes: Notes
) -> Manifest:
    """Return the job's `schedulingPolicy`. members: number of pods in the gang of the job."""
    fields, templates = dict(policy.scheduling_policy), list(templates)
    converted = _queue(metadata, fields, templates, notes)
    min_available = fields.pop("minAvailable", None)
    if min_available is not None:
        converted |= _min_available(min_available, converted.get("gang"), members, notes)
    if priority := fields.pop("priorityClass", None):
        converted["priorityClassName"] = priority
        notes.add(f"{_PATH}.priorityClass", priority, f"now {_PATH}.priorityClassName")
    for key, value in fields.items():
        notes.add(f"{_PATH}.{key}", value, _LEFT_OUT.get(key, "left out: dtj has no such field"))
    return converted


def waits_in_kueue(metadata: Metadata) -> bool:
    """Return whether the job has the label of a Kueue queue."""
    return bool(metadata.labels.get(KUEUE_QUEUE))


def moved_labels(metadata: Metadata) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return the labels and annotations that the job keeps, and the labels that move to every pod."""
    if not waits_in_kueue(metadata):
        return metadata.labels, metadata.annotations, {}
    kept = {key: value for key, value in metadata.labels.items() if key not in (KUEUE_QUEUE, _PRIORITY)}
    priority = metadata.labels.get(_PRIORITY)
    return kept, metadata.annotations, {_PRIORITY: priority} if priority else {}


def _queue(metadata: Metadata, fields: Manifest, templates: list[Template], notes: Notes) -> Manifest:
    queue = fields.pop("queue", None)
    if kueue := metadata.labels.get(KUEUE_QUEUE):
        message = (
            f"now {_PATH}: {{gang: Kueue, queue: {kueue}}}; Kueue's integration with plain pods must be on"
        )
        notes.add(f"metadata.labels[{KUEUE_QUEUE}]", kueue, message)
        if priority := metadata.labels.get(_PRIORITY):
            notes.add(f"metadata.labels[{_PRIORITY}]", priority, "now a label of every pod")
        if queue is not None:
            notes.add(f"{_PATH}.queue", queue, f"left out: the label names Kueue's queue {kueue}")
        return {"gang": "Kueue", "queue": kueue}
    field = f"{_PATH}.queue"
    schedulers = [template.spec.rest.get("schedulerName") for template in templates]
    holders = [("metadata", metadata), *(("template.metadata", template.metadata) for template in templates)]
    for path, holder in holders:
        for name in QUEUE_ANNOTATIONS:
            if name in holder.annotations:
                field, queue = f"{path}.annotations[{name}]", queue or holder.annotations[name]
    if queue is not None or VOLCANO_SCHEDULER in schedulers:
        converted = {"gang": "Volcano"} | ({"queue": queue} if queue else {})
        shown = ", ".join(f"{key}: {value}" for key, value in converted.items())
        notes.add(
            field if queue is not None else "template.spec.schedulerName",
            queue if queue is not None else VOLCANO_SCHEDULER,
            f"now {_PATH}: {{{shown}}}",
        )
        return converted
    if COSCHEDULING_SCHEDULER in schedulers:
        notes.add(
            "template.spec.schedulerName", COSCHEDULING_SCHEDULER, f"now {_PATH}: {{gang: Coscheduling}}"
        )
        return {"gang": "Coscheduling"}
    return {}


def _min_available(min_available: Any, gang: str | None, members: int, notes: Notes) -> Manifest:
    field = f"{_PATH}.minAvailable"
    if gang == "Kueue":
        notes.add(field, min_available, "left out: Kueue admits all pods of a job or none")
    elif gang is None:
        notes.add(
            field,
            min_available,
            "left out: the job does not name a gang scheduler; set "
            f"{_PATH}.gang to Coscheduling, Volcano or Kueue",
        )
    elif not isinstance(min_available, int) or isinstance(min_available, bool) or min_available >= members:
        notes.add(
            field, min_available, f"left out: the gang has {members} pods, and dtj waits for all of them"
        )
    else:
        notes.add(field, min_available, "kept; dtj does not count the launcher or chief")
        return {"minAvailable": max(min_available, 1)}
    return {}

"""Queues, gangs and priorities of a Kubeflow job as dtj's `schedulingPolicy`."""

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
    "minResources": "left out: dtj counts what the pods request",
    "scheduleTimeoutSeconds": "left out: runPolicy.startDeadlineSeconds ends a job that does not get its nodes",
}


def scheduling(
    metadata: Metadata, policy: RunPolicy, templates: Iterable[Template], members: int, notes: Notes
) -> Manifest:
    """The job's `schedulingPolicy`. members: how many pods it begins with, which is all that minAvailable counts."""
    given, templates = dict(policy.scheduling_policy), list(templates)
    made = _queue(metadata, given, templates, notes)
    least = given.pop("minAvailable", None)
    if least is not None:
        made |= _least(least, made.get("gang"), members, notes)
    if priority := given.pop("priorityClass", None):
        made["priorityClassName"] = priority
        notes.tell(f"{_PATH}.priorityClass", priority, f"now {_PATH}.priorityClassName")
    for key, value in given.items():
        notes.tell(f"{_PATH}.{key}", value, _LEFT_OUT.get(key, "left out: dtj has no such field"))
    return made


def waits_in_kueue(metadata: Metadata) -> bool:
    """Whether Kueue queues the job."""
    return bool(metadata.labels.get(KUEUE_QUEUE))


def moved_labels(metadata: Metadata) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """What stays of the job's labels and annotations, and the labels that each pod gets from them."""
    if not waits_in_kueue(metadata):
        return metadata.labels, metadata.annotations, {}
    kept = {key: value for key, value in metadata.labels.items() if key not in (KUEUE_QUEUE, _PRIORITY)}
    priority = metadata.labels.get(_PRIORITY)
    return kept, metadata.annotations, {_PRIORITY: priority} if priority else {}


def _queue(metadata: Metadata, given: Manifest, templates: list[Template], notes: Notes) -> Manifest:
    queue = given.pop("queue", None)
    if kueue := metadata.labels.get(KUEUE_QUEUE):
        now = f"now {_PATH}: {{gang: Kueue, queue: {kueue}}}; Kueue must have its integration of pods switched on"
        notes.tell(f"metadata.labels[{KUEUE_QUEUE}]", kueue, now)
        if priority := metadata.labels.get(_PRIORITY):
            notes.tell(f"metadata.labels[{_PRIORITY}]", priority, "now a label of every pod")
        if queue is not None:
            notes.tell(f"{_PATH}.queue", queue, f"left out: Kueue's queue {kueue} holds")
        return {"gang": "Kueue", "queue": kueue}
    field = f"{_PATH}.queue"
    schedulers = [template.spec.rest.get("schedulerName") for template in templates]
    holders = [("metadata", metadata), *(("template.metadata", template.metadata) for template in templates)]
    for path, holder in holders:
        for name in QUEUE_ANNOTATIONS:
            if name in holder.annotations:
                field, queue = f"{path}.annotations[{name}]", queue or holder.annotations[name]
    if queue is not None or VOLCANO_SCHEDULER in schedulers:
        made = {"gang": "Volcano"} | ({"queue": queue} if queue else {})
        shown = ", ".join(f"{key}: {value}" for key, value in made.items())
        notes.tell(
            field if queue is not None else "template.spec.schedulerName",
            queue if queue is not None else VOLCANO_SCHEDULER,
            f"now {_PATH}: {{{shown}}}",
        )
        return made
    if COSCHEDULING_SCHEDULER in schedulers:
        notes.tell(
            "template.spec.schedulerName", COSCHEDULING_SCHEDULER, f"now {_PATH}: {{gang: Coscheduling}}"
        )
        return {"gang": "Coscheduling"}
    return {}


def _least(least: Any, gang: str | None, members: int, notes: Notes) -> Manifest:
    field = f"{_PATH}.minAvailable"
    if gang == "Kueue":
        notes.tell(field, least, "left out: Kueue admits all pods or none")
    elif gang is None:
        notes.tell(
            field,
            least,
            "left out: the job does not say which scheduler it is for; set "
            f"{_PATH}.gang to Coscheduling, Volcano or Kueue",
        )
    elif not isinstance(least, int) or isinstance(least, bool) or least >= members:
        notes.tell(field, least, f"left out: the gang is all {members} pods that the job begins with")
    else:
        notes.tell(field, least, "kept; the launcher, or the chief, is not counted in dtj")
        return {"minAvailable": max(least, 1)}
    return {}

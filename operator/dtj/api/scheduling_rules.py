"""Faults of `runPolicy.schedulingPolicy`, alone or together with the pod templates of a job."""

from __future__ import annotations

from collections.abc import Iterator

from dtj.api.job import Fault, Job
from dtj.api.pod_template import object_of, pod_spec
from dtj.api.spec import Gang

COSCHEDULING_SCHEDULER = "scheduler-plugins-scheduler"
"""The name of the scheduler of scheduler-plugins, where it runs beside the cluster's default scheduler."""
VOLCANO_SCHEDULER = "volcano"
POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"
KUEUE_COUNT = "kueue.x-k8s.io/pod-group-total-count"
KUEUE_INDEX_LABEL = "kueue.x-k8s.io/pod-group-pod-index-label"
"""The annotation that tells Kueue which label has a pod's index. By this index, topology-aware scheduling places
neighbouring ranks close to each other (https://kueue.sigs.k8s.io/docs/reference/labels-and-annotations)."""
KUEUE_RETRIABLE = "kueue.x-k8s.io/retriable-in-group"
_POLICY = "spec.runPolicy.schedulingPolicy"
# The labels and annotations that the operator writes on the pods of a gang. A template must not set them.
_WRITTEN = {
    Gang.NONE: (),
    Gang.COSCHEDULING: (POD_GROUP_LABEL,),
    Gang.VOLCANO: (VOLCANO_GROUP,),
    Gang.KUEUE: (KUEUE_QUEUE, KUEUE_GROUP, KUEUE_COUNT, KUEUE_RETRIABLE),
}
# Schedulers that ignore the pod groups of a gang. For Coscheduling, default-scheduler is not listed: the scheduler
# may contain the plugin.
_WRONG_SCHEDULERS = {
    Gang.COSCHEDULING: (VOLCANO_SCHEDULER,),
    Gang.VOLCANO: ("default-scheduler", COSCHEDULING_SCHEDULER),
}


def members(job: Job) -> int:
    """Return the number of pods that the operator creates first. These pods form the gang."""
    first = job.rules.named["created_first"]
    return sum(count for role, count in job.pods.items() if role in first)


def scheduling_faults(job: Job) -> Iterator[Fault]:
    """Every fault of a job's schedulingPolicy, and of templates that contradict it."""
    policy = job.spec.run_policy.scheduling_policy
    gang = policy.gang
    if gang is Gang.KUEUE and policy.queue is None:
        yield Fault(f"{_POLICY}.queue", "required with gang: Kueue: a LocalQueue of the job's namespace")
    if policy.queue is not None and gang not in (Gang.KUEUE, Gang.VOLCANO):
        yield Fault(
            f"{_POLICY}.queue", f"only Kueue and Volcano have queues, and gang is {gang}: remove this field"
        )
    least = policy.min_available
    if least is not None and gang is Gang.KUEUE:
        yield Fault(
            f"{_POLICY}.minAvailable",
            "Kueue admits a group of pods as a whole or not at all: remove this field",
        )
    elif least is not None and gang is Gang.NONE:
        yield Fault(f"{_POLICY}.minAvailable", "needs gang: Coscheduling or Volcano, and gang is None")
    elif least is not None and least > (most := members(job)):
        yield Fault(
            f"{_POLICY}.minAvailable",
            f"must be at most {most}, the number of pods that the job creates first, got {least}: the scheduler "
            "would wait for more pods for ever",
        )
    yield from _template_faults(job, gang)


def _template_faults(job: Job, gang: Gang) -> Iterator[Fault]:
    schedulers: dict[str, str] = {}
    for role, replica in job.given.items():
        if not replica.replicas:
            continue
        path = f"spec.replicaSpecs.{role}.template"
        metadata, spec = object_of(replica.template.get("metadata")), pod_spec(replica)
        for kind in ("labels", "annotations"):
            for key in _WRITTEN[gang]:
                if key in object_of(metadata.get(kind)):
                    yield Fault(
                        f"{path}.metadata.{kind}[{key}]",
                        f"the operator sets this key, as {_POLICY.removeprefix('spec.')} asks: remove the key",
                    )
        scheduler = spec.get("schedulerName")
        if scheduler in _WRONG_SCHEDULERS.get(gang, ()):
            yield Fault(
                f"{path}.spec.schedulerName",
                f"{scheduler} ignores the pod groups of gang: {gang}; remove schedulerName, or name a scheduler that "
                "supports these groups",
            )
        elif gang in _WRONG_SCHEDULERS and role in job.rules.named["created_first"]:
            schedulers[path] = str(scheduler or "")
    if len({*schedulers.values()}) > 1:
        yield Fault(
            f"{list(schedulers)[-1]}.spec.schedulerName",
            "must be the same in the templates of all roles: one scheduler places all pods of a group",
        )

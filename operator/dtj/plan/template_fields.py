"""Fields that the record pod and the TensorBoard's pod take over from the pod templates of the replicas.

A policy, a quota or the nodes of a namespace may demand labels, limits or a selector of every pod. The templates of a
job that runs in such a namespace have these fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dtj.api.job import Job, Manifest
from dtj.api.pod_template import list_of, object_of, own_trainer
from dtj.api.quantities import amount
from dtj.plan.pods import ON_LINUX, accelerator_tolerations

# Fields of a pod's spec that every pod of the namespace may need in order to start.
_FIELDS = ("tolerations", "imagePullSecrets", "priorityClassName")
# Prefixes of labels and annotations that are not taken over: with them, a scheduler or dtj would treat the pod as a
# replica of the job.
_OF_REPLICAS = (
    "dtj.dev/",
    "kueue.x-k8s.io/",
    "scheduling.k8s.io/",
    "scheduling.volcano.sh/",
    "scheduling.x-k8s.io/",
)
Amounts = Mapping[str, Mapping[str, Any]]
"""Requests and limits of a container."""


def metadata_of_templates(job: Job) -> dict[str, dict[str, str]]:
    """Return the labels and annotations of the first template that has some, without those of a scheduler."""
    found = {}
    for kind in ("labels", "annotations"):
        given = (_texts(object_of(template.get("metadata")).get(kind)) for template in _templates(job))
        kept = {
            name: value
            for name, value in next(filter(None, given), {}).items()
            if not name.startswith(_OF_REPLICAS)
        }
        if kept:
            found[kind] = kept
    return found


def spec_of_templates(job: Job, *, beside_gpus: bool) -> Manifest:
    """Return the fields of a pod's spec of the first template that has them.

    beside_gpus: whether the pod may be on nodes of roles with accelerators. A pod that stays for days may not: an
    autoscaler would keep such a node for it.
    """
    specs = [object_of(template.get("spec")) for template in _templates(job)]
    found = {name: next((spec[name] for spec in specs if spec.get(name)), None) for name in _FIELDS}
    gpus = any(replica.gpus for replica in job.spec.replica_specs.with_pods().values())
    places = [object_of(template.get("spec")) for template in _templates(job, with_gpus=beside_gpus)]
    selector = next(filter(None, (_texts(spec.get("nodeSelector")) for spec in places)), {})
    # Take only the affinity to nodes. An affinity to pods would place the pod beside the replicas.
    nodes = next(filter(None, (object_of(spec.get("affinity")).get("nodeAffinity") for spec in places)), None)
    if (selector or nodes) and gpus and beside_gpus:
        found["tolerations"] = [*accelerator_tolerations(job), *list_of(found["tolerations"])]
    found["nodeSelector"] = {**ON_LINUX, **selector}
    found["affinity"] = {"nodeAffinity": nodes} if nodes else None
    return {name: value for name, value in found.items() if value is not None}


def resources_like_replicas(job: Job, own: Amounts, otherwise: Amounts) -> dict[str, dict[str, Any]]:
    """Return `own` with an amount of each resource of which the replicas state one.

    A ResourceQuota demands an amount in every pod of the namespace. otherwise: the amounts that `own` lacks. They are
    at most those of a replica.
    """
    result = {kind: dict(own.get(kind, {})) for kind in ("requests", "limits")}
    stated_amounts = _stated(job)
    for kind, given in result.items():
        more = otherwise.get(kind, {})
        for stated in (each[kind] for each in stated_amounts):
            for name in (name for name in more if name in stated and name not in given):
                given[name] = _least(more[name], stated[name])
    for name, limit in result["limits"].items():
        if name in result["requests"]:
            result["requests"][name] = _least(result["requests"][name], limit)
    return {kind: amounts for kind, amounts in result.items() if amounts}


def _templates(job: Job, *, with_gpus: bool = True) -> list[Manifest]:
    """Return the templates that are objects. A job with an invalid template also gets a record pod."""
    replicas = job.spec.replica_specs.with_pods().values()
    roles = (replica.template for replica in replicas if with_gpus or not replica.gpus)
    return [each for each in (job.spec.tensorboard.template, *roles) if isinstance(each, dict)]


def _stated(job: Job) -> list[Amounts]:
    """Return the requests and limits of each role's trainer container, the first choice first."""
    stated: list[Amounts] = []
    for replica in (given for given in job.given.values() if given.replicas):
        stated.append(vars(replica.resources))
        if replica.template:
            own = object_of(own_trainer(replica).get("resources"))
            stated.append({kind: object_of(own.get(kind)) for kind in ("requests", "limits")})
    return stated


def _least(one: str, other: Any) -> Any:
    try:
        return one if amount(one) <= amount(other) else other
    except (ValueError, TypeError):
        return one


def _texts(value: Any) -> dict[str, str]:
    return {name: text for name, text in object_of(value).items() if isinstance(text, str)}

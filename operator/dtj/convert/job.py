"""Conversion of one job of another operator to a DistributedTrainingJob, with its queue, gang and priority.

`dtj convert` calls it. `mpi`, `pytorch`, `tensorflow`, `torchx` and `trainjob` convert the kinds of jobs. For kinds
that can't be converted, this module has the advice that `dtj convert` prints.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from dtj.api.identity import API_VERSION, KIND
from dtj.api.job import InvalidJob, Manifest, read_job
from dtj.api.manifest_check import check
from dtj.api.mpijob import QUEUE_ANNOTATIONS
from dtj.api.pod_template import list_of, object_of
from dtj.api.scheduling_rules import COSCHEDULING_SCHEDULER, KUEUE_QUEUE, VOLCANO_SCHEDULER, members
from dtj.api.shown import enumerated, key_shown
from dtj.convert.hosts import with_dtjs_hosts
from dtj.convert.kind import KindRules, OriginalJob
from dtj.convert.kubeflow_fields import KubeflowRunPolicy, ObjectMeta, Spec, Template, without_nulls
from dtj.convert.mpi import MPI_JOB
from dtj.convert.notes import Conversion, Notes
from dtj.convert.pytorch import PYTORCH_JOB
from dtj.convert.replicas import COMMAND_GIVEN, kept_metadata
from dtj.convert.run_policy import moved_into_run_policy, run_policy
from dtj.convert.tensorflow import TF_JOB
from dtj.convert.torchx import TORCHX_JOB
from dtj.convert.trainjob import TRAIN_JOB

_PATH = "spec.runPolicy.schedulingPolicy"
_PRIORITY = "kueue.x-k8s.io/priority-class"
_LEFT_OUT = {
    "minResources": "left out: dtj adds up the requests of the pods",
    "scheduleTimeoutSeconds": "left out: runPolicy.startDeadlineSeconds ends a job whose pods get no nodes in time",
}


def scheduling(
    metadata: ObjectMeta, policy: KubeflowRunPolicy, templates: Iterable[Template], members: int, notes: Notes
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


def waits_in_kueue(metadata: ObjectMeta) -> bool:
    """Return whether the job has the label of a Kueue queue."""
    return bool(metadata.labels.get(KUEUE_QUEUE))


def moved_labels(metadata: ObjectMeta) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return the labels and the annotations that stay on the job, and the labels that move to every pod."""
    if not waits_in_kueue(metadata):
        return metadata.labels, metadata.annotations, {}
    kept = {key: value for key, value in metadata.labels.items() if key not in (KUEUE_QUEUE, _PRIORITY)}
    priority = metadata.labels.get(_PRIORITY)
    return kept, metadata.annotations, {_PRIORITY: priority} if priority else {}


def _queue(metadata: ObjectMeta, fields: Manifest, templates: list[Template], notes: Notes) -> Manifest:
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
        notes.add(
            field, min_available, "kept; in dtj, the launcher and the chief do not count towards minAvailable"
        )
        return {"minAvailable": max(min_available, 1)}
    return {}


_NAMES: dict[str, KindRules[Any]] = {
    "MPIJob": MPI_JOB,
    "TFJob": TF_JOB,
    "PyTorchJob": PYTORCH_JOB,
    "TrainJob": TRAIN_JOB,
    "Job": TORCHX_JOB,
}
_KINDS = {(kind.group, name): kind for name, kind in _NAMES.items()}
CONVERTED = "MPIJob, TFJob, PyTorchJob, TrainJob and torchx's dist.ddp"
"""The kinds of jobs that are converted, for messages."""
_GROUPS = {group for group, _ in _KINDS}


def is_job(manifest: Manifest) -> bool:
    """Return whether the object is a job of Kubeflow or Volcano. `convert` refuses some kinds of these jobs."""
    group = str(manifest.get("apiVersion")).partition("/")[0]
    return group in _GROUPS and str(manifest.get("kind")).endswith("Job")


@dataclass(frozen=True)
class _Added:
    """Options of `dtj convert` that add fields to a job."""

    artifacts: str | None
    command: Sequence[str]


def convert(
    manifest: Manifest,
    artifacts: str | None = None,
    others: Sequence[Manifest] = (),
    command: Sequence[str] = (),
) -> Conversion:
    """Convert a job. If the job can't be converted, the result has the reasons.

    artifacts: s3:// URI for `spec.artifacts.uri`. others: the other objects of the input, for example the runtime of
    a TrainJob. command: the command of containers without one.
    """
    kind, version = str(manifest.get("kind")), str(manifest.get("apiVersion"))
    notes = Notes()
    metadata = manifest.get("metadata")
    name = str(metadata.get("name", "")) if isinstance(metadata, dict) else ""
    job = None
    group, _, number = version.partition("/")
    if (rules := _KINDS.get((group, kind))) is not None:
        job = _of_version(
            rules, kind, number, without_nulls(manifest), _Added(artifacts, command), others, notes
        )
    else:
        notes.refuse("apiVersion", f"{version} {kind}", f"no equivalent in dtj: dtj converts {CONVERTED}")
    if job is not None:
        name = job["metadata"]["name"]
    return Conversion(kind, name, None if notes.refused else job, tuple(notes.all))


def _of_version(
    rules: KindRules[Any],
    kind: str,
    version: str,
    manifest: Manifest,
    added: _Added,
    others: Sequence[Manifest],
    notes: Notes,
) -> Manifest | None:
    """Convert a job whose version has the fields that the conversion reads, and refuse other versions."""
    spec = manifest.get("spec")
    newest = f"{rules.group}/{rules.newest}"
    if version not in rules.versions:
        has_field = isinstance(spec, dict) and rules.field in spec
        remedy = (
            f"the job has spec.{rules.field}, as {newest}: change apiVersion to {newest}"
            if has_field
            else f"write the job in the form of {newest}, with spec.{rules.field}"
        )
        notes.refuse(
            "apiVersion", f"{rules.group}/{version} {kind}", f"dtj does not convert this version; {remedy}"
        )
        return None
    if version not in ("v1", rules.newest):
        notes.add("apiVersion", f"{rules.group}/{version}", "read as v1, which has the same fields")
    return _converted(rules, version, manifest, added, others, notes)


def _prepared(
    kind: KindRules[Any], manifest: Manifest, others: Sequence[Manifest], notes: Notes
) -> Manifest | None:
    """Return the job in the form of its kind.

    A job of `kubeflow.org` gets all fields of the run policy in `runPolicy`, and dtj's host names.
    """
    if kind.prepare is not None:
        return kind.prepare(manifest, others, notes)
    spec = manifest.get("spec")
    spec = moved_into_run_policy(spec) if isinstance(spec, dict) else spec
    return with_dtjs_hosts({**manifest, "spec": spec}, kind.field, notes)


def _converted(
    kind: KindRules[Any],
    version: str,
    manifest: Manifest,
    added: _Added,
    others: Sequence[Manifest],
    notes: Notes,
) -> Manifest | None:
    try:
        metadata = ObjectMeta.model_validate(manifest.get("metadata", {}))
        prepared = _prepared(kind, manifest, others, notes)
        if prepared is None:
            return None
        spec: Spec = kind.form.model_validate(prepared["spec"])
    except ValidationError as error:
        _refuse_form(error, notes)
        return None
    name, queued = _name(metadata, notes), waits_in_kueue(metadata)
    source = OriginalJob(name, version, kind.versions[version], queued, added.command)
    policy = run_policy(spec.run_policy, source.defaults, source.queued, notes)
    dtj_spec, policy = kind.convert(source, spec, policy, notes)
    if notes.refused:
        return None
    templates = [replica.template for replica in spec.replicas.values() if replica.replicas]
    if scheduling_policy := scheduling(metadata, spec.run_policy, templates, _members(dtj_spec), notes):
        policy["schedulingPolicy"] = policy.get("schedulingPolicy", {}) | scheduling_policy
    if added.command and not any(note.now == COMMAND_GIVEN for note in notes.all):
        notes.add("--command", shlex.join(added.command), "left out: the job has a command")
    if added.artifacts:
        dtj_spec["artifacts"] = {"uri": added.artifacts}
    else:
        notes.add(
            "spec.artifacts",
            None,
            f"{kind.origin} has no such field: checkpoints are not kept, and a retry starts from the beginning; set "
            "artifacts.uri (dtj convert --artifacts s3://bucket/prefix)",
        )
    if policy:
        dtj_spec["runPolicy"] = policy
    job = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": _metadata(source.name, metadata, dtj_spec),
        "spec": dtj_spec,
    }
    for fault in check(job)[1]:
        notes.refuse(f"{fault.field} (converted)", None, fault.message)
    return job


def _refuse_form(error: ValidationError, notes: Notes) -> None:
    path = "metadata" if error.title == "Metadata" else "spec"
    for item in error.errors():
        notes.refuse(".".join([path, *map(str, item["loc"])]), None, item["msg"][0].lower() + item["msg"][1:])


def _members(dtj_spec: Manifest) -> int:
    """Return the number of pods in the gang of a job; 0 for a spec that `check` refuses."""
    try:
        return members(read_job({"spec": dtj_spec}))
    except InvalidJob:
        return 0


def _name(metadata: ObjectMeta, notes: Notes) -> str:
    if metadata.name or not metadata.generate_name:
        return metadata.name
    name = metadata.generate_name.rstrip("-")
    notes.add("metadata.generateName", metadata.generate_name, f"now the name {name}")
    return name


def _metadata(name: str, source: ObjectMeta, dtj_spec: Manifest) -> Manifest:
    labels, annotations, of_pods = moved_labels(source)
    if waits_in_kueue(source):
        _label_pods(dtj_spec, of_pods)
    namespace = {"namespace": source.namespace} if source.namespace else {}
    return {"name": name, **namespace, **kept_metadata(labels, annotations)}


def _label_pods(dtj_spec: Manifest, labels: dict[str, str]) -> None:
    """Add labels to every pod template, and remove the label of the queue, which only the operator may set."""
    for role in dtj_spec["replicaSpecs"].values():
        template = role.get("template", {})
        metadata = template.get("metadata", {})
        own = {key: value for key, value in metadata.get("labels", {}).items() if key != KUEUE_QUEUE}
        if own == metadata.get("labels", {}) and not labels:
            continue
        role["template"] = {**template, "metadata": {**metadata, "labels": labels | own}}


_NEW = "dtj new NAME --strategy TorchDistributed --image IMAGE --command COMMAND --workers N"
_OF_PODS = f"write a job with the image and the command of its pods: {_NEW}"
_WAYS = {
    "jobset.x-k8s.io JobSet": f"convert the TrainJob that made it, or {_OF_PODS}",
    "batch Job": f"{_OF_PODS}; PET_NODE_RANK has the index of a worker",
    "workload.codeflare.dev AppWrapper": "convert the wrapped job from a file of its own",
    "ray.io RayJob": f"write the function that Ray runs on each worker as a script, and a job for the script: {_NEW}",
}
"""Advice for jobs that can't be converted, by API group and kind."""


def ways(manifests: Sequence[Manifest]) -> dict[str, str | None]:
    """Return the kinds of the objects, each with advice on how to get a job of dtj from it; None without advice."""
    return {_kind(manifest): _way(manifest) for manifest in manifests}


def _kind(manifest: Manifest) -> str:
    if not manifest.get("kind"):
        return "an object without kind"
    kind = f"{key_shown(manifest.get('apiVersion'))} {key_shown(manifest['kind'])}"
    return f"{kind} (Indexed)" if _is_indexed(manifest) else kind


def _way(manifest: Manifest) -> str | None:
    kind = f"{str(manifest.get('apiVersion')).partition('/')[0]} {manifest.get('kind')}"
    if kind == "batch Job" and not _is_indexed(manifest):
        return None
    way, wrapped = _WAYS.get(kind), [*_wrapped(manifest)]
    return f"{way}: {enumerated(wrapped, 'and')}" if way and wrapped else way


def _is_indexed(manifest: Manifest) -> bool:
    return object_of(manifest.get("spec")).get("completionMode") == "Indexed"


def _wrapped(manifest: Manifest) -> Iterator[str]:
    """Yield the jobs in an AppWrapper that dtj converts."""
    for index, component in enumerate(list_of(object_of(manifest.get("spec")).get("components"))):
        template = object_of(object_of(component).get("template"))
        if is_job(template):
            yield f"the {key_shown(template['kind'])} in spec.components[{index}].template"

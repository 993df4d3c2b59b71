"""Faults of a pod template: what Kubernetes refuses in a pod, and fields that only the operator may set.

A template is merged over the operator's pod. A field that Kubernetes requires may be missing in a template where the
operator's pod has it.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from dtj.api.identity import GROUP, LABEL_MANAGED_BY
from dtj.api.job import MOST_FAULTS, Fault, unknown_field
from dtj.api.pod_template import (
    RESERVED_MOUNTS,
    RESERVED_VARIABLES,
    RESERVED_VOLUMES,
    SHM_VOLUME,
    TENSORBOARD_CONTAINER,
    TRAINER_CONTAINER,
    list_of,
    object_of,
    objects_of,
)
from dtj.api.shown import is_text, key_shown, shown
from dtj_trainer import contract

# Templates are checked against Kubernetes' schema of pods: the names and types of fields.
#
# pod_schema.json has every field that the oldest or the newest supported Kubernetes knows. `make pod-schema` writes
# the file.

QUANTITY = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
"""The grammar of a quantity in Kubernetes, such as 500m or 4Gi."""
Given = Mapping[str, Any]
"""The part of the operator's pod over which a part of the template is merged: an object's values by field, or the
entries of a list by their merge key.
"""
# Groups of fields of which an object may have only one. Kubernetes refuses two, but its schema lacks this rule.
# None: all fields of the object are in the group.
_ONE_OF: Mapping[str, tuple[str, ...] | None] = {
    "EnvVar": ("value", "valueFrom"),
    "EnvVarSource": None,
    "LifecycleHandler": None,
    "Probe": ("exec", "grpc", "httpGet", "tcpSocket"),
    "Volume": None,
}
# Objects that need one of the fields in _ONE_OF. Others may have none: a volume without a source is an emptyDir, and
# an EnvVar without a value is empty.
_NEEDS_ONE = ("EnvVarSource", "LifecycleHandler", "Probe")
_BITS = {"int32": 31, "int64": 63}
# The merge keys of the lists in which the operator's pod has entries. `dtj.plan.merge` merges by the same keys.
_MERGE_KEYS = {"containers": "name", "volumes": "name", "volumeMounts": "mountPath", "env": "name"}
_CALLED_BY_NAME = ("containers", "initContainers")
_NOTHING: Given = {}


def pod_faults(kind: str, value: Any, path: str, given: Given = _NOTHING) -> Iterator[Fault]:
    """What Kubernetes would refuse in a value, by its schema.

    kind: a name of the schema, such as PodSpec. path: of the value, for messages. given: the part of the operator's
    pod over which the value is merged. The value need not repeat required fields of that part.
    """
    yield from _Walk().look(kind, value, path, given)


@cache
def one_of(kind: str) -> tuple[str, ...]:
    """Return the fields of which an object of this kind may have only one."""
    if kind not in _ONE_OF:
        return ()
    return _ONE_OF[kind] or tuple(sorted(set(_definition(kind)[0]) - {"name"}))


class _Walk:
    """One check of a value. Only the first unknown fields get a suggestion: the search for similar names is slow."""

    def __init__(self) -> None:
        self._unknown = 0

    def look(self, kind: str, value: Any, path: str, given: Given = _NOTHING) -> Iterator[Fault]:
        if kind[0] == "[":
            yield from self._list(kind[1:-1], value, path, given)
        elif kind[0] == "{":
            yield from self._map(kind[1:-1], value, path)
        elif kind[0].isupper() and "|" not in kind:
            yield from self._object(kind, value, path, given)
        elif (wrong := _wrong(kind, value)) is not None:
            yield Fault(path, wrong)

    def _object(self, kind: str, value: Any, path: str, given: Given) -> Iterator[Fault]:
        if not isinstance(value, dict):
            yield Fault(path, f"must be an object, got {shown(value)}")
            return
        fields, required = _definition(kind)
        for key, child in value.items():
            known = fields.get(key)
            if known is None:
                yield Fault(f"{path}.{key_shown(key)}", self._unknown_field(key, fields))
            elif child is not None:
                # A null needs no check: the merge removes the operator's value of the field.
                inner = given.get(key)
                yield from self.look(
                    known, child, f"{path}.{key}", inner if isinstance(inner, dict) else _NOTHING
                )
        for key in required:
            if value.get(key) is None and (key not in given or key in value):
                yield Fault(f"{path}.{key}", "required")
        if kind in _ONE_OF and (wrong := _together(kind, value, given)) is not None:
            yield Fault(path, wrong)

    def _unknown_field(self, key: Any, fields: Iterable[str]) -> str:
        self._unknown += 1
        return unknown_field(str(key), fields if self._unknown <= MOST_FAULTS else ())

    def _map(self, kind: str, value: Any, path: str) -> Iterator[Fault]:
        if not isinstance(value, dict):
            yield Fault(path, f"must be an object, got {shown(value)}")
            return
        for key, child in value.items():
            where = f"{path}[{key_shown(key)}]"
            if not is_text(key):
                yield Fault(where, f"the key must be a string, got {shown(key)}")
            elif child is not None:
                yield from self.look(kind, child, where)

    def _list(self, kind: str, value: Any, path: str, given: Given) -> Iterator[Fault]:
        if not isinstance(value, list):
            yield Fault(path, f"must be a list of {_many(kind)}, got {shown(value)}")
            return
        field = path.rsplit(".", 1)[-1]
        merge_key = _MERGE_KEYS.get(field)
        for index, entry in enumerate(value):
            name = entry.get("name") if field in _CALLED_BY_NAME and isinstance(entry, dict) else None
            where = f"{path}[{key_shown(name) if isinstance(name, str) and name else index}]"
            merge_value = entry.get(merge_key) if given and merge_key and isinstance(entry, dict) else None
            inner = given.get(merge_value) if isinstance(merge_value, str) else None
            yield from self.look(kind, entry, where, inner if isinstance(inner, dict) else _NOTHING)


def _together(kind: str, value: Mapping[str, Any], given: Given) -> str | None:
    """Return the fault of an object that has two fields of a group in _ONE_OF, or none where one is required."""
    fields = one_of(kind)
    # For Kubernetes, an empty `value` of an EnvVar is the same as no `value`.
    chosen = sorted(field for field, child in value.items() if field in fields and child not in (None, ""))
    if len(chosen) > 1:
        return f"give only one of {_listed(chosen)}"
    if chosen or kind not in _NEEDS_ONE or any(field in given and field not in value for field in fields):
        return None
    misspelt = set(value).difference(_definition(kind)[0])
    return None if misspelt else f"needs one of {_listed(fields)}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _wrong(kind: str, value: Any) -> str | None:
    """Return the fault of a value of a plain type, such as a number or a string; None if it has no fault."""
    if kind in _BITS:
        if not _is_whole(value):
            return f"must be a whole number, got {shown(value)}"
        fits = -(2 ** _BITS[kind]) <= value < 2 ** _BITS[kind]
        return None if fits else f"must be a number of {_BITS[kind] + 1} bits ({kind}), got {shown(value)}"
    if kind == "boolean":
        return None if isinstance(value, bool) else f"must be true or false, got {shown(value)}"
    if kind == "quantity":
        is_one = isinstance(value, (int, float, str)) and not isinstance(value, bool)
        return (
            None
            if is_one and QUANTITY.fullmatch(str(value))
            else (f"{shown(value)} is not a quantity such as 2, 500m or 4Gi")
        )
    if kind == "int-or-string":
        return (
            None
            if is_text(value) or _is_whole(value)
            else (f"must be a whole number or a string, got {shown(value)}")
        )
    if kind == "object":
        return None if isinstance(value, dict) else f"must be an object, got {shown(value)}"
    if not is_text(value):
        return f"must be a string, got {shown(value)}"
    values = kind.split("|")
    if len(values) == 1 or value in ("", *values):
        return None
    return f"must be {', '.join(values[:-1])} or {values[-1]}, got {shown(value)}"


def _is_whole(value: Any) -> bool:
    """Whether the API server takes a value for a whole number: a boolean is none, and 2.0 is 2."""
    return not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    )


def _many(kind: str) -> str:
    return {"string": "strings", "int32": "whole numbers", "int64": "whole numbers"}.get(kind, "objects")


@cache
def _definition(name: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the types of an object's fields by name, and the names of the required fields."""
    written = _definitions()[name]
    return (
        {field.removesuffix("!"): kind for field, kind in written.items()},
        tuple(field.removesuffix("!") for field in written if field.endswith("!")),
    )


@cache
def _definitions() -> dict[str, dict[str, str]]:
    definitions: dict[str, dict[str, str]] = json.loads(
        files("dtj.api").joinpath("pod_schema.json").read_text(encoding="utf-8")
    )["definitions"]
    return definitions


@dataclass(frozen=True, kw_only=True)
class OperatorsPod:
    """The operator's pod over which a template is merged."""

    container: str
    """The name of the pod's only container."""
    purpose: str
    """A verb for messages that tells what the container does, such as `trains`."""
    given: Given
    """Fields of the operator's pod that Kubernetes requires. A template need not repeat them."""
    volumes: tuple[str, ...] = ()
    """Names of the volumes of the operator's pod."""
    variables: frozenset[str] = frozenset()
    """Environment variables that the job's strategy sets in the container."""

    @property
    def naming(self) -> str:
        """The sentence that tells the author of a template the container's name."""
        return f"the container that {self.purpose} is called {self.container}"


_SECURITY: Given = {"seccompProfile": {"type": {}}}
REPLICA_POD = OperatorsPod(
    container=TRAINER_CONTAINER,
    purpose="trains",
    given={
        "securityContext": _SECURITY,
        "containers": {
            TRAINER_CONTAINER: {
                "readinessProbe": {"tcpSocket": {"port": {}}},
                "volumeMounts": {str(contract.ROOT): {"name": {}}, "/dev/shm": {"name": {}}},  # noqa: S108 - no file
            }
        },
    },
)
TENSORBOARD_POD = OperatorsPod(
    container=TENSORBOARD_CONTAINER,
    purpose="serves",
    given={
        "securityContext": _SECURITY,
        "containers": {
            TENSORBOARD_CONTAINER: {
                "readinessProbe": {"httpGet": {"port": {}}},
                "livenessProbe": {"httpGet": {"port": {}}},
                "volumeMounts": {str(contract.ROOT): {"name": {}}, "/tmp": {"name": {}}},  # noqa: S108 - no file
            }
        },
    },
    volumes=("files", "tmp"),
)

_NAME_OF_A_CONTAINER = re.compile(r"\.containers\[[0-9]+\]\.name")
# A longer grace period can put the deletionTimestamp of a deleted pod into a year that no program can read.
_LONGEST_GRACE_SECONDS = 365 * 86400
_RESTARTS = "the operator restarts pods itself"
_SET_BY_OPERATOR = {
    "hostname": "the other pods of the job find the pod by its hostname",
    "hostnameOverride": "the other pods of the job find the pod by its hostname",
    "subdomain": "the other pods of the job find the pod by its subdomain",
    "restartPolicy": _RESTARTS,
    "hostNetwork": "two replicas on one node would want the same ports",
    "nodeName": "the scheduler chooses the node; use nodeSelector or affinity",
}
_TERMINATION_MESSAGE = "the operator reads the cause of a failure from the container's termination message"
_SET_BY_OPERATOR_IN_TRAINER = {
    "terminationMessagePath": _TERMINATION_MESSAGE,
    "terminationMessagePolicy": _TERMINATION_MESSAGE,
    # With a restart policy, the kubelet would start the program again in a pod that the operator counts as ended.
    "restartPolicy": _RESTARTS,
    "restartPolicyRules": _RESTARTS,
}


def pod_template_faults(path: str, template: Mapping[str, Any], pod: OperatorsPod) -> Iterator[Fault]:
    """Yield the faults of a template.

    path: of the template, for messages. pod: the pod over which the template is merged.
    """
    for key in (key for key in template if key not in ("metadata", "spec")):
        yield Fault(f"{path}.{key_shown(key)}", "unknown field: a PodTemplateSpec has metadata and spec")
    for key in ("metadata", "spec"):
        # A null would remove the metadata or spec of the operator's pod in the merge.
        if not isinstance(template.get(key, {}), dict):
            yield Fault(f"{path}.{key}", f"must be an object, got {shown(template[key])}")
    yield from _metadata(f"{path}.metadata", object_of(template.get("metadata")))
    yield from _spec(f"{path}.spec", object_of(template.get("spec")), pod)


def _metadata(path: str, metadata: dict[str, Any]) -> Iterator[Fault]:
    for key in (key for key in metadata if key not in ("labels", "annotations")):
        yield Fault(f"{path}.{key_shown(key)}", "only labels and annotations can be given")
    for kind in ("labels", "annotations"):
        yield from _labels(f"{path}.{kind}", metadata.get(kind, {}))


def _labels(path: str, entries: Any) -> Iterator[Fault]:
    """Yield the faults of labels or annotations."""
    if not isinstance(entries, dict):
        yield Fault(path, f"must be an object, got {shown(entries)}")
        return
    for key, value in entries.items():
        where = f"{path}[{key_shown(key)}]"
        if str(key).split("/", 1)[0] == GROUP:
            yield Fault(where, f"names beginning with {GROUP}/ belong to the operator")
        elif key == LABEL_MANAGED_BY:
            yield Fault(where, "can't be set: the operator finds its pods by this label")
        elif not is_text(key) or not is_text(value):
            yield Fault(where, f"must be a string, got {shown(value if is_text(key) else key)}")


def _spec(path: str, spec: dict[str, Any], pod: OperatorsPod) -> Iterator[Fault]:
    for key, reason in _SET_BY_OPERATOR.items():
        if key in spec and not (key == "restartPolicy" and spec[key] == "Never"):
            yield Fault(f"{path}.{key}", f"can't be set: {reason}")
    for fault in pod_faults("PodSpec", spec, path, pod.given):
        nameless = _NAME_OF_A_CONTAINER.fullmatch(fault.field.removeprefix(path))
        required = fault.message == "required"
        yield replace(fault, message=f"required ({pod.naming})") if required and nameless else fault
    grace = spec.get("terminationGracePeriodSeconds")
    if isinstance(grace, int) and grace > _LONGEST_GRACE_SECONDS:
        message = f"must be at most {_LONGEST_GRACE_SECONDS}, a year, got {shown(grace)}"
        yield Fault(f"{path}.terminationGracePeriodSeconds", message)
    yield from _restarts_of_all(path, spec)
    yield from _names(path, spec, pod)
    yield from _mounts(path, spec, pod)
    for container in objects_of(spec.get("containers")):
        yield from _container(f"{path}.containers[{_bracketed(container)}]", container, pod)
    for container in objects_of(spec.get("initContainers")):
        if not container.get("image"):
            yield Fault(f"{path}.initContainers[{_bracketed(container)}].image", "required")


def _restarts_of_all(path: str, spec: dict[str, Any]) -> Iterator[Fault]:
    """Yield a fault for each rule by which a sidecar or init container makes the kubelet restart all containers.

    The kubelet would start this pod's rank again while the other ranks of the attempt continue. See KEP-5532.
    """
    for kind in ("containers", "initContainers"):
        for container in objects_of(spec.get(kind)):
            for index, rule in enumerate(objects_of(container.get("restartPolicyRules"))):
                if rule.get("action") == "RestartAllContainers":
                    where = f"{path}.{kind}[{_bracketed(container)}].restartPolicyRules[{index}].action"
                    yield Fault(where, f"RestartAllContainers can't be set: {_RESTARTS}")


def _names(path: str, spec: dict[str, Any], pod: OperatorsPod) -> Iterator[Fault]:
    """Yield the faults of the names of containers and volumes. The merge treats entries of one name as one entry."""
    for lists in (("containers", "initContainers"), ("volumes",)):
        seen: set[str] = set()
        for key in lists:
            if key in spec and spec[key] is None:
                yield Fault(f"{path}.{key}", "must be a list of objects, got None")
            for index, entry in enumerate(list_of(spec.get(key))):
                name = object_of(entry).get("name")
                where = f"{path}.{key}[{index}].name"
                if name == "":
                    yield Fault(where, f"required ({pod.naming})" if key == "containers" else "required")
                if key == "volumes" and name in RESERVED_VOLUMES:
                    yield Fault(where, f"{name} belongs to the operator")
                if key == "volumes" and name == SHM_VOLUME:
                    yield from _shared_memory(f"{path}.{key}[{index}]", entry)
                if isinstance(name, str) and name in seen:
                    yield Fault(where, f"{shown(name)} is given twice")
                if isinstance(name, str) and name:
                    seen.add(name)


def _shared_memory(path: str, volume: dict[str, Any]) -> Iterator[Fault]:
    for source, given in volume.items():
        if source not in ("name", "emptyDir") and given is not None:
            yield Fault(path, f"must be an emptyDir: {SHM_VOLUME} is /dev/shm, got {key_shown(source)}")


def _mounts(path: str, spec: dict[str, Any], pod: OperatorsPod) -> Iterator[Fault]:
    """Yield a fault for each mount of a volume that neither the template nor the operator's pod has."""
    if not isinstance(spec.get("volumes", []), list):
        return
    names = (volume.get("name") for volume in objects_of(spec.get("volumes")))
    volumes = {*pod.volumes, *(name for name in names if isinstance(name, str))}
    for kind in ("containers", "initContainers"):
        for container in objects_of(spec.get(kind)):
            for key in ("volumeMounts", "volumeDevices"):
                for index, mount in enumerate(list_of(container.get(key))):
                    name = object_of(mount).get("name")
                    if isinstance(name, str) and name not in volumes:
                        yield Fault(
                            f"{path}.{kind}[{_bracketed(container)}].{key}[{index}].name",
                            f"the pod has no volume {shown(name)}; give one in {path}.volumes",
                        )


def _container(path: str, container: dict[str, Any], pod: OperatorsPod) -> Iterator[Fault]:
    for key in ("env", "volumeMounts", "ports", "command", "args"):
        # A null would remove the entries of the operator's container in the merge.
        if key in container and container[key] is None:
            of = "strings" if key in ("command", "args") else "objects"
            yield Fault(f"{path}.{key}", f"must be a list of {of}, got None")
    yield from _container_image(f"{path}.image", container, pod)
    yield from _reserved(path, container, pod)
    if container.get("name") == TRAINER_CONTAINER:
        for key, reason in _SET_BY_OPERATOR_IN_TRAINER.items():
            if key in container:
                yield Fault(f"{path}.{key}", f"can't be set: {reason}")


def _container_image(path: str, container: dict[str, Any], pod: OperatorsPod) -> Iterator[Fault]:
    name, image = container.get("name"), container.get("image", "")
    if name != pod.container and name and not image:
        yield Fault(path, f"required: {pod.naming}; another container needs an image")
    elif name == pod.container and "image" in container and not image:
        yield Fault(path, f"must be an image reference, got {shown(image)}")


def _reserved(path: str, container: dict[str, Any], pod: OperatorsPod) -> Iterator[Fault]:
    """Yield a fault for each mount path and each variable that belongs to the operator."""
    for mount in objects_of(container.get("volumeMounts")):
        mount_path = mount.get("mountPath")
        if isinstance(mount_path, str) and posixpath.normpath(mount_path) in RESERVED_MOUNTS:
            yield Fault(f"{path}.volumeMounts", f"{key_shown(mount_path)} belongs to the operator")
    for variable in objects_of(container.get("env")):
        name = variable.get("name")
        own = pod.variables if container.get("name") == pod.container else frozenset()
        if isinstance(name, str) and name in RESERVED_VARIABLES | own:
            yield Fault(f"{path}.env", f"{name} is set by the operator")


def _bracketed(container: dict[str, Any]) -> str:
    """Return the name of a container as the path of a field shows the name between brackets."""
    return key_shown(container.get("name"))

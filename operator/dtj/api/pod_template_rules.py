"""Faults of a pod template: what Kubernetes refuses in a pod, and what a template must not change in the operator's.

A template is merged over the operator's pod. A field that Kubernetes requires may be missing in a template where the
operator's pod has it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dtj.api.identity import GROUP, LABEL_MANAGED_BY
from dtj.api.job import Fault
from dtj.api.pod_schema import Given, pod_faults
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


@dataclass(frozen=True, kw_only=True)
class OperatorsPod:
    """The operator's pod over which a template is merged."""

    container: str
    """Name of its one container."""
    purpose: str
    """What the container does, as a verb for messages: `trains`."""
    given: Given
    """Fields that Kubernetes requires and that the pod has."""
    volumes: tuple[str, ...] = ()
    """Names of its volumes."""
    variables: frozenset[str] = frozenset()
    """Variables of its container that the job's strategy sets."""

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
# A deleted pod with more has a deletionTimestamp that no program can read.
_LONGEST_GRACE_SECONDS = 365 * 86400
_RESTARTS = "the operator restarts pods itself"
_SET_BY_OPERATOR = {
    "hostname": "peers find the pod by it",
    "hostnameOverride": "peers find the pod by its hostname",
    "subdomain": "peers find the pod by it",
    "restartPolicy": _RESTARTS,
    "hostNetwork": "two replicas on one node would want the same ports",
    "nodeName": "the scheduler chooses the node; use nodeSelector or affinity",
}
_TERMINATION_MESSAGE = "the reason of a failure is read from it"
_SET_BY_OPERATOR_IN_TRAINER = {
    "terminationMessagePath": _TERMINATION_MESSAGE,
    "terminationMessagePolicy": _TERMINATION_MESSAGE,
    # The kubelet would run the program again in a pod that the operator counts as failed or succeeded.
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
        # null would remove the operator's metadata or spec, not only that of the template.
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
            yield Fault(where, "can't be set: the operator finds its pods by it")
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
    """Yield a fault for each rule of a sidecar or init container by which the kubelet starts the program again.

    The program would be a rank that starts anew beside ranks of the same attempt. See KEP-5532.
    """
    for kind in ("containers", "initContainers"):
        for container in objects_of(spec.get(kind)):
            for index, rule in enumerate(objects_of(container.get("restartPolicyRules"))):
                if rule.get("action") == "RestartAllContainers":
                    where = f"{path}.{kind}[{_bracketed(container)}].restartPolicyRules[{index}].action"
                    yield Fault(where, f"RestartAllContainers can't be set: {_RESTARTS}")


def _names(path: str, spec: dict[str, Any], pod: OperatorsPod) -> Iterator[Fault]:
    """Yield the faults of the names of containers and volumes: the merge takes entries of one name for the same."""
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
            yield Fault(path, f"must be an emptyDir, which has /dev/shm, got {key_shown(source)}")


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
        # null would remove the operator's entries.
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
    """Return the name of a container as it stands in the path of a field."""
    return key_shown(container.get("name"))

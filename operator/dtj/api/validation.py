"""What the schema can't say of a spec: rules across fields, and what a template may not touch."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from dtj.api.horovod import SSH_VOLUME
from dtj.api.identity import GROUP, LABEL_MANAGED_BY
from dtj.api.job import Fault, Job
from dtj.api.limits import size_faults
from dtj.api.mpijob import MOUNTS, VOLUMES
from dtj.api.names import LABEL_LENGTH, is_dns_label, is_namespace, pod_name, tensorboard_name
from dtj.api.pod_schema import QUANTITY, Given, pod_faults
from dtj.api.scheduling import Gang
from dtj.api.scheduling_rules import scheduling_faults
from dtj.api.shown import enumerated, is_text, key_shown, shown
from dtj.api.spec import EnvVar, JobSpec, ReplicaSpec, Resume, StallPolicy
from dtj.api.strategies import RULES
from dtj.api.strategy import pods_of
from dtj_trainer import contract

TRAINER_CONTAINER = "trainer"
TENSORBOARD_CONTAINER = "tensorboard"
WORKSPACE_VOLUME = "dtj-workspace"
RUN_VOLUME = "dtj-run"
CONFIG_VOLUME = "dtj-config"
SHM_VOLUME = "dtj-shm"
RESERVED_VOLUMES = (WORKSPACE_VOLUME, RUN_VOLUME, CONFIG_VOLUME, SSH_VOLUME)
RESERVED_MOUNTS = (str(contract.ROOT / contract.RUN), str(contract.CONFIG_DIR), str(contract.SSH_DIR))

# The reference grammar of the distribution project, without its length rules.
_IMAGE = re.compile(
    r"([a-zA-Z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
_ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_NAMELESS = re.compile(r"\.spec\.containers\[[0-9]+\]\.name")
_SET_BY_OPERATOR = {
    "hostname": "peers find the pod by it",
    "subdomain": "peers find the pod by it",
    "restartPolicy": "the operator restarts pods itself",
    "hostNetwork": "two replicas on one node would want the same ports",
    "nodeName": "the scheduler chooses the node; use nodeSelector or affinity",
}


# What the operator's pods have of what Kubernetes requires: a template that is merged over may leave it out.
_SECURITY: Given = {"seccompProfile": {"type": {}}}
_REPLICAS_POD: Given = {
    "securityContext": _SECURITY,
    "containers": {
        TRAINER_CONTAINER: {
            "readinessProbe": {"tcpSocket": {"port": {}}},
            "volumeMounts": {str(contract.ROOT): {"name": {}}, "/dev/shm": {"name": {}}},  # noqa: S108 - no file
        }
    },
}
_TENSORBOARDS_POD: Given = {
    "securityContext": _SECURITY,
    "containers": {
        TENSORBOARD_CONTAINER: {
            "readinessProbe": {"httpGet": {"port": {}}},
            "livenessProbe": {"httpGet": {"port": {}}},
            "volumeMounts": {str(contract.ROOT): {"name": {}}, "/tmp": {"name": {}}},  # noqa: S108 - no file
        }
    },
}


def faults(job: Job) -> list[Fault]:
    """Every fault of a job; an empty list means that it can be planned."""
    return [
        *_name(job),
        *_roles(job),
        *_program(job),
        *_environment(job),
        *_tolerations(job),
        *_replicas(job),
        *_mpijob(job),
        *_artifacts(job),
        *_tensorboard(job),
        *_run_policy(job),
        *scheduling_faults(job),
        *size_faults(job),
    ]


def _name(job: Job) -> Iterator[Fault]:
    if not is_dns_label(job.name):
        yield Fault(
            "metadata.name",
            f"{shown(job.name)} is not a DNS label: lower-case letters, digits and '-', beginning with a letter "
            "and ending with a letter or digit",
        )
    if not is_namespace(job.namespace):
        yield Fault(
            "metadata.namespace",
            f"{shown(job.namespace)} is not a DNS label: at most {LABEL_LENGTH} lower-case letters, digits and '-', "
            "beginning and ending with a letter or digit",
        )
    sizes = dict.fromkeys(job.spec.rules.roles, 1) | {
        role: replica.replicas for role, replica in job.spec.replica_specs.given().items()
    }
    names = {pod_name(job.name, role, max(size, 1) - 1): "pod" for role, size in sizes.items()}
    if job.spec.tensorboard.enabled:
        names[tensorboard_name(job.name)] = "Service"
    longest = max(names, key=len)
    if len(longest) > LABEL_LENGTH:
        spare = len(longest) - LABEL_LENGTH
        yield Fault(
            "metadata.name",
            f"too long: the {names[longest]} {key_shown(longest)} would have {len(longest)} characters of "
            f"{LABEL_LENGTH}; use a name of at most {len(job.name) - spare}",
        )


def _roles(job: Job) -> Iterator[Fault]:
    strategy, given = job.spec.strategy, job.spec.replica_specs.given()
    roles = job.spec.rules.roles
    for name in given.keys() - roles:
        which = "its only role is" if len(roles) == 1 else "its roles are"
        yield Fault(
            f"spec.replicaSpecs.{name}",
            f"strategy {strategy} has no {name}: {which} {enumerated(roles, 'and')}",
        )
    for name in job.spec.rules.names(lambda role: role.required):
        if name not in given:
            unless = f", unless {roles[name].unless}" if roles[name].unless else ""
            yield Fault(f"spec.replicaSpecs.{name}", f"required by strategy {strategy}{unless}")
    for own in RULES.values():
        if own.name != strategy and own.block is not None and getattr(job.spec, own.block) is not None:
            yield Fault(
                f"spec.{JobSpec.model_fields[own.block].alias}",
                f"belongs to strategy {own.name}, and this job's is {strategy}: remove it",
            )
    for name, role in roles.items():
        if (replica := given.get(name)) is None:
            continue
        other = given.get(role.instead_of or "")
        if other is not None and other.replicas and replica.replicas:
            yield Fault(
                f"spec.replicaSpecs.{name}",
                f"takes the place of {role.instead_of}: give one of the two, or set "
                f"spec.replicaSpecs.{role.instead_of}.replicas to 0",
            )
        if role.single and replica.replicas != 1:
            yield Fault(f"spec.replicaSpecs.{name}.replicas", f"must be 1, got {replica.replicas}")
        if role.without_gpus and replica.gpus:
            yield Fault(f"spec.replicaSpecs.{name}.gpus", f"must be 0: {role.without_gpus}")


def _program(job: Job) -> Iterator[Fault]:
    yield from _image("spec.image", job.spec.image)
    if not job.spec.command and not job.spec.args and not _each_has_a_command(job):
        yield Fault("spec.command", "required: the program of each replica, e.g. [python, train.py]")


def _image(path: str, image: str) -> Iterator[Fault]:
    if not _IMAGE.fullmatch(image):
        yield Fault(path, f"{shown(image)} is not an image reference such as repository/name:tag")


def _each_has_a_command(job: Job) -> bool:
    """Whether the template of every role that runs the program has a command of its own."""
    given, roles = job.spec.replica_specs.given(), job.spec.rules.roles
    return all(own_program(given.get(name))[0] for name, _ in pods_of(job.spec) if roles[name].runs_program)


def own_program(replica: ReplicaSpec | None) -> tuple[list[str], list[str]]:
    """Command and args that a role's own template gives; empty where it gives none."""
    for container in _containers(replica) if replica else ():
        if container.get("name") == TRAINER_CONTAINER:
            return container.get("command") or [], container.get("args") or []
    return [], []


def _environment(job: Job) -> Iterator[Fault]:
    seen: set[str] = set()
    for index, variable in enumerate(job.spec.env):
        yield from _variable(f"spec.env[{index}]", variable, seen)


def _variable(path: str, variable: EnvVar, seen: set[str]) -> Iterator[Fault]:
    if not _ENV_NAME.fullmatch(variable.name):
        yield Fault(f"{path}.name", f"{shown(variable.name)} is not a name of an environment variable")
    if variable.name in _OPERATORS_VARIABLES:
        yield Fault(f"{path}.name", f"{variable.name} is set by the operator")
    if variable.name in seen:
        yield Fault(f"{path}.name", f"{variable.name} is given twice")
    if variable.value is not None and variable.value_from is not None:
        yield Fault(path, "give value or valueFrom, not both")
    if variable.value_from is not None:
        yield from pod_faults("EnvVarSource", variable.value_from, f"{path}.valueFrom")
    seen.add(variable.name)


# The rest of the contract's variables are settings that a job may have.
_OPERATORS_VARIABLES = frozenset(v for k, v in vars(contract).items() if k.startswith("ENV_")) - {
    contract.ENV_PEER_TIMEOUT_SECONDS,
    contract.ENV_SYNC_TIMEOUT_SECONDS,
    contract.ENV_CHECKPOINTS_KEEP,
    contract.ENV_CHECKPOINT_SETTLE_SECONDS,
    contract.ENV_UPLOAD_MB_PER_SECOND,
    contract.ENV_MPI_ARGS,
    contract.ENV_MPIRUN,
    contract.ENV_GPUS,
    *contract.S3_SETTINGS,
}


def _tolerations(job: Job) -> Iterator[Fault]:
    for index, toleration in enumerate(job.spec.accelerator.tolerations):
        yield from pod_faults("Toleration", toleration, f"spec.accelerator.tolerations[{index}]")


def _replicas(job: Job) -> Iterator[Fault]:
    for role, replica in job.spec.replica_specs.given().items():
        path = f"spec.replicaSpecs.{role}"
        yield from _resources(path, replica, job.spec.accelerator.resource_name)
        yield from _template(
            f"{path}.template", replica, TRAINER_CONTAINER, "trains", _REPLICAS_POD, _volumes(job)
        )


def _volumes(job: Job) -> list[str]:
    """The volumes that a replica's pod has, whatever its template says."""
    volumes = [WORKSPACE_VOLUME, RUN_VOLUME, CONFIG_VOLUME, SHM_VOLUME]
    return [*volumes, *job.spec.rules.volumes(job.spec)]


def _resources(path: str, replica: ReplicaSpec, accelerator: str) -> Iterator[Fault]:
    for kind, quantities in (("requests", replica.resources.requests), ("limits", replica.resources.limits)):
        for name, quantity in quantities.items():
            where = f"{path}.resources.{kind}[{key_shown(name)}]"
            if not QUANTITY.fullmatch(str(quantity)):
                yield Fault(where, f"{shown(quantity)} is not a quantity such as 2, 500m or 4Gi")
            elif str(quantity).startswith("-"):
                yield Fault(where, f"must not be negative, got {key_shown(quantity)}")
            if name == accelerator and replica.gpus:
                yield Fault(where, f"given by {path}.gpus already; give one of the two")


def _template(
    path: str, replica: ReplicaSpec, container: str, does: str, given: Given, volumes: Iterable[str]
) -> Iterator[Fault]:
    """container: the name of the one that the operator makes, which does what `does` says. given: what the operator's
    pod has where Kubernetes requires something. volumes: the names of those that the operator gives.
    """
    template = replica.template
    for key in (key for key in template if key not in ("metadata", "spec")):
        yield Fault(f"{path}.{key_shown(key)}", "unknown field: a PodTemplateSpec has metadata and spec")
    for key in ("metadata", "spec"):
        # null would remove what the operator has there, and not only what the template added.
        if not isinstance(template.get(key, {}), dict):
            yield Fault(f"{path}.{key}", f"must be an object, got {shown(template[key])}")
    metadata, spec = _object(template.get("metadata")), _object(template.get("spec"))
    for key in (key for key in metadata if key not in ("labels", "annotations")):
        yield Fault(f"{path}.metadata.{key_shown(key)}", "only labels and annotations can be given")
    for kind in ("labels", "annotations"):
        yield from _template_map(f"{path}.metadata.{kind}", metadata.get(kind, {}))
    for key, why in _SET_BY_OPERATOR.items():
        if key in spec and not (key == "restartPolicy" and spec[key] == "Never"):
            yield Fault(f"{path}.spec.{key}", f"can't be set: {why}")
    called = f"the container that {does} is called {container}"
    for fault in pod_faults("PodSpec", spec, f"{path}.spec", given):
        nameless = fault.message == "required" and _NAMELESS.fullmatch(fault.field.removeprefix(path))
        yield replace(fault, message=f"required ({called})") if nameless else fault
    yield from _names(f"{path}.spec", spec, called)
    if isinstance(spec.get("volumes", []), list):
        own = (volume.get("name") for volume in _objects(spec.get("volumes")))
        yield from _mounts(f"{path}.spec", spec, {*volumes, *(name for name in own if isinstance(name, str))})
    for each in _containers(replica):
        yield from _container(f"{path}.spec.containers[{_called(each)}]", each, container, called)
    for each in _objects(spec.get("initContainers")):
        if not each.get("image"):
            yield Fault(f"{path}.spec.initContainers[{_called(each)}].image", "required")


def _template_map(path: str, entries: Any) -> Iterator[Fault]:
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


def _names(path: str, spec: dict[str, Any], called: str) -> Iterator[Fault]:
    """What is wrong with the names of containers and volumes, by which templates are merged over the operator's."""
    for lists in (("containers", "initContainers"), ("volumes",)):
        seen: set[str] = set()
        for key in lists:
            if key in spec and spec[key] is None:
                yield Fault(f"{path}.{key}", "must be a list of objects, got None")
            for index, entry in enumerate(_list_of(spec.get(key))):
                name = _object(entry).get("name")
                where = f"{path}.{key}[{index}].name"
                if name == "":
                    yield Fault(where, f"required ({called})" if key == "containers" else "required")
                if key == "volumes" and name in RESERVED_VOLUMES:
                    yield Fault(where, f"{name} belongs to the operator")
                if isinstance(name, str) and name in seen:
                    yield Fault(where, f"{shown(name)} is given twice")
                if isinstance(name, str) and name:
                    seen.add(name)


def _mounts(path: str, spec: dict[str, Any], volumes: set[str]) -> Iterator[Fault]:
    for kind in ("containers", "initContainers"):
        for container in _objects(spec.get(kind)):
            for key in ("volumeMounts", "volumeDevices"):
                for index, mount in enumerate(_list_of(container.get(key))):
                    name = _object(mount).get("name")
                    if isinstance(name, str) and name not in volumes:
                        yield Fault(
                            f"{path}.{kind}[{_called(container)}].{key}[{index}].name",
                            f"the pod has no volume {shown(name)}; give one in {path}.volumes",
                        )


def _container(path: str, container: dict[str, Any], operators: str, called: str) -> Iterator[Fault]:
    """operators: the name of the container that the operator makes."""
    for key in ("env", "volumeMounts", "ports", "command", "args"):
        # null would remove what the operator has there.
        if key in container and container[key] is None:
            of = "strings" if key in ("command", "args") else "objects"
            yield Fault(f"{path}.{key}", f"must be a list of {of}, got None")
    name, image = container.get("name"), container.get("image", "")
    if name != operators and name and not image:
        yield Fault(f"{path}.image", f"required: {called}; another container needs an image")
    elif name == operators and "image" in container and not image:
        yield Fault(f"{path}.image", f"must be an image reference, got {shown(image)}")
    for mount in _objects(container.get("volumeMounts")):
        place = mount.get("mountPath")
        if isinstance(place, str) and posixpath.normpath(place) in RESERVED_MOUNTS:
            yield Fault(f"{path}.volumeMounts", f"{key_shown(place)} belongs to the operator")
    for variable in _objects(container.get("env")):
        own = variable.get("name")
        if isinstance(own, str) and own in _OPERATORS_VARIABLES:
            yield Fault(f"{path}.env", f"{own} is set by the operator")
    if name != TRAINER_CONTAINER:
        return
    for key in ("terminationMessagePath", "terminationMessagePolicy"):
        if key in container:
            yield Fault(f"{path}.{key}", "can't be set: the reason of a failure is read from it")
    for key in ("restartPolicy", "restartPolicyRules"):
        # The kubelet would run the program again in a pod that the operator counts as failed, or as done.
        if key in container:
            yield Fault(f"{path}.{key}", f"can't be set: {_SET_BY_OPERATOR['restartPolicy']}")


def _called(container: dict[str, Any]) -> str:
    """How the path of a field calls a container."""
    return key_shown(container.get("name"))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _containers(replica: ReplicaSpec) -> list[dict[str, Any]]:
    return _objects(_object(replica.template.get("spec")).get("containers"))


def _mpijob(job: Job) -> Iterator[Fault]:
    """What mpi-operator would refuse, or could not make pods of, and tell only in an event of its MPIJob."""
    if not job.spec.by_mpi_operator:
        return
    gang = job.spec.run_policy.scheduling_policy.gang
    if gang is not Gang.NONE:
        yield Fault(
            "spec.runPolicy.schedulingPolicy.gang",
            f"must be None with horovod.launcher: MPIJob, got {gang}: mpi-operator makes gangs (--gang-scheduling), "
            "and Kueue queues the MPIJob by the job's label kueue.x-k8s.io/queue-name",
        )
    for role, replica in job.spec.replica_specs.given().items():
        path = f"spec.replicaSpecs.{role}.template.spec"
        for index, volume in enumerate(_objects(_object(replica.template.get("spec")).get("volumes"))):
            if volume.get("name") in VOLUMES:
                yield Fault(
                    f"{path}.volumes[{index}].name",
                    f"{volume['name']} belongs to mpi-operator (horovod.launcher: MPIJob); use another name",
                )
        for container in _containers(replica):
            for mount in _objects(container.get("volumeMounts")):
                place = posixpath.normpath(str(mount.get("mountPath", "")))
                if container.get("name") == TRAINER_CONTAINER and place in MOUNTS:
                    yield Fault(
                        f"{path}.containers[{TRAINER_CONTAINER}].volumeMounts",
                        f"{place} belongs to mpi-operator (horovod.launcher: MPIJob); use another path",
                    )


def _artifacts(job: Job) -> Iterator[Fault]:
    artifacts = job.spec.artifacts
    if artifacts is None:
        return
    if artifacts.resume == Resume.FROM_URI and artifacts.resume_uri is None:
        yield Fault("spec.artifacts.resumeUri", "required with resume: FromURI")
    if artifacts.resume != Resume.FROM_URI and artifacts.resume_uri is not None:
        yield Fault("spec.artifacts.resumeUri", f"needs resume: FromURI, got {artifacts.resume}")


def _tensorboard(job: Job) -> Iterator[Fault]:
    board = job.spec.tensorboard
    if board.enabled and job.spec.artifacts is None:
        yield Fault(
            "spec.tensorboard.enabled", "needs spec.artifacts: it shows the event files in the bucket"
        )
    if board.image is not None:
        yield from _image("spec.tensorboard.image", board.image)
    as_replica = ReplicaSpec(resources=board.resources, template=board.template)
    yield from _resources("spec.tensorboard", as_replica, job.spec.accelerator.resource_name)
    yield from _template(
        "spec.tensorboard.template",
        as_replica,
        TENSORBOARD_CONTAINER,
        "serves",
        _TENSORBOARDS_POD,
        ("files", "tmp"),
    )


def _run_policy(job: Job) -> Iterator[Fault]:
    policy = job.spec.run_policy
    if policy.stall_policy is StallPolicy.RESTART and policy.stall_timeout_seconds is None:
        yield Fault("spec.runPolicy.stallPolicy", "Restart needs stallTimeoutSeconds")

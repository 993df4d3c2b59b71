"""What the schema can't say of a spec: rules across fields, and what a template may not touch."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Any

from dtj.api.identity import GROUP, LABEL_MANAGED_BY
from dtj.api.job import Fault, Job
from dtj.api.mpijob import MOUNTS, VOLUMES
from dtj.api.names import LABEL_LENGTH, is_dns_label, pod_name, tensorboard_name
from dtj.api.scheduling import Gang
from dtj.api.scheduling_rules import scheduling_faults
from dtj.api.spec import EnvVar, Horovod, HorovodLauncher, ReplicaSpec, Resume, StallPolicy, Strategy
from dtj_trainer import contract

TRAINER_CONTAINER = "trainer"
TENSORBOARD_CONTAINER = "tensorboard"
WORKSPACE_VOLUME = "dtj-workspace"
RUN_VOLUME = "dtj-run"
CONFIG_VOLUME = "dtj-config"
SSH_VOLUME = "dtj-ssh"
SHM_VOLUME = "dtj-shm"
RESERVED_VOLUMES = (WORKSPACE_VOLUME, RUN_VOLUME, CONFIG_VOLUME, SSH_VOLUME)
ROLES_OF = {
    Strategy.HOROVOD: ("launcher", "worker"),
    Strategy.PARAMETER_SERVER: ("chief", "worker", "ps", "evaluator"),
}
RESERVED_MOUNTS = (str(contract.ROOT / contract.RUN), str(contract.CONFIG_DIR), str(contract.SSH_DIR))

# The reference grammar of the distribution project, without its length rules.
_IMAGE = re.compile(
    r"([a-zA-Z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
_ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_QUANTITY = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
_SET_BY_OPERATOR = {
    "hostname": "peers find the pod by it",
    "subdomain": "peers find the pod by it",
    "restartPolicy": "the operator restarts pods itself",
    "hostNetwork": "two replicas on one node would want the same ports",
    "nodeName": "the scheduler chooses the node; use nodeSelector or affinity",
}


def faults(job: Job) -> list[Fault]:
    """Every fault of a job; an empty list means that it can be planned."""
    return [
        *_name(job),
        *_roles(job),
        *_program(job),
        *_environment(job),
        *_replicas(job),
        *_mpijob(job),
        *_artifacts(job),
        *_tensorboard(job),
        *_run_policy(job),
        *scheduling_faults(job),
    ]


def _name(job: Job) -> Iterator[Fault]:
    if not is_dns_label(job.name):
        yield Fault(
            "metadata.name",
            f"{job.name!r} is not a DNS label: lower-case letters, digits and '-', beginning with a letter "
            "and ending with a letter or digit",
        )
    sizes = dict.fromkeys(ROLES_OF[job.spec.strategy], 1) | {
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
            f"too long: the {names[longest]} {longest} would have {len(longest)} characters of {LABEL_LENGTH}; "
            f"use a name of at most {len(job.name) - spare}",
        )


def _roles(job: Job) -> Iterator[Fault]:
    strategy, given = job.spec.strategy, job.spec.replica_specs.given()
    roles = ROLES_OF[strategy]
    for role in given.keys() - roles:
        yield Fault(
            f"spec.replicaSpecs.{role}", f"strategy {strategy} has no {role}: its roles are {_list(roles)}"
        )
    for role in ("worker", "ps"):
        if role in roles and role not in given:
            yield Fault(f"spec.replicaSpecs.{role}", f"required by strategy {strategy}")
    for own, block, value in (
        (Strategy.HOROVOD, "horovod", job.spec.horovod),
        (Strategy.PARAMETER_SERVER, "parameterServer", job.spec.parameter_server),
    ):
        if strategy is not own and value is not None:
            yield Fault(
                f"spec.{block}", f"belongs to strategy {own}, and this job's is {strategy}: remove it"
            )
    launcher = given.get("launcher")
    if launcher is not None and strategy is Strategy.HOROVOD:
        if launcher.replicas != 1:
            yield Fault("spec.replicaSpecs.launcher.replicas", f"must be 1, got {launcher.replicas}")
        if launcher.gpus:
            yield Fault(
                "spec.replicaSpecs.launcher.gpus", "must be 0: the launcher trains nothing; give workers gpus"
            )


def _list(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _program(job: Job) -> Iterator[Fault]:
    yield from _image("spec.image", job.spec.image)
    if not job.spec.command and not job.spec.args and not _each_has_a_command(job):
        yield Fault("spec.command", "required: the program of each replica, e.g. [python, train.py]")


def _image(path: str, image: str) -> Iterator[Fault]:
    if not _IMAGE.fullmatch(image):
        yield Fault(path, f"{image!r} is not an image reference such as repository/name:tag")


def _each_has_a_command(job: Job) -> bool:
    """Whether the templates say all that is to be run: the launcher's, or that of every replica."""
    given = job.spec.replica_specs.given()
    if job.spec.strategy is Strategy.HOROVOD:
        return bool(own_program(given.get("launcher"))[0])
    return all(own_program(given.get(role))[0] for role in {"chief", *given})


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
        yield Fault(f"{path}.name", f"{variable.name!r} is not a name of an environment variable")
    if variable.name in _OPERATORS_VARIABLES:
        yield Fault(f"{path}.name", f"{variable.name} is set by the operator")
    if variable.name in seen:
        yield Fault(f"{path}.name", f"{variable.name} is given twice")
    if variable.value is not None and variable.value_from is not None:
        yield Fault(path, "give value or valueFrom, not both")
    seen.add(variable.name)


# The rest of the contract's variables are settings that a job may have.
_OPERATORS_VARIABLES = frozenset(v for k, v in vars(contract).items() if k.startswith("ENV_")) - {
    contract.ENV_PEER_TIMEOUT_SECONDS,
    contract.ENV_SYNC_TIMEOUT_SECONDS,
    contract.ENV_CHECKPOINTS_KEEP,
    contract.ENV_CHECKPOINT_SETTLE_SECONDS,
    contract.ENV_MPI_ARGS,
}


def _replicas(job: Job) -> Iterator[Fault]:
    for role, replica in job.spec.replica_specs.given().items():
        path = f"spec.replicaSpecs.{role}"
        yield from _resources(path, replica, job.spec.accelerator.resource_name)
        yield from _template(f"{path}.template", replica, TRAINER_CONTAINER, "trains")


def _resources(path: str, replica: ReplicaSpec, accelerator: str) -> Iterator[Fault]:
    for kind, quantities in (("requests", replica.resources.requests), ("limits", replica.resources.limits)):
        for name, quantity in quantities.items():
            where = f"{path}.resources.{kind}[{name}]"
            if not _QUANTITY.fullmatch(str(quantity)):
                yield Fault(where, f"{quantity!r} is not a quantity such as 2, 500m or 4Gi")
            elif str(quantity).startswith("-"):
                yield Fault(where, f"must not be negative, got {quantity}")
            if name == accelerator and replica.gpus:
                yield Fault(where, f"given by {path}.gpus already; give one of the two")


def _template(path: str, replica: ReplicaSpec, container: str, does: str) -> Iterator[Fault]:
    template = replica.template
    for key in template.keys() - {"metadata", "spec"}:
        yield Fault(f"{path}.{key}", "unknown field: a PodTemplateSpec has metadata and spec")
    for key in ("metadata", "spec"):
        # null would remove what the operator has there, and not only what the template added.
        if not isinstance(template.get(key, {}), dict):
            yield Fault(f"{path}.{key}", f"must be an object, got {template[key]!r}")
    metadata, spec = _object(template.get("metadata")), _object(template.get("spec"))
    for key in metadata.keys() - {"labels", "annotations"}:
        yield Fault(f"{path}.metadata.{key}", "only labels and annotations can be given")
    for kind in ("labels", "annotations"):
        yield from _template_map(f"{path}.metadata.{kind}", metadata.get(kind, {}))
    for key, why in _SET_BY_OPERATOR.items():
        if key in spec and not (key == "restartPolicy" and spec[key] == "Never"):
            yield Fault(f"{path}.spec.{key}", f"can't be set: {why}")
    yield from _template_lists(
        f"{path}.spec", replica, spec, f"the container that {does} is called {container}"
    )


def _template_map(path: str, entries: Any) -> Iterator[Fault]:
    if not isinstance(entries, dict):
        yield Fault(path, f"must be an object, got {entries!r}")
        return
    for key, value in entries.items():
        if str(key).split("/", 1)[0] == GROUP:
            yield Fault(f"{path}[{key}]", f"names beginning with {GROUP}/ belong to the operator")
        elif key == LABEL_MANAGED_BY:
            yield Fault(f"{path}[{key}]", "can't be set: the operator finds its pods by it")
        elif not isinstance(value, str):
            yield Fault(f"{path}[{key}]", f"must be a string, got {value!r}")


def _template_lists(path: str, replica: ReplicaSpec, spec: dict[str, Any], called: str) -> Iterator[Fault]:
    for key in ("containers", "initContainers", "volumes"):
        entries = spec.get(key, [])
        if not _is_list_of_objects(entries):
            yield Fault(f"{path}.{key}", f"must be a list of objects, got {entries!r}")
            continue
        for index, entry in enumerate(entries):
            if not entry.get("name"):
                hint = f" ({called})" if key == "containers" else ""
                yield Fault(f"{path}.{key}[{index}].name", f"required{hint}")
            if key == "volumes" and entry.get("name") in RESERVED_VOLUMES:
                yield Fault(f"{path}.volumes[{index}].name", f"{entry['name']} belongs to the operator")
    for container in _containers(replica):
        yield from _container(f"{path}.containers[{container.get('name')}]", container)


def _container(path: str, container: dict[str, Any]) -> Iterator[Fault]:
    for key in ("env", "volumeMounts", "ports"):
        if not _is_list_of_objects(container.get(key, [])):
            yield Fault(f"{path}.{key}", f"must be a list of objects, got {container[key]!r}")
    for key in ("command", "args"):
        words = container.get(key, [])
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            yield Fault(f"{path}.{key}", f"must be a list of strings, got {words!r}")
    for mount in _objects(container.get("volumeMounts")):
        if posixpath.normpath(str(mount.get("mountPath"))) in RESERVED_MOUNTS:
            yield Fault(f"{path}.volumeMounts", f"{mount['mountPath']} belongs to the operator")
    for variable in _objects(container.get("env")):
        if str(variable.get("name")) in _OPERATORS_VARIABLES:
            yield Fault(f"{path}.env", f"{variable['name']} is set by the operator")
    for key in ("terminationMessagePath", "terminationMessagePolicy"):
        if key in container and container.get("name") == TRAINER_CONTAINER:
            yield Fault(f"{path}.{key}", "can't be set: the reason of a failure is read from it")
    for key in ("restartPolicy", "restartPolicyRules"):
        # The kubelet would run the program again in a pod that the operator counts as failed, or as done.
        if key in container and container.get("name") == TRAINER_CONTAINER:
            yield Fault(f"{path}.{key}", f"can't be set: {_SET_BY_OPERATOR['restartPolicy']}")


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)


def _containers(replica: ReplicaSpec) -> list[dict[str, Any]]:
    return _objects(_object(replica.template.get("spec")).get("containers"))


def _mpijob(job: Job) -> Iterator[Fault]:
    """What mpi-operator would refuse, or could not make pods of, and tell only in an event of its MPIJob."""
    if (job.spec.horovod or Horovod()).launcher is not HorovodLauncher.MPI_JOB:
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
                place = posixpath.normpath(str(mount.get("mountPath")))
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
    yield from _template("spec.tensorboard.template", as_replica, TENSORBOARD_CONTAINER, "serves")


def _run_policy(job: Job) -> Iterator[Fault]:
    policy = job.spec.run_policy
    if policy.stall_policy is StallPolicy.RESTART and policy.stall_timeout_seconds is None:
        yield Fault("spec.runPolicy.stallPolicy", "Restart needs stallTimeoutSeconds")

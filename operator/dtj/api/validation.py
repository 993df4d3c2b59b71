"""Rules of a spec that the schema can't express: rules across fields. Pod templates have rules of their own."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace

from dtj.api.code import code_faults
from dtj.api.data_rules import cache_of, data_faults
from dtj.api.job import Fault, Job
from dtj.api.mpijob import LONGEST_QUEUE, MOUNTS, QUEUE_ANNOTATIONS, VOLUMES
from dtj.api.names import LABEL_LENGTH, is_dns_label, is_namespace, pod_name, tensorboard_name
from dtj.api.pod_schema import QUANTITY, pod_faults
from dtj.api.pod_template import (
    CODE_VOLUME,
    CONFIG_VOLUME,
    DATA_CACHE_VOLUME,
    PACKAGES_VOLUME,
    RESERVED_VARIABLES,
    RUN_VOLUME,
    SHM_VOLUME,
    TRAINER_CONTAINER,
    WORKSPACE_VOLUME,
    objects_of,
    own_program,
    pod_spec,
)
from dtj.api.pod_template_rules import REPLICA_POD, TENSORBOARD_POD, pod_template_faults
from dtj.api.scheduling import Gang
from dtj.api.scheduling_rules import scheduling_faults
from dtj.api.shown import enumerated, key_shown, shown
from dtj.api.spec import EnvVar, JobSpec, ReplicaSpec, Resources, Resume, StallPolicy
from dtj.api.strategies import RULES
from dtj.api.strategy import pods_of
from dtj.api.tracking_rules import tracking_faults

# The reference grammar of the distribution project, without its length rules.
IMAGE_REFERENCE = re.compile(
    r"([a-zA-Z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
VARIABLE_BYTES = 128 * 1024
"""Of one NAME=value of a process's environment with its end: MAX_ARG_STRLEN of Linux."""
CONFIG_BYTES = 1024 * 1024
"""Of the values of a ConfigMap."""
# The start scripts and ssh's settings, which are in it too.
_SCRIPTS_BYTES = 32 * 1024
_ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")


def faults(job: Job) -> list[Fault]:
    """Return every fault of a job. A job without faults can be planned."""
    return [
        *_name(job),
        *_roles(job),
        *_program(job),
        *_environment(job),
        *_tolerations(job),
        *_replicas(job),
        *(Fault(field, message) for field, message in job.rules.faults(job)),
        *_mpijob(job),
        *data_faults(job),
        *(Fault(field, message) for field, message in code_faults(job)),
        *_artifacts(job),
        *tracking_faults(job),
        *_tensorboard(job),
        *_run_policy(job),
        *scheduling_faults(job),
        *_sizes(job),
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
    if not job.spec.own_command and not job.spec.args and not _each_has_a_command(job):
        field, example = ("spec.command", "the program of each replica, e.g. [python, train.py]")
        if job.spec.code is not None:
            field, example = (
                "spec.code.entrypoint",
                "the script in the archive, e.g. train.py, or spec.command",
            )
        yield Fault(field, f"required: {example}")


def _image(path: str, image: str) -> Iterator[Fault]:
    if not IMAGE_REFERENCE.fullmatch(image):
        yield Fault(path, f"{shown(image)} is not an image reference such as repository/name:tag")


def _each_has_a_command(job: Job) -> bool:
    """Return whether the template of every role that runs the job's program has its own command."""
    given, roles = job.spec.replica_specs.given(), job.spec.rules.roles
    return all(own_program(given.get(name))[0] for name, _ in pods_of(job.spec) if roles[name].runs_program)


def _environment(job: Job) -> Iterator[Fault]:
    seen: set[str] = set()
    for index, variable in enumerate(job.spec.env):
        yield from _variable(f"spec.env[{index}]", variable, seen, job.rules.variables)


def _variable(path: str, variable: EnvVar, seen: set[str], others: frozenset[str]) -> Iterator[Fault]:
    """Yield the faults of one variable. others: variables that the job's strategy sets."""
    if not _ENV_NAME.fullmatch(variable.name):
        yield Fault(f"{path}.name", f"{shown(variable.name)} is not a name of an environment variable")
    if variable.name in RESERVED_VARIABLES | others:
        yield Fault(f"{path}.name", f"{variable.name} is set by the operator")
    if variable.name in seen:
        yield Fault(f"{path}.name", f"{variable.name} is given twice")
    if variable.value is not None and variable.value_from is not None:
        yield Fault(path, "give value or valueFrom, not both")
    if variable.value_from is not None:
        yield from pod_faults("EnvVarSource", variable.value_from, f"{path}.valueFrom")
    seen.add(variable.name)


def _tolerations(job: Job) -> Iterator[Fault]:
    for index, toleration in enumerate(job.spec.accelerator.tolerations):
        yield from pod_faults("Toleration", toleration, f"spec.accelerator.tolerations[{index}]")


def _replicas(job: Job) -> Iterator[Fault]:
    volumes: tuple[str, ...] = (WORKSPACE_VOLUME, RUN_VOLUME, CONFIG_VOLUME, SHM_VOLUME)
    if cache_of(job) is not None:
        volumes += (DATA_CACHE_VOLUME,)
    if job.spec.code is not None:
        volumes += (CODE_VOLUME, PACKAGES_VOLUME)
    rules = job.spec.rules
    pod = replace(REPLICA_POD, volumes=(*volumes, *rules.volumes(job.spec)), variables=rules.variables)
    for role, replica in job.spec.replica_specs.given().items():
        path = f"spec.replicaSpecs.{role}"
        yield from _resources(path, replica.resources, job.spec.accelerator.resource_name, replica.gpus)
        yield from pod_template_faults(f"{path}.template", replica.template, pod)


def _resources(path: str, resources: Resources, accelerator: str, gpus: int = 0) -> Iterator[Fault]:
    for kind, quantities in (("requests", resources.requests), ("limits", resources.limits)):
        for name, quantity in quantities.items():
            where = f"{path}.resources.{kind}[{key_shown(name)}]"
            if not QUANTITY.fullmatch(str(quantity)):
                yield Fault(where, f"{shown(quantity)} is not a quantity such as 2, 500m or 4Gi")
            elif str(quantity).startswith("-"):
                yield Fault(where, f"must not be negative, got {key_shown(quantity)}")
            if name == accelerator and gpus:
                yield Fault(where, f"given by {path}.gpus already; give one of the two")


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
    yield from _resources("spec.tensorboard", board.resources, job.spec.accelerator.resource_name)
    yield from pod_template_faults("spec.tensorboard.template", board.template, TENSORBOARD_POD)


def _run_policy(job: Job) -> Iterator[Fault]:
    policy = job.spec.run_policy
    if policy.stall_policy is StallPolicy.RESTART and policy.stall_timeout_seconds is None:
        yield Fault("spec.runPolicy.stallPolicy", "Restart needs stallTimeoutSeconds")


def _sizes(job: Job) -> Iterator[Fault]:
    """Yield why a job of this size can never run: no process takes the variable, or no object holds the list."""
    replicas = job.spec.replica_specs.given()
    largest = max(replicas, key=lambda role: replicas[role].replicas, default=None)
    if largest is None:
        return
    where = f"spec.replicaSpecs.{largest}.replicas"
    rules = job.spec.rules
    listed = rules.peer_list_bytes(job)
    if rules.peer_list_variable is not None and listed > VARIABLE_BYTES:
        yield Fault(
            where,
            f"too many: {rules.peer_list_variable}, which names every replica, would have {listed:,} bytes, and a "
            f"process takes a variable of {VARIABLE_BYTES:,} bytes at most; ask for fewer replicas, or use shorter "
            "names",
        )
        return
    size = listed + len(json.dumps(job.spec.model_dump(by_alias=True, exclude_unset=True)))
    if size + _SCRIPTS_BYTES > CONFIG_BYTES:
        yield Fault(
            where if listed * 2 > size else "spec",
            f"too large: the job's ConfigMap, which names every replica and holds the spec, would have "
            f"{size + _SCRIPTS_BYTES:,} bytes, and may have {CONFIG_BYTES:,}",
        )


def _mpijob(job: Job) -> Iterator[Fault]:
    """Yield what mpi-operator reports only in an event of its MPIJob; nothing for a job without mpi-operator."""
    if not job.spec.by_mpi_operator:
        return
    gang = job.spec.run_policy.scheduling_policy.gang
    if gang is not Gang.NONE:
        yield Fault(
            "spec.runPolicy.schedulingPolicy.gang",
            f"must be None with horovod.launcher: MPIJob, got {gang}: mpi-operator makes gangs (--gang-scheduling), "
            "and Kueue queues the MPIJob by the job's label kueue.x-k8s.io/queue-name",
        )
    for name in QUEUE_ANNOTATIONS:
        if len(job.annotations.get(name, "")) > LONGEST_QUEUE:
            yield Fault(
                f"metadata.annotations[{name}]",
                f"must be the name of a queue, which has {LONGEST_QUEUE} characters at most",
                ("metadata", "annotations", name),
            )
    for role, replica in job.spec.replica_specs.given().items():
        yield from _mpijob_template(f"spec.replicaSpecs.{role}.template.spec", replica)


def _mpijob_template(path: str, replica: ReplicaSpec) -> Iterator[Fault]:
    spec = pod_spec(replica)
    for index, volume in enumerate(objects_of(spec.get("volumes"))):
        if volume.get("name") in VOLUMES:
            yield Fault(
                f"{path}.volumes[{index}].name",
                f"{volume['name']} belongs to mpi-operator (horovod.launcher: MPIJob); use another name",
            )
    for container in objects_of(spec.get("containers")):
        for mount in objects_of(container.get("volumeMounts")):
            mount_path = posixpath.normpath(str(mount.get("mountPath", "")))
            if container.get("name") == TRAINER_CONTAINER and mount_path in MOUNTS:
                yield Fault(
                    f"{path}.containers[{TRAINER_CONTAINER}].volumeMounts",
                    f"{mount_path} belongs to mpi-operator (horovod.launcher: MPIJob); use another path",
                )

"""Rules of a spec that the schema can't express: rules across fields. Pod templates have rules of their own."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from urllib.parse import urlsplit

from dtj.api.job import Fault, Job
from dtj.api.mpijob import LONGEST_QUEUE, MOUNTS, QUEUE_ANNOTATIONS, VOLUMES
from dtj.api.names import LABEL_LENGTH, is_dns_label, is_namespace, pod_name, tensorboard_name
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
from dtj.api.pod_template_rules import QUANTITY, REPLICA_POD, TENSORBOARD_POD, pod_faults, pod_template_faults
from dtj.api.quantities import amount
from dtj.api.scheduling_rules import scheduling_faults
from dtj.api.shown import enumerated, key_shown, shown
from dtj.api.spec import (
    DataCache,
    EnvVar,
    Gang,
    JobSpec,
    ReplicaSpec,
    Resources,
    RestartStrategy,
    Resume,
    StallPolicy,
)
from dtj.api.strategies import RULES

# Check `spec.data`: the cache of the data set, and whether the administrator allows its folder on the nodes.

LEAST_BYTES = 1024**3
"""The smallest cache. Several ranks may each write some blocks before one rank removes old blocks."""
MOST_BYTES = 1024**5
_LONGEST_SIZE = 32
_CACHE = "spec.data.cache"
_VOLUMES = ("persistentVolumeClaim", "emptyDir", "hostPath")
_PATH = f"{_CACHE}.hostPath.path"


def cache_bytes(cache: DataCache) -> int:
    """The bytes that a cache without faults may hold."""
    return int(amount(cache.size))


def data_faults(job: Job) -> Iterator[Fault]:
    """Yield what is wrong with a job's `spec.data`."""
    cache = job.cache
    if cache is None:
        return
    volumes = (cache.persistent_volume_claim, cache.empty_dir, cache.host_path)
    given = [name for name, volume in zip(_VOLUMES, volumes, strict=True) if volume is not None]
    if len(given) != 1:
        got = enumerated(given, "and") if given else "none"
        yield Fault(_CACHE, f"give one of {enumerated(_VOLUMES, 'and')}, got {got}")
    yield from _size(cache)


def _data_notes(job: Job) -> Iterator[str]:
    """Yield what a job without faults needs of its cluster for `spec.data`."""
    cache = job.cache
    if cache is not None and cache.host_path is not None:
        yield (
            f"data.cache.hostPath: the operator refuses the job unless its dataCache.hostPathPrefixes allow "
            f"{cache.host_path.path}; Pod Security levels baseline and restricted forbid the pods"
        )


def _size(cache: DataCache) -> Iterator[Fault]:
    path = f"{_CACHE}.size"
    size = _bytes(cache.size)
    if size is None:
        yield Fault(path, f"{shown(cache.size)} is not a quantity of bytes such as 100Gi")
    elif not LEAST_BYTES <= size <= MOST_BYTES:
        yield Fault(path, f"must be from 1Gi to 1Pi, got {key_shown(cache.size)}")


def _bytes(size: int | str) -> Decimal | None:
    """Return the number of bytes of a quantity; None if the text is not a quantity."""
    if isinstance(size, int):
        return Decimal(size)
    if len(size) > _LONGEST_SIZE or not QUANTITY.fullmatch(size):
        return None
    try:
        return amount(size)
    except ArithmeticError:  # The exponent is too large for a Decimal.
        return None


def host_path_faults(job: Job, allowed: Sequence[str]) -> Iterator[Fault]:
    """Yield why an operator refuses a cache in a folder of the node.

    allowed: folders of the nodes in which jobs may have a cache, or below which; empty: no folder is allowed.
    """
    cache = job.cache
    if cache is None or cache.host_path is None:
        return
    path = cache.host_path.path
    if any(f"{path}/".startswith(f"{prefix.rstrip('/')}/") for prefix in allowed):
        return
    if allowed:
        yield Fault(_PATH, f"must be {enumerated(allowed, 'or')}, or a folder below, got {shown(path)}")
    else:
        yield Fault(
            _PATH,
            "this cluster's operator allows no folder of a node: use persistentVolumeClaim or emptyDir, or ask "
            "who runs the cluster to allow the folder (dataCache.hostPathPrefixes of the chart)",
        )


# Check `spec.tracking`: the URL of the MLflow server has no password, and no setting is given twice.

MLFLOW_URI, MLFLOW_NAME, MLFLOW_ID = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"
_MLFLOW = "spec.tracking.mlflow"


def tracking_faults(job: Job) -> Iterator[Fault]:
    """Yield what is wrong with a job's `spec.tracking`."""
    mlflow = job.mlflow
    if mlflow is None:
        return
    if "@" in urlsplit(mlflow.uri).netloc:
        yield Fault(
            f"{_MLFLOW}.uri",
            "must not contain a user or a password: put MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD into "
            "the Secret of secretName",
        )
    own = {variable.name for variable in job.spec.env}
    if MLFLOW_URI in own:
        yield Fault(f"{_MLFLOW}.uri", f"given by {MLFLOW_URI} in spec.env already; give one of the two")
    if mlflow.experiment is not None:
        for name in sorted(own & {MLFLOW_NAME, MLFLOW_ID}):
            yield Fault(f"{_MLFLOW}.experiment", f"given by {name} in spec.env already; give one of the two")


# The grammar of image references from the CNCF project distribution, without its limits of length.
IMAGE_REFERENCE = re.compile(
    r"([a-zA-Z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
VARIABLE_BYTES = 128 * 1024
"""The largest size of one environment variable, NAME=value with the final NUL: Linux's MAX_ARG_STRLEN."""
CONFIG_BYTES = 1024 * 1024
"""The largest total size of the values of a ConfigMap."""
# The bytes that start scripts and ssh's settings take in the job's ConfigMap, at most.
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
        *_strategy(job),
        *_mpijob(job),
        *data_faults(job),
        *_code(job),
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
    sizes = dict.fromkeys(job.rules.roles, 1) | {
        role: replica.replicas for role, replica in job.given.items()
    }
    names = {pod_name(job.name, role, max(size, 1) - 1): "pod" for role, size in sizes.items()}
    if job.spec.tensorboard.enabled:
        names[tensorboard_name(job.name)] = "Service"
    longest = max(names, key=len)
    if len(longest) > LABEL_LENGTH:
        spare = len(longest) - LABEL_LENGTH
        yield Fault(
            "metadata.name",
            f"too long: the name of the {names[longest]} {key_shown(longest)} would have {len(longest)} characters, "
            f"and at most {LABEL_LENGTH} are allowed; use a job name of at most {len(job.name) - spare}",
        )


def _roles(job: Job) -> Iterator[Fault]:
    strategy, given = job.spec.strategy, job.given
    roles = job.rules.roles
    for name in given.keys() - roles:
        which = "its only role is" if len(roles) == 1 else "its roles are"
        yield Fault(
            f"spec.replicaSpecs.{name}",
            f"strategy {strategy} has no {name}: {which} {enumerated(roles, 'and')}",
        )
    for name in job.rules.named["required"]:
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


def _strategy(job: Job) -> Iterator[Fault]:
    if job.rules.faults is not None:
        for field, message in job.rules.faults(job.spec):
            yield Fault(field, message)


def _program(job: Job) -> Iterator[Fault]:
    yield from _image("spec.image", job.spec.image)
    if not job.own_command and not job.spec.args and not _each_has_a_command(job):
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
    given, roles = job.given, job.rules.roles
    return all(own_program(given.get(name))[0] for name, _ in job.pods.items() if roles[name].runs_program)


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
    if job.cache is not None:
        volumes += (DATA_CACHE_VOLUME,)
    if job.spec.code is not None:
        volumes += (CODE_VOLUME, PACKAGES_VOLUME)
    rules = job.rules
    volumes += VOLUMES if job.by_mpi_operator else rules.volumes
    pod = replace(REPLICA_POD, volumes=volumes, variables=rules.variables)
    for role, replica in job.given.items():
        path = f"spec.replicaSpecs.{role}"
        yield from _resources(path, replica.resources, job.spec.accelerator.resource_name, replica.gpus)
        if replica.template:
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
            "spec.tensorboard.enabled",
            "needs spec.artifacts: TensorBoard shows the event files in the bucket",
        )
    if board.image is not None:
        yield from _image("spec.tensorboard.image", board.image)
    yield from _resources("spec.tensorboard", board.resources, job.spec.accelerator.resource_name)
    if board.template:
        yield from pod_template_faults("spec.tensorboard.template", board.template, TENSORBOARD_POD)


def _run_policy(job: Job) -> Iterator[Fault]:
    policy = job.spec.run_policy
    if policy.stall_policy is StallPolicy.RESTART and policy.stall_timeout_seconds is None:
        yield Fault("spec.runPolicy.stallPolicy", "Restart needs stallTimeoutSeconds")


def peer_list_bytes(job: Job) -> int:
    """Size of the list of pods that the strategy of a job writes into the job's ConfigMap."""
    hosts = {role: f"{pod_name(job.name, role, 0)}.{job.domain}" for role in job.pods}
    return job.rules.peer_list_bytes(hosts, job.pods, job.procs)


def _sizes(job: Job) -> Iterator[Fault]:
    """Yield a fault if the list of replicas is too large for an environment variable, or for the job's ConfigMap."""
    replicas = job.given
    largest = max(replicas, key=lambda role: replicas[role].replicas, default=None)
    if largest is None:
        return
    where = f"spec.replicaSpecs.{largest}.replicas"
    rules = job.rules
    listed = peer_list_bytes(job)
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
            f"{size + _SCRIPTS_BYTES:,} bytes, and the maximum is {CONFIG_BYTES:,}",
        )


def _mpijob(job: Job) -> Iterator[Fault]:
    """Yield the faults of a job whose pods mpi-operator makes. mpi-operator would report them only as events."""
    if not job.by_mpi_operator:
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
    for role, replica in job.given.items():
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


def _code(job: Job) -> Iterator[Fault]:
    code = job.spec.code
    if code is None:
        return
    for path, archive in (("spec.code", code), ("spec.code.packages", code.packages)):
        if archive is not None and (archive.config_map is None) == (archive.uri is None):
            got = "both" if archive.uri else "neither"
            yield Fault(path, f"give one of configMap and uri, got {got}")
    if code.entrypoint is not None:
        parts = code.entrypoint.split("/")
        if code.entrypoint.startswith(("/", "-")) or ".." in parts or "\0" in code.entrypoint:
            yield Fault(
                "spec.code.entrypoint",
                f"{shown(code.entrypoint)} is not the path of a script in the archive, e.g. train.py",
            )


def notes(job: Job) -> Iterator[str]:
    """Yield what a job without faults needs of its cluster, and which of its fields have no effect."""
    yield from _data_notes(job)
    if job.spec.code is not None:
        yield f"spec.code: the image {job.spec.image} needs dtj_trainer, which dtj's own images have"
    in_place = job.run_policy.restart_strategy is RestartStrategy.IN_PLACE_RESTART
    if in_place and not job.restarts_in_place:
        yield (
            "runPolicy.restartStrategy: InPlaceRestart has no effect on this job, whose pods are recreated after "
            "each failure: only TorchDistributed jobs restart in place, and Horovod jobs whose launcher is Native "
            "and whose templates have no command"
        )

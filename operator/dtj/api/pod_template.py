"""Names of the operator's pods that pod templates refer to; functions that read a template without checking it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dtj.api.spec import JobSpec, ReplicaSpec
from dtj_trainer import contract

TRAINER_CONTAINER = "trainer"
TENSORBOARD_CONTAINER = "tensorboard"
WORKSPACE_VOLUME = "dtj-workspace"
RUN_VOLUME = "dtj-run"
CONFIG_VOLUME = "dtj-config"
SHM_VOLUME = "dtj-shm"
DATA_CACHE_VOLUME = "dtj-data-cache"
CODE_VOLUME = "dtj-code"
PACKAGES_VOLUME = "dtj-packages"
SSH_VOLUME = "dtj-ssh"
RESERVED_VOLUMES = (
    WORKSPACE_VOLUME,
    RUN_VOLUME,
    CONFIG_VOLUME,
    SSH_VOLUME,
    DATA_CACHE_VOLUME,
    CODE_VOLUME,
    PACKAGES_VOLUME,
)
RESERVED_MOUNTS = (
    str(contract.ROOT / contract.RUN),
    str(contract.ROOT / contract.DATA_CACHE),
    str(contract.ROOT / contract.CODE),
    str(contract.ROOT / contract.PACKAGES),
    str(contract.CONFIG_DIR),
    str(contract.CODE_DIR),
    str(contract.PACKAGES_DIR),
    str(contract.SSH_DIR),
)
RESERVED_VARIABLES = frozenset(v for k, v in vars(contract).items() if k.startswith("ENV_")) - {
    # A job may set these variables of the contract.
    contract.ENV_PEER_TIMEOUT_SECONDS,
    contract.ENV_SYNC_TIMEOUT_SECONDS,
    contract.ENV_CHECKPOINTS_DIR,
    contract.ENV_CHECKPOINTS_KEEP,
    contract.ENV_CHECKPOINTS_KEEP_BYTES,
    contract.ENV_CHECKPOINTS_KEEP_EVERY_MINUTES,
    contract.ENV_CHECKPOINT_SETTLE_SECONDS,
    contract.ENV_UPLOAD_MB_PER_SECOND,
    contract.ENV_MPI_ARGS,
    contract.ENV_TRACKING_START_SECONDS,
    contract.ENV_TRACKING_END_SECONDS,
    contract.ENV_MPIRUN,
    contract.ENV_GPUS,
    *contract.S3_SETTINGS,
}


def object_of(value: Any) -> dict[str, Any]:
    """Return the value if it is an object, else an empty object."""
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def objects_of(value: Any) -> list[dict[str, Any]]:
    """Return those entries of a list that are objects."""
    return [entry for entry in list_of(value) if isinstance(entry, dict)]


def pod_spec(replica: ReplicaSpec) -> dict[str, Any]:
    """Return `spec` of the replica's pod template."""
    return object_of(replica.template.get("spec"))


def own_trainer(replica: ReplicaSpec) -> dict[str, Any]:
    """Return the container `trainer` of a role's own template; an empty object where it has none."""
    containers = objects_of(pod_spec(replica).get("containers"))
    return next((each for each in containers if each.get("name") == TRAINER_CONTAINER), {})


def own_program(replica: ReplicaSpec | None) -> tuple[list[str], list[str]]:
    """Return command and args of the container `trainer` in a role's own template; empty lists where it has none."""
    own = own_trainer(replica) if replica else {}
    return own.get("command") or [], own.get("args") or []


def limits_of(replica: ReplicaSpec) -> dict[str, Any]:
    """Return the limits of a role's container, those of its own template among them."""
    own = object_of(own_trainer(replica).get("resources"))
    return {**replica.resources.limits, **object_of(own.get("limits"))}


def asks_for_devices(replica: ReplicaSpec) -> bool:
    """Return whether the pods of a role ask for GPUs or other devices, as gpus, as limits or as resource claims."""
    devices = any("/" in name for name in limits_of(replica))
    return bool(replica.gpus or devices or pod_spec(replica).get("resourceClaims"))


def program_of(spec: JobSpec, replica: ReplicaSpec) -> list[str]:
    """Return the words of a role's program. As in a container, a role's own command does not get the job's args."""
    command, args = own_program(replica)
    return [*command, *args] if command else [*spec.own_command, *(args or spec.args)]


# The GPUs and other accelerators of a job. A resource counts as an accelerator by its name.

# Names of resources in https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/ and in the documentation of
# other vendors' device plugins: nvidia.com/gpu, nvidia.com/mig-1g.5gb, amd.com/gpu, gpu.intel.com/i915,
# google.com/tpu, habana.ai/gaudi, aws.amazon.com/neuroncore.
_ACCELERATORS = re.compile(
    r"[^/]+/gpu(\.shared)?|nvidia\.com/mig-.+|gpu\.intel\.com/(i915|xe)|google\.com/tpu|habana\.ai/.+"
    r"|aws\.amazon\.com/neuron.*"
)


def is_accelerator(resource: str, named: str | None = None) -> bool:
    """Return whether a resource is an accelerator.

    resource: its name in the limits of a container. named: `spec.accelerator.resourceName`.
    """
    return resource == named or _ACCELERATORS.fullmatch(resource) is not None


def gpus_of(spec: JobSpec, roles: Mapping[str, Sequence[object]]) -> int | None:
    """Return how many accelerators the pods of a job ask for; None for a job without accelerators.

    roles: the pods of each role. The containers that train count, not the sidecars of a template.
    """
    given = vars(spec.replica_specs)
    counts = (len(pods) * _of_a_pod(spec, given[role]) for role, pods in roles.items() if given.get(role))
    return sum(counts) or None


def _of_a_pod(spec: JobSpec, replica: ReplicaSpec) -> int:
    named = spec.accelerator.resource_name
    limits = limits_of(replica) | ({named: replica.gpus} if replica.gpus else {})
    # The user may have changed the template of a running job to an invalid amount. Such an amount counts as none.
    return sum(
        int(str(amount))
        for name, amount in limits.items()
        if is_accelerator(name, named) and re.fullmatch(r"[0-9]{1,9}", str(amount))
    )

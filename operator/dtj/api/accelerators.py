"""The GPUs and other accelerators of a job, by the names of their resources."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dtj.api.pod_template import limits_of

if TYPE_CHECKING:
    from dtj.api.spec import JobSpec, ReplicaSpec

# Names of https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/ and of the device plugins of other vendors:
# nvidia.com/gpu, nvidia.com/mig-1g.5gb, amd.com/gpu, gpu.intel.com/i915, google.com/tpu, habana.ai/gaudi,
# aws.amazon.com/neuroncore.
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
    given = spec.replica_specs.given()
    counts = (len(pods) * _of_a_pod(spec, given[role]) for role, pods in roles.items() if role in given)
    return sum(counts) or None


def _of_a_pod(spec: JobSpec, replica: ReplicaSpec) -> int:
    named = spec.accelerator.resource_name
    limits = limits_of(replica) | ({named: replica.gpus} if replica.gpus else {})
    # A user may have edited the template of a running job to any value.
    return sum(
        int(str(amount))
        for name, amount in limits.items()
        if is_accelerator(name, named) and re.fullmatch(r"[0-9]{1,9}", str(amount))
    )

"""Names of the API: group, kind, labels and annotations of the resource and of its pods and other objects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dtj.api.schema_errors import pattern
from dtj_trainer.contract.distribution import version

GROUP = "dtj.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "DistributedTrainingJob"
PLURAL = "distributedtrainingjobs"
SINGULAR = "distributedtrainingjob"
SHORT_NAME = "dtj"
CATEGORIES = ("all", "training")

LABEL_JOB = f"{GROUP}/job"
LABEL_ROLE = f"{GROUP}/role"
LABEL_INDEX = f"{GROUP}/index"
LABEL_ATTEMPT = f"{GROUP}/attempt"
LABEL_ROUNDS = f"{GROUP}/rounds"
"""On pods that restart their ranks in place: the job's restarts after failures of the program when the pods were
made, and the limit of these restarts, as in 1-3."""
LABEL_TENSORBOARD = f"{GROUP}/tensorboard"
"""On the pod of a job's TensorBoard: the name of the job. This pod has no LABEL_JOB, since it is no replica."""
LABEL_RECORD = f"{GROUP}/record"
"""On the pod that records a job's end: the name of the job. This pod has no LABEL_JOB, since it is no replica."""
LABEL_UID = f"{GROUP}/uid"
"""On pods that another controller makes for a job: the uid of the job."""
LABEL_CODE = f"{GROUP}/code"
"""On ConfigMaps with the archive of spec.code: the name of the job. The operator does not cache these ConfigMaps."""
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "dtj-operator"


def own_image(name: str, registry: str | None = None) -> str:
    """Return the reference of one of dtj's images in this version. Without a registry, nodes must have the image."""
    image = f"{name}:{version()}"
    return f"{registry.rstrip('/')}/{image}" if registry else image


# The controllers that `spec.runPolicy.managedBy` can name. The field works as `spec.managedBy` of a batch/v1 Job.

OPERATOR = f"{GROUP}/operator"
"""The value of managedBy that names dtj's operator."""
MAX_LENGTH = 63
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DOMAIN_PATH = pattern(
    rf"^{_LABEL}(\.{_LABEL})*/[-A-Za-z0-9/._~%!$&'()*+,;=:]+$",
    "a domain and a path such as kueue.x-k8s.io/multikueue",
)
"""The pattern of managedBy, which the API server applies to a Job, too: a DNS name, a slash, and a URL path."""


def is_domain_path(text: str) -> bool:
    """Whether a text is a domain-prefixed path such as kueue.x-k8s.io/multikueue."""
    return re.fullmatch(DOMAIN_PATH, text) is not None


def other_manager(value: Any) -> str | None:
    """Return the controller that `managedBy` names; None for dtj's operator, and for an invalid name."""
    named = isinstance(value, str) and len(value) <= MAX_LENGTH and is_domain_path(value)
    return value if named and value != OPERATOR else None


def other_manager_of(manifest: Mapping[str, Any]) -> str | None:
    """Return the controller that the manifest of a job, valid or not, names in managedBy. See `other_manager`."""
    policy = (manifest.get("spec") or {}).get("runPolicy")
    return other_manager(policy.get("managedBy")) if isinstance(policy, Mapping) else None

"""Deterministic names of a job's objects. The names that need nothing but the job are fields of `Job`."""

from __future__ import annotations

import re
from collections.abc import Sequence

LABEL_LENGTH = 63
_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def pod_name(job: str, role: str, index: int) -> str:
    """Name of one replica. The DNS name of its pod is `<name>.<domain of the job>`."""
    return f"{job}-{role}-{index}"


def tensorboard_name(job: str) -> str:
    """Name of the Deployment and the Service of the job's own TensorBoard."""
    return f"{job}-tensorboard"


def ssh_secret_name(job: str, suffix: str) -> str:
    """Name of the Secret with the job's ssh key.

    suffix: random; the status has it once the Secret exists. Nobody can foresee the name and plant another
    key, so the operator needs no permission to read Secrets.
    """
    return f"{job}-ssh-{suffix}"


def network_policy_name(job: str, short_uid: str) -> str:
    """Name of the NetworkPolicy of the job's pods. The uid makes the name unique, so that the operator need not read
    the policy to find out whether the policy belongs to the job.
    """
    return f"{job}-{short_uid}"


def record_name(job: str, short_uid: str, attempt: int, *, ended: bool) -> str:
    """Name of the pod that records the end of a job in an attempt, or its suspension before the attempt."""
    return f"{job}-{'record' if ended else 'suspension'}-{short_uid}-{attempt}"


def role_of(pod: str) -> str:
    """Role of the replica with this name."""
    return pod.rsplit("-", 2)[-2]


def together(pods: Sequence[str]) -> str:
    """Pods of one role in words: the name of a single pod, else how many they are."""
    return pods[0] if len(pods) == 1 else f"all {len(pods)} {role_of(pods[0])}s"


def is_dns_label(name: str) -> bool:
    """Whether a name is a DNS label that a Service may have (RFC 1035), of any length."""
    return _DNS_LABEL.fullmatch(name) is not None


def is_namespace(name: str) -> bool:
    """Whether a name is one that a namespace may have: a DNS label (RFC 1123)."""
    return len(name) <= LABEL_LENGTH and _NAMESPACE.fullmatch(name) is not None

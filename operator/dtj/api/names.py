"""Deterministic names of a job's objects."""

from __future__ import annotations

import re
from collections.abc import Sequence

LABEL_LENGTH = 63
_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def pod_name(job: str, role: str, index: int) -> str:
    """Name, and host name, of one replica."""
    return f"{job}-{role}-{index}"


def service_name(job: str) -> str:
    """Name of the headless Service that gives every replica a DNS name."""
    return job


def config_name(job: str) -> str:
    """Name of the ConfigMap with the hostfile, the ssh configuration and the start scripts."""
    return f"{job}-config"


def tensorboard_name(job: str) -> str:
    """Name of the Deployment and the Service of the job's own TensorBoard."""
    return f"{job}-tensorboard"


def mpijob_config_name(job: str) -> str:
    """Name of the ConfigMap of a job that is an MPIJob: mpi-operator makes one called `<job>-config`."""
    return f"{job}-dtj"


def ssh_secret_name(job: str, suffix: str) -> str:
    """Name of the Secret with the job's ssh key.

    suffix: random; the status has it once the Secret exists. Nobody can foresee the name and plant another
    key, so the operator needs no permission to read Secrets.
    """
    return f"{job}-ssh-{suffix}"


def network_policy_name(job: str, short_uid: str) -> str:
    """Name of the NetworkPolicy around the job's pods. With the uid, as the Secret's: it need not be read."""
    return f"{job}-{short_uid}"


def record_name(job: str, short_uid: str, attempt: int, *, ended: bool) -> str:
    """Name of the pod that records the end of a job in an attempt, or its suspension before the attempt."""
    return f"{job}-{'record' if ended else 'suspension'}-{short_uid}-{attempt}"


def host_name(job: str, namespace: str, role: str, index: int) -> str:
    """DNS name of one replica, valid whatever the cluster's domain is."""
    return host_of(job, namespace, f"{role}-{index}")


def host_of(job: str, namespace: str, replica: str) -> str:
    """DNS name of the replica `<role>-<index>`."""
    return dns_name(f"{job}-{replica}", job, namespace)


def dns_name(pod: str, job: str, namespace: str) -> str:
    """DNS name of the pod with this name."""
    return f"{pod}.{domain_of(job, namespace)}"


def domain_of(job: str, namespace: str) -> str:
    """DNS name of the job's Service, and the end of the DNS names of its pods."""
    return f"{service_name(job)}.{namespace}.svc"


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

"""The `restricted` Pod Security Standard.

https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip
_SYSCTLS = {
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range",
}  # fmt: skip


def restricted_faults(pod: dict[str, Any]) -> Iterator[str]:
    """Yield the reasons for which a namespace with the `restricted` standard would refuse the pod."""
    spec = pod["spec"]
    security = spec.get("securityContext", {})
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(key):
            yield key
    for volume in spec.get("volumes", []):
        for kind in volume.keys() - {"name"} - _VOLUMES:
            yield f"volume {volume['name']} is a {kind}"
    for sysctl in security.get("sysctls", []):
        if sysctl["name"] not in _SYSCTLS:
            yield f"sysctl {sysctl['name']}"
    for key in ("containers", "initContainers", "ephemeralContainers"):
        for container in spec.get(key, []):
            for fault in _container_faults(container, security):
                yield f"{key}[{container['name']}]: {fault}"


def _container_faults(container: dict[str, Any], pod: dict[str, Any]) -> Iterator[str]:
    own = container.get("securityContext", {})
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation is not false"
    if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        yield "runAsNonRoot is not true"
    if own.get("runAsUser", pod.get("runAsUser")) == 0:
        yield "runAsUser is 0"
    profile = own.get("seccompProfile", pod.get("seccompProfile", {}))
    if profile.get("type") not in ("RuntimeDefault", "Localhost"):
        yield "seccompProfile is not RuntimeDefault or Localhost"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", []):
        yield "capabilities do not drop ALL"
    if set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield "capabilities are added"
    if own.get("procMount", "Default") != "Default":
        yield "procMount"
    for port in container.get("ports", []):
        if port.get("hostPort"):
            yield "hostPort"

"""The user of converted pods. In Kubeflow, the image decides about the user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dtj.api.job import Manifest
from dtj.convert.notes import Notes
from dtj.convert.replicas import Role

_POLICY = "the namespace's policy must allow it (Pod Security baseline, on OpenShift the SCC anyuid)"


def secure(roles: Sequence[Role], as_root: bool, notes: Notes) -> None:
    """Set the user that the job names for the pods of each role.

    as_root: whether the options of mpirun allow root. dtj's pods run as user 1000 and without capabilities
    unless a template says otherwise, and an sshd of user 1000 can't open sessions of root.
    """
    without_user, root = [], []
    for role in roles:
        user = _user(role)
        _allow_privileges(role)
        if user == 0 or (user is None and as_root):
            _run_as_root(role)
            root.append(role)
        elif user is None:
            without_user.append(role)
    if root:
        notes.add(
            f"{root[0].path}.template.spec.securityContext",
            None,
            f"the container trainer of {' and '.join(role.name for role in root)} runs as root, with the "
            f"runtime's default capabilities: {_POLICY}",
        )
    if without_user:
        notes.add(
            f"{without_user[0].path}.template.spec.securityContext.runAsUser",
            None,
            "not given: the pods run as user 1000, whatever the image's user is. For another user, set runAsUser in "
            "each replica's template; for root, set runAsUser: 0, runAsNonRoot: false and, in the container trainer, "
            "capabilities: {drop: []}",
        )


def _contexts(role: Role) -> tuple[Manifest, Manifest]:
    """Return the securityContext of the pod and the securityContext of the container that trains."""
    pod = role.template.get("spec", {}).get("securityContext")
    own = role.container.get("securityContext")
    return pod if isinstance(pod, dict) else {}, own if isinstance(own, dict) else {}


def _user(role: Role) -> Any:
    """Return the user in the template of the role, or None if the image decides."""
    pod, own = _contexts(role)
    user = own.get("runAsUser", pod.get("runAsUser"))
    not_root = own.get("runAsNonRoot", pod.get("runAsNonRoot"))
    return "not root" if user is None and not_root is True else user


def _run_as_root(role: Role) -> None:
    pod, own = _contexts(role)
    # Set the user of the container, not of the pod: a sidecar without a user keeps dtj's user.
    context: Manifest = (
        {"runAsUser": 0, "runAsGroup": 0, "runAsNonRoot": False} | own | {"runAsNonRoot": False}
    )
    if "runAsUser" not in own and "runAsGroup" in pod:
        context["runAsGroup"] = pod["runAsGroup"]
    capabilities = own.get("capabilities")
    context["capabilities"] = {"drop": []} | (capabilities if isinstance(capabilities, dict) else {})
    role.container["securityContext"] = context


def _allow_privileges(role: Role) -> None:
    """Allow privilege escalation for a privileged container, because the API server requires the permission."""
    _, own = _contexts(role)
    added = own.get("capabilities")
    added = added.get("add") if isinstance(added, dict) else None
    more = own.get("privileged") is True or (
        isinstance(added, list) and {"SYS_ADMIN", "CAP_SYS_ADMIN"} & set(map(str, added))
    )
    if more and "allowPrivilegeEscalation" not in own:
        role.container["securityContext"] = own | {"allowPrivilegeEscalation": True}

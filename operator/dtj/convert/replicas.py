"""Conversion of the replicas of one role to fields of dtj, a partial pod template, and the user of the pods.

In Kubeflow, the image sets the user. `mpi`, `pytorch`, `tensorflow`, `torchx` and `trainjob` call this module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dtj.api.job import Manifest
from dtj.api.pod_template import TRAINER_CONTAINER, is_accelerator
from dtj.convert.kubeflow_fields import Container, KubeflowReplica
from dtj.convert.notes import Notes
from dtj_trainer import contract

_BY_OPERATOR = {
    "hostname": "left out: peers find the pod by the operator's host name",
    "subdomain": "left out: peers find the pod by the operator's subdomain",
    "restartPolicy": "left out: the operator restarts pods itself",
    "hostNetwork": "left out: two replicas on one node would use the same ports",
    "nodeName": "left out: use nodeSelector or affinity",
}
_OF_TERMINATION = ("terminationMessagePath", "terminationMessagePolicy")
# By the name of a port of Kubeflow: the number that needs no note, and the note for a port with another number.
_PORTS = {
    "tfjob-port": (contract.TENSORFLOW_PORT, f"the port is {contract.TENSORFLOW_PORT} in every job"),
    "pytorchjob-port": (None, "the operator sets MASTER_PORT"),
}
COMMAND_GIVEN = "not given: now the words of --command"
"""The note of a container that gets the command of the user."""
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass
class ConvertedRole:
    """One role during the conversion. `common_spec` moves fields that all roles share into the spec of the job."""

    name: str
    path: str
    """The field of the role in the input."""
    replicas: int
    image: str
    program: tuple[list[str], list[str]]
    """Command and args."""
    env: dict[str, Manifest]
    resources: Manifest
    accelerators: dict[str, int]
    template: Manifest
    container: Manifest = field(default_factory=dict)
    """The other fields of the container that trains."""
    keeps_command: bool = False
    """Whether dtj runs the program as written, as the command of the container."""


def read_role(
    name: str,
    path: str,
    replica: KubeflowReplica,
    trainer: str | None,
    notes: Notes,
    command: Sequence[str] = (),
) -> ConvertedRole:
    """Read a role of the input.

    trainer: name of the container that trains; by default the first container. command: the command of a container
    without one.
    """
    containers = replica.template.spec.containers
    names = [container.name for container in containers]
    index = names.index(trainer) if trainer in names else 0
    main, pod_path = containers[index], f"{path}.template.spec"
    where = f"{pod_path}.containers[{index}]"
    env = {variable.name: variable.model_dump(by_alias=True) for variable in main.env}
    if contract.ENV_TF_CONFIG in env:
        notes.add(
            f"{where}.env[TF_CONFIG]",
            env.pop(contract.ENV_TF_CONFIG).get("value"),
            "left out: the operator sets it",
        )
    program = main.command, main.args
    if command and not main.command:
        program = [*command], main.args
        notes.add(f"{where}.command", None, COMMAND_GIVEN)
    accelerators, resources = _resources(main)
    return ConvertedRole(
        name,
        path,
        replica.replicas,
        main.image,
        program,
        env,
        resources,
        accelerators,
        _template(replica, containers[:index] + containers[index + 1 :], path, notes),
        _container(main, where, notes),
    )


def refuse_entrypoint(role: ConvertedRole, where: str, notes: Notes) -> None:
    """Refuse a role without a command. where: the field of the command."""
    notes.refuse(
        where,
        role.program[1] or None,
        "required: dtj does not start the image's entrypoint; write the entrypoint as the command (dtj convert "
        "--command 'python train.py')",
    )


def _resources(container: Container) -> tuple[dict[str, int], Manifest]:
    """Return the accelerators by resource name, and the other resources of the container."""
    limits, requests = dict(container.resources.limits), dict(container.resources.requests)
    accelerators = {
        name: int(amount)
        for name, amount in limits.items()
        if is_accelerator(name) and str(amount).isdecimal()
    }
    for name in list(accelerators)[:1]:
        limits.pop(name)
        requests.pop(name, None)
    kinds = {"requests": requests, "limits": limits}
    return dict(list(accelerators.items())[:1]), {kind: amounts for kind, amounts in kinds.items() if amounts}


def _container(main: Container, where: str, notes: Notes) -> Manifest:
    fields = main.rest
    for key in _OF_TERMINATION:
        if key in fields:
            notes.add(
                f"{where}.{key}",
                fields.pop(key),
                "left out: the operator reads the cause of a failure from its own path",
            )
    ports = [port for port in main.ports if str(port.get("name")) not in _PORTS]
    for port in main.ports:
        known, now = _PORTS.get(str(port.get("name")), (None, ""))
        if now and port.get("containerPort") != known:
            notes.add(f"{where}.ports[{port['name']}]", port, f"left out: {now}")
    return fields | ({"ports": ports} if ports else {})


def _template(replica: KubeflowReplica, sidecars: Sequence[Container], path: str, notes: Notes) -> Manifest:
    metadata = kept_metadata(replica.template.metadata.labels, replica.template.metadata.annotations)
    spec = replica.template.spec.rest
    for key, now in _BY_OPERATOR.items():
        if key in spec:
            notes.add(f"{path}.template.spec.{key}", spec.pop(key), now)
    if "serviceAccountName" in spec and "automountServiceAccountToken" not in spec:
        notes.add(
            f"{path}.template.spec.serviceAccountName",
            spec["serviceAccountName"],
            "kept; the pod has the account's token only with automountServiceAccountToken: true",
        )
    if any(container.name == TRAINER_CONTAINER for container in sidecars):
        why = "is the name of the container that trains; rename the sidecar"
        notes.refuse(f"{path}.template.spec.containers.name", TRAINER_CONTAINER, why)
    if sidecars:
        spec["containers"] = [
            container.model_dump(by_alias=True, exclude_unset=True) for container in sidecars
        ]
    return {key: value for key, value in (("metadata", metadata), ("spec", spec)) if value}


def kept_metadata(labels: dict[str, str], annotations: dict[str, str]) -> Manifest:
    """Return labels and annotations without kubectl's annotation."""
    annotations = {key: value for key, value in annotations.items() if key != _LAST_APPLIED}
    return {key: value for key, value in (("labels", labels), ("annotations", annotations)) if value}


def common_spec(roles: Sequence[ConvertedRole]) -> Manifest:
    """Return the fields of the spec that all roles share, and replicaSpecs with the other fields of each role."""
    image = _most_common([role.image for role in roles if role.image])
    # Leave out containers without a command: they would run the image's entrypoint, which dtj does not start.
    programs = [role.program for role in roles if role.program[0] and not role.keeps_command]
    program: tuple[list[str], list[str]] = _most_common(programs) or ([], [])
    shared = [
        variable
        for name, variable in roles[0].env.items()
        if all(role.env.get(name) == variable for role in roles[1:])
    ]
    accelerator = next((name for role in roles for name in role.accelerators), None)
    spec: Manifest = {"image": image or ""}
    spec |= {key: value for key, value in zip(("command", "args"), program, strict=True) if value}
    spec |= {"env": shared} if shared else {}
    spec["replicaSpecs"] = {
        role.name: _replica_spec(role, image, program, shared, accelerator) for role in roles
    }
    if accelerator not in (None, "nvidia.com/gpu"):
        spec["accelerator"] = {"resourceName": accelerator}
    return spec


def _replica_spec(
    role: ConvertedRole, image: Any, program: Any, shared: list[Manifest], accelerator: str | None
) -> Manifest:
    spec: Manifest = {"replicas": role.replicas} if role.replicas != 1 else {}
    resources = role.resources
    for name, amount in role.accelerators.items():
        if name == accelerator:
            spec |= {"gpus": amount} if amount else {}
        else:
            resources = resources | {"limits": {**resources.get("limits", {}), name: amount}}
    if resources:
        spec["resources"] = resources
    own = dict(role.container)
    if role.image and role.image != image:
        own["image"] = role.image
    if role.program[0] and (role.keeps_command or role.program != program):
        own |= {key: value for key, value in zip(("command", "args"), role.program, strict=True) if value}
    env = [variable for variable in role.env.values() if variable not in shared]
    own |= {"env": env} if env else {}
    template = role.template
    if own:
        others = _pod(role).get("containers", [])
        template = template | {
            "spec": {**_pod(role), "containers": [{"name": TRAINER_CONTAINER, **own}, *others]}
        }
    return spec | ({"template": template} if template else {})


def _pod(role: ConvertedRole) -> Manifest:
    pod: Manifest = role.template.get("spec", {})
    return pod


def _most_common(values: Sequence[Any]) -> Any:
    if not values:
        return None
    ((text, _),) = Counter(map(repr, values)).most_common(1)
    return next(value for value in values if repr(value) == text)


_POLICY = "the namespace's policy must allow it (Pod Security baseline, on OpenShift the SCC anyuid)"


def secure(roles: Sequence[ConvertedRole], as_root: bool, notes: Notes) -> None:
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


def _contexts(role: ConvertedRole) -> tuple[Manifest, Manifest]:
    """Return the securityContext of the pod and the securityContext of the container that trains."""
    pod = role.template.get("spec", {}).get("securityContext")
    own = role.container.get("securityContext")
    return pod if isinstance(pod, dict) else {}, own if isinstance(own, dict) else {}


def _user(role: ConvertedRole) -> Any:
    """Return the user in the template of the role, or None if the image decides."""
    pod, own = _contexts(role)
    user = own.get("runAsUser", pod.get("runAsUser"))
    not_root = own.get("runAsNonRoot", pod.get("runAsNonRoot"))
    return "not root" if user is None and not_root is True else user


def _run_as_root(role: ConvertedRole) -> None:
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


def _allow_privileges(role: ConvertedRole) -> None:
    """Allow privilege escalation for a privileged container, because the API server requires the permission."""
    _, own = _contexts(role)
    added = own.get("capabilities")
    added = added.get("add") if isinstance(added, dict) else None
    more = own.get("privileged") is True or (
        isinstance(added, list) and {"SYS_ADMIN", "CAP_SYS_ADMIN"} & set(map(str, added))
    )
    if more and "allowPrivilegeEscalation" not in own:
        role.container["securityContext"] = own | {"allowPrivilegeEscalation": True}

"""Translate the plan of a job for this machine: the same pods with local host names, ports and paths. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from dtj.api.job import Manifest
from dtj.api.names import host_name
from dtj.api.pod_template import TRAINER_CONTAINER
from dtj.plan.model import Plan
from dtj.plan.pods import trainer_container
from dtj.plan.start import START
from dtj_trainer import contract

LOOPBACK = "127.0.0.1"
ENV_RUN = "DTJ_LOCAL_RUN"
"""The variable that marks every process of a run by the run's folder, so that `end_marked` can end all of them."""
# Variables of Open MPI for hosts and ssh. A local run leaves them out, because all ranks run on this machine.
_MPI_HOSTS = re.compile(r"OMPI_MCA_(orte|plm)_|PRTE_MCA_(prte|plm)_")
# The volume of a cache is the cluster's.
_CLUSTER_VARIABLES = (contract.ENV_DATA_CACHE, contract.ENV_DATA_CACHE_BYTES, contract.ENV_PACKAGES_CACHE)
_CONFIG_PATH = re.compile(rf"(^|=){re.escape(str(contract.CONFIG_DIR))}(?=/|$)")
_REFERENCE = re.compile(r"\$(?:\$|\(([-._a-zA-Z][-._a-zA-Z0-9]*)\))")


@dataclass(frozen=True)
class Place:
    """The folders, ports, devices and variables of a run on this machine."""

    run: Path
    """The folder of the run."""
    mark: str
    """The value of ENV_RUN."""
    ports: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Port on loopback, by pod name and container port."""
    gpus: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Devices by pod name."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Additional variables, for example of the object store. They override the variables of the plan."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Values for variables with a `valueFrom`."""

    @property
    def config(self) -> Path:
        """Return the folder with the files of the ConfigMap."""
        return self.run / "config"

    def root(self, pod: contract.PodInfo) -> Path:
        """Return the workspace of a replica, which is `/dtj` in a container."""
        return self.run / pod.name


def local_plan(plan: Plan, place: Place) -> Plan:
    """Return the plan with pods for this machine. The pods keep only the fields that `LocalPod` reads."""
    service = plan.service["metadata"]
    addresses = {
        host_name(service["name"], service["namespace"], replica.role, replica.index): replica.name
        for replica in plan.replicas
    }
    first = next((info for info in map(_info, plan.pods) if 0 in info.ranks), None)
    return replace(
        plan,
        ssh_secret=None,
        tensorboard=None,
        mpijob=None,  # `pod` gives the pods that mpi-operator would create
        pod=lambda replica: _pod(plan.pod(replica), plan, place, addresses, first),
    )


def container_ports(plan: Plan) -> list[tuple[str, int]]:
    """Return the pod name and the container port of each port in the plan."""
    return [
        (pod["metadata"]["name"], port["containerPort"])
        for pod in plan.pods
        for port in trainer_container(pod).get("ports", [])
    ]


def missing_variables(plan: Plan, secrets: Mapping[str, str]) -> list[str]:
    """Return the names of required variables with a `valueFrom` that have no value on this machine."""
    unset = (
        variable
        for pod in plan.pods
        for variable in trainer_container(pod).get("env", [])
        if "valueFrom" in variable
        and variable["name"] not in secrets
        and _in_config(variable, plan.config) is None
    )
    return sorted(
        {
            variable["name"]
            for variable in unset
            if not any(source.get("optional") for source in variable["valueFrom"].values())
        }
    )


def left_out(plan: Plan) -> list[str]:
    """Return notes on the parts of the job that a local run leaves out."""
    others = {
        container["name"]
        for pod in plan.pods
        for kind in ("initContainers", "containers")
        for container in pod["spec"].get(kind, [])
        if container["name"] != TRAINER_CONTAINER
    }
    notes = [f"container {name} of the template does not run on this machine" for name in sorted(others)]
    if any(_has_cache(pod) for pod in plan.pods):
        notes.append(
            "spec.data.cache is for a cluster; on this machine, use --data-cache FOLDER of the built-in programs"
        )
    if plan.tensorboard:
        notes.append("spec.tensorboard is for a cluster; on this machine, use `dtj tensorboard NAME --local`")
    if plan.mpijob:
        notes.append(
            "horovod.launcher: MPIJob is for a cluster; on this machine, dtj starts the ranks itself"
        )
    return notes


def _has_cache(pod: Manifest) -> bool:
    return any(variable["name"] in _CLUSTER_VARIABLES for variable in trainer_container(pod).get("env", []))


def _info(pod: Manifest) -> contract.PodInfo:
    """Return the data of the plan for the trainer in a pod (DTJ_POD)."""
    variables = trainer_container(pod)["env"]
    return contract.PodInfo.from_json(next(v["value"] for v in variables if v["name"] == contract.ENV_POD))


def _pod(
    pod: Manifest,
    plan: Plan,
    place: Place,
    addresses: Mapping[str, str],
    first: contract.PodInfo | None,
) -> Manifest:
    """Return the pod for this machine.

    plan: the plan for a cluster. addresses: pod name by host name. first: the pod with rank 0.
    """
    container, name = trainer_container(pod), pod["metadata"]["name"]

    def translated(text: str) -> str:
        # Do not rewrite `/dtj`: dtj-launch mounts the workspace of the replica or rank there.
        text = _CONFIG_PATH.sub(lambda match: match[1] + str(place.config), text)
        for host, owner in addresses.items():
            # A pod may leave out the end of a name: the namespace, and svc.
            pod_and_service, namespace = host.removesuffix(".svc").rsplit(".", 1)
            end = rf"(?:\.{re.escape(namespace)}(?:\.svc)?)?(?!\.?[\w-])"
            pattern = rf"(?<![\w.-]){re.escape(pod_and_service)}{end}(?::(\d+)\b)?"
            text = re.sub(pattern, partial(_address, place, owner), text)
        return text

    env: dict[str, str] = {}
    for variable, value in _variables(container, plan.config, place):
        if (listener := plan.port_variables.get(variable)) is not None:
            env[variable] = str(place.ports[listener, int(value)])
        elif not _MPI_HOSTS.match(variable) and variable not in _CLUSTER_VARIABLES:
            env[variable] = translated(_expanded(value, env))
    own = _own_environment(pod, place, first)
    if with_root := [
        name for name, value in env.items() if contract.ROOT_IN_TEXT.search(value) and name not in own
    ]:
        env[contract.ENV_ROOT_VARIABLES] = " ".join(with_root)
    env |= own
    words = [*container.get("command", []), *container.get("args", [])]
    if not _is_started_by_dtj(pod):
        words = ["dtj-launch", "command", "--", *words]
    translated_container: Manifest = {
        "name": TRAINER_CONTAINER,
        "command": [translated(_expanded(word, env)) for word in words],
        "env": [{"name": variable, "value": value} for variable, value in env.items()],
    }
    if probe := _probe(container, name, place):
        translated_container["readinessProbe"] = probe
    return {**pod, "spec": {"containers": [translated_container]}}


def _variables(container: Manifest, config: Manifest, place: Place) -> Iterator[tuple[str, str]]:
    for variable in container.get("env", []):
        if "valueFrom" not in variable:
            yield variable["name"], variable.get("value", "")
        elif (text := _in_config(variable, config)) is not None:
            yield variable["name"], text
        elif variable["name"] in place.secrets:
            yield variable["name"], place.secrets[variable["name"]]


def _in_config(variable: Manifest, config: Manifest) -> str | None:
    """Return the value of a variable from the ConfigMap of the job; None if the variable has another source."""
    key = variable["valueFrom"].get("configMapKeyRef") or {}
    own = key.get("name") == config["metadata"]["name"]
    return config["data"].get(key.get("key")) if own else None


def _own_environment(pod: Manifest, place: Place, first: contract.PodInfo | None) -> dict[str, str]:
    info, name = _info(pod), pod["metadata"]["name"]
    # A user's command in a pod without ranks, such as mpirun in a launcher, starts all ranks in its own workspace.
    # Use the workspace of rank 0, because dtj uploads only the files of rank 0.
    workspace = first if first and not info.slots and not _is_started_by_dtj(pod) else info
    env = {
        contract.ENV_ROOT: str(place.root(workspace)),
        contract.ENV_CONFIG_DIR: str(place.config),
        contract.ENV_TERMINATION_LOG: str(place.root(info) / "termination.json"),
        "CUDA_VISIBLE_DEVICES": ",".join(place.gpus.get(name, ())),
        ENV_RUN: place.mark,
        # The replicas would share one port, and the disk.
        contract.ENV_RESTORE_PEERS: "false",
        # An empty port: the pod does not serve /progress.
        contract.ENV_PROGRESS_PORT: str(place.ports.get((name, contract.PROGRESS_PORT), "")),
        **place.environment,
    }
    for variable, folder, file in (
        (contract.ENV_CODE_ARCHIVE, contract.CODE_DIR, contract.CODE_FILE),
        (contract.ENV_PACKAGES_ARCHIVE, contract.PACKAGES_DIR, contract.PACKAGES_FILE),
    ):
        if any(each.get("value") == str(folder / file) for each in trainer_container(pod)["env"]):
            env[variable] = str(place.run / file)
    if first:
        env[contract.ENV_LOCAL_WORKERS] = str(place.run / f"{first.role}-")
    return env


def _is_started_by_dtj(pod: Manifest) -> bool:
    """Return whether the container runs dtj's start script. Otherwise the template sets a command."""
    return tuple(trainer_container(pod).get("command", ())[: len(START)]) == START


def _probe(container: Manifest, name: str, place: Place) -> Manifest | None:
    """Return the readiness probe: a loopback port that must accept connections, or a socket file that must exist."""
    probe = container.get("readinessProbe") or {}
    port = next((probe[kind].get("port") for kind in ("tcpSocket", "httpGet") if kind in probe), None)
    if port == contract.SSH_PORT and any(p.get("name") == "ssh" for p in container.get("ports", [])):
        # On this machine, ranks start without ssh, through the socket of the worker's supervisor.
        return {"exec": {"command": ["test", "-S", f"{contract.RUN}/supervisor.sock"]}}
    port = next((p["containerPort"] for p in container.get("ports", []) if p.get("name") == port), port)
    return None if port is None else {"tcpSocket": {"port": place.ports.get((name, port), port)}}


def _address(place: Place, pod: str, match: re.Match[str]) -> str:
    """Return the loopback address for a host name that may have a port."""
    port = match[1]
    return f"{LOOPBACK}:{place.ports.get((pod, int(port)), port)}" if port else LOOPBACK


def _expanded(text: str, env: Mapping[str, str]) -> str:
    """Expand `$(NAME)` as the kubelet does: `$$` becomes `$`, and an unknown name stays."""
    return _REFERENCE.sub(lambda m: env.get(m[1], m[0]) if m[1] else "$", text)

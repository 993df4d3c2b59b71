"""Render the recipes of a job for this machine: loopback addresses, free ports and the folders of a run. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dtj.api.job import Manifest
from dtj.api.pod_template import TRAINER_CONTAINER, objects_of, pod_spec
from dtj.api.shape import Replica
from dtj.plan.code import IN_CODE
from dtj.plan.model import Plan
from dtj.plan.pods import replica_labels
from dtj.plan.recipe import File, FromConfig, Host, Part, Port, Recipe, Value
from dtj_trainer import contract

LOOPBACK = "127.0.0.1"
ENV_RUN = "DTJ_LOCAL_RUN"
"""The variable that marks every process of a run by the run's folder, so that `end_marked` can end all of them."""
# Variables of Open MPI for hosts and ssh. A local run leaves them out, because all ranks run on this machine.
_MPI_HOSTS = ("OMPI_MCA_orte_", "OMPI_MCA_plm_", "PRTE_MCA_prte_", "PRTE_MCA_plm_")
# Variables of caches, which are left out on this machine: the caches are volumes of a cluster.
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
    """Return the plan with pods for this machine. The pods have only the fields that `LocalPod` reads."""
    return replace(
        plan,
        ssh_secret=None,
        tensorboard=None,
        mpijob=None,  # dtj itself starts the pods that mpi-operator would create.
        pod=_Machine(plan, place).pod,
    )


def container_ports(plan: Plan) -> list[tuple[str, int]]:
    """Return the pod name and the container port of each port in the plan."""
    return [
        (name, port["containerPort"])
        for name, recipe in plan.recipes.items()
        for port in recipe.container.get("ports", [])
    ]


def missing_variables(plan: Plan, secrets: Mapping[str, str]) -> list[str]:
    """Return the names of required variables with a `valueFrom` that have no value on this machine."""
    unset = (
        variable
        for recipe in plan.recipes.values()
        for variable in recipe.container["env"]
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
    recipes = plan.recipes.values()
    others = {
        container["name"]
        for recipe in recipes
        for kind in ("initContainers", "containers")
        for container in objects_of(pod_spec(recipe.spec).get(kind))
        if container["name"] != TRAINER_CONTAINER
    }
    notes = [f"container {name} of the template does not run on this machine" for name in sorted(others)]
    if any(name in recipe.environment for recipe in recipes for name in _CLUSTER_VARIABLES):
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


class _Machine:
    """Renders the recipes of a plan as pods of this machine."""

    def __init__(self, plan: Plan, place: Place) -> None:
        self._plan, self._place = plan, place
        self._metadata = metadata = plan.service["metadata"]
        # Users may write a short host name of a Service, without the namespace or without `svc`.
        service, namespace = map(re.escape, (metadata["name"], metadata["namespace"]))
        end = rf"(?:\.{namespace}(?:\.svc)?)?(?!\.?[\w-])"
        self._named_host = re.compile(rf"(?<![\w.-])([\w-]+)\.{service}{end}(?::(\d+)\b)?")
        ranks = [(name, each.info) for name, each in plan.recipes.items() if 0 in each.info.ranks]
        self._first = ranks[0][1] if ranks else None
        """The pod with rank 0."""
        port = place.ports.get((ranks[0][0], contract.PROGRESS_PORT)) if ranks else None
        self._peers = f"loopback:{port}" if port and ranks[0][1].rounds else "false"
        """The value of ENV_RESTORE_PEERS. In restarts in place, each replica serves its checkpoints on a loopback
        address of its own, on a port that no other run has. `false`: the replicas only read the same disk."""

    def pod(self, replica: Replica) -> Manifest:
        """Return the pod for this machine."""
        recipe = self._plan.recipes[replica.name]
        container = recipe.container
        env: dict[str, str] = {}
        for name, value in self._variables(container):
            if not name.startswith(_MPI_HOSTS) and name not in _CLUSTER_VARIABLES:
                env[name] = self._value(value, env)
        own = self._own_environment(replica, recipe)
        files = {name for name, value in recipe.environment.items() if isinstance(value, File)}
        with_root = (name for name, value in env.items() if contract.ROOT_IN_TEXT.search(value))
        if named := [name for name in with_root if name not in own and name not in files]:
            env[contract.ENV_ROOT_VARIABLES] = " ".join(named)
        env |= own
        words = [*container["command"], *container.get("args", [])]
        if not recipe.runs_start_script and not recipe.before_own:
            words = [*IN_CODE, *words]
        local: Manifest = {
            "name": TRAINER_CONTAINER,
            "command": [self._value(word, env) for word in words],
            "env": [{"name": name, "value": value} for name, value in env.items()],
        }
        if probe := self._probe(replica, recipe):
            local["readinessProbe"] = probe
        labels = self._metadata["labels"] | replica_labels(replica, recipe.info)
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**self._metadata, "name": replica.name, "labels": labels},
            "spec": {"containers": [local]},
        }

    def _variables(self, container: Manifest) -> Iterator[tuple[str, Value]]:
        for variable in container["env"]:
            if "valueFrom" not in variable:
                yield variable["name"], variable.get("value", "")
            elif (text := _in_config(variable, self._plan.config)) is not None:
                yield variable["name"], text
            elif variable["name"] in self._place.secrets:
                yield variable["name"], self._place.secrets[variable["name"]]

    def _value(self, value: Value, env: Mapping[str, str]) -> str:
        """Return the text of a value in a container. A plain string may contain texts of the user."""
        match value:
            case str(text):
                return self._of_user(_expanded(text, env))
            case FromConfig(content=content):
                return content(self._render)
            case tuple(parts):
                return "".join(
                    [_expanded(part, env) if isinstance(part, str) else self._render(part) for part in parts]
                )
            case _:
                return self._render(value)

    def _render(self, part: Part) -> str:
        match part:
            case Host():
                return LOOPBACK
            case Port(pod, number):
                if (pod, number) not in self._place.ports:
                    raise ValueError(
                        f"the recipe of pod {pod} has no port {number}, but the job refers to it"
                    )
                return str(self._place.ports[pod, number])
            case File(folder, name):
                return str((self._place.config if folder == contract.CONFIG_DIR else self._place.run) / name)
            case _:
                return part

    def _of_user(self, text: str) -> str:
        """Return a text of the user with the names of files and hosts on this machine."""
        # Do not rewrite `/dtj`: dtj-launch mounts the workspace of the replica or rank there.
        text = _CONFIG_PATH.sub(lambda match: match[1] + str(self._place.config), text)
        return self._named_host.sub(self._address, text)

    def _address(self, match: re.Match[str]) -> str:
        """Return the loopback address for a host name that may have a port."""
        pod, port = match.groups()
        if pod not in self._plan.recipes:
            return match[0]
        return f"{LOOPBACK}:{self._place.ports.get((pod, int(port)), port)}" if port else LOOPBACK

    def _own_environment(self, replica: Replica, recipe: Recipe) -> dict[str, str]:
        place, info, first = self._place, recipe.info, self._first
        # A user's command in a pod without ranks, such as mpirun in a launcher, starts all ranks in its own
        # workspace. Use the workspace of rank 0, because dtj uploads only the files of rank 0.
        workspace = first if first and not info.slots and not recipe.runs_start_script else info
        env = {
            contract.ENV_ROOT: str(place.root(workspace)),
            contract.ENV_CONFIG_DIR: str(place.config),
            contract.ENV_TERMINATION_LOG: str(place.root(info) / "termination.json"),
            "CUDA_VISIBLE_DEVICES": ",".join(place.gpus.get(replica.name, ())),
            ENV_RUN: place.mark,
            contract.ENV_RESTORE_PEERS: self._peers,
            # An empty port: the pod does not serve /progress.
            contract.ENV_PROGRESS_PORT: str(place.ports.get((replica.name, contract.PROGRESS_PORT), "")),
            **place.environment,
        }
        if first:
            env[contract.ENV_LOCAL_WORKERS] = str(place.run / f"{first.role}-")
        return env

    def _probe(self, replica: Replica, recipe: Recipe) -> Manifest | None:
        """Return the readiness probe: a loopback port that must accept connections, or a socket file that must
        exist.
        """
        container = recipe.container
        probe = container.get("readinessProbe") or {}
        port = next((probe[kind].get("port") for kind in ("tcpSocket", "httpGet") if kind in probe), None)
        if port is not None and port == recipe.ports.get("ssh"):
            # On this machine, ranks start without ssh, through the socket of the worker's supervisor.
            return {"exec": {"command": ["test", "-S", f"{contract.RUN}/supervisor.sock"]}}
        port = next((p["containerPort"] for p in container.get("ports", []) if p.get("name") == port), port)
        if port is None:
            return None
        return {"tcpSocket": {"port": self._place.ports.get((replica.name, port), port)}}


def _in_config(variable: Manifest, config: Manifest) -> str | None:
    """Return the value of a variable from the ConfigMap of the job; None if the variable has another source."""
    key = variable["valueFrom"].get("configMapKeyRef") or {}
    own = key.get("name") == config["metadata"]["name"]
    return config["data"].get(key.get("key")) if own else None


def _expanded(text: str, env: Mapping[str, str]) -> str:
    """Expand `$(NAME)` as the kubelet does: `$$` becomes `$`, and an unknown name stays."""
    return _REFERENCE.sub(lambda m: env.get(m[1], m[0]) if m[1] else "$", text)

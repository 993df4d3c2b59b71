"""The recipe of a container: what it runs, wherever it runs. Strategies return recipes.

`plan.pods` turns a recipe into a pod of Kubernetes, and `local.plan` into a process of one machine. A recipe
therefore has hosts, ports and mounted files as objects, so that no code has to search a rendered text for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

from dtj.api.job import Job, Manifest
from dtj.api.pod_template import TRAINER_CONTAINER, own_trainer
from dtj.api.spec import ReplicaSpec
from dtj.plan.merge import merged
from dtj_trainer import contract

START_SCRIPT = "start.sh"
"""The file of the ConfigMap that starts a container."""


@dataclass(frozen=True, slots=True)
class Host:
    """The address of a pod."""

    pod: str


@dataclass(frozen=True, slots=True)
class Port:
    """A port on which a pod listens: one of the `ports` of its recipe."""

    pod: str
    number: int


@dataclass(frozen=True, slots=True)
class File:
    """A file that dtj mounts into the container."""

    folder: PurePosixPath
    name: str


Part = str | Host | Port | File
Text = Part | tuple[Part, ...]
"""A text, or parts that make up a text. As in a container, `$(NAME)` in a string refers to a variable."""
Render = Callable[[Part], str]
"""Returns the text of a part, which depends on where the pods run."""


class OfUser(str):
    """A text that the user wrote in the job's spec. Host names of pods in such a text are not `Host` objects."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class FromConfig:
    """The value of a variable that the container reads from a file of the job's ConfigMap. A text that names all pods
    is stored once this way, and not in each pod. The variables after it may refer to it.
    """

    file: str
    content: Callable[[Render], str]


Value = FromConfig | Text
"""The value of a variable."""


@dataclass(frozen=True)
class Recipe:
    """What the trainer's container of one pod runs."""

    spec: ReplicaSpec
    """The role in the job, with the template of its pods."""
    info: contract.PodInfo
    """The facts about the job and the strategy that dtj-launch and the trainer in the pod need."""
    program: Sequence[Text] = ()
    """The words that the start script runs, mostly from `program_of`, which honours a role's own command. Empty: the
    start script knows what to run."""
    environment: Mapping[str, Value] = field(default_factory=dict)
    """The strategy's variables. `complete` in `plan.pods` adds those of every strategy."""
    ports: dict[str, int] = field(default_factory=dict)
    """The ports on which the program listens, by name. `complete` adds the port of the progress."""
    serves_progress: bool = True
    """Whether dtj-launch serves PROGRESS_PORT in the pod. The pod that reports does."""
    ready: str | None = None
    """The name of the port that accepts connections as soon as the pod is ready. None: a running pod is ready."""
    before_own: Sequence[str] | None = None
    """The words before the role's own command, which then replaces the start script. None: the start script runs
    `program`."""
    script: str = START_SCRIPT
    """The file of the ConfigMap that starts the container."""
    mounts: Sequence[Manifest] = ()
    """More `volumeMounts` of the container. Only a cluster has them."""
    volumes: Sequence[Manifest] = ()
    """More `volumes` of the pod. Only a cluster has them."""
    variables: Sequence[Manifest] = ()
    """The job's own variables, as fields of a container."""

    @cached_property
    def own(self) -> Manifest:
        """Return the container of the role's own template; empty where it has none."""
        return own_trainer(self.spec) if self.spec.template else {}

    @property
    def command(self) -> list[Text]:
        """Return the command of a container whose template has none of its own."""
        return ["/bin/sh", File(contract.CONFIG_DIR, self.script), *self.program]

    @property
    def runs_start_script(self) -> bool:
        """Return whether dtj's start script runs the container, and not the role's own command."""
        own = self.own.get("command")
        return (
            self.before_own is None
            or not own
            or own[:2] == ["/bin/sh", str(contract.CONFIG_DIR / START_SCRIPT)]
        )

    @property
    def listening(self) -> Manifest:
        """Return the ports and the readiness probe as fields of a container."""
        fields: Manifest = {"name": TRAINER_CONTAINER}
        if self.ports:
            fields["ports"] = [{"name": name, "containerPort": port} for name, port in self.ports.items()]
        if self.ready:
            port = {"port": self.ports[self.ready]}
            fields["readinessProbe"] = {"tcpSocket": port, "periodSeconds": 2, "failureThreshold": 10}
        return fields

    @cached_property
    def container(self) -> Manifest:
        """Return the command, variables, ports and readiness probe of the container, as the template leaves them. A
        text of the user is a string. A text of dtj is a tuple of parts, or FromConfig.
        """
        ours: dict[str, Value] = {
            name: value if isinstance(value, FromConfig | tuple | OfUser) else (value,)
            for name, value in self.environment.items()
        }
        # The kubelet expands `$(NAME)` only in variables that come after NAME. Put the variables from files first.
        files = {name: value for name, value in ours.items() if isinstance(value, FromConfig)}
        ours = {**files, **ours}
        env = [*({"name": name, "value": value} for name, value in ours.items()), *self.variables]
        command = self.command
        container: Manifest = merged({"command": command, "env": env, **self.listening}, self.own)
        self.set_program(container, command)
        return container

    def set_program(self, container: Manifest, command: Sequence[Text]) -> None:
        """Change the command of a container, into which the template is merged, to what the container runs.

        command: the words of `command`. dtj-launch also starts a role's own command, so that its artifacts and exit
        code are handled as for others.
        """
        if self.before_own is None:
            container["command"] = command
            container.pop("args", None)
        elif not self.runs_start_script:
            container["command"] = [*self.before_own, *container["command"]]


def address(pod: str, port: int) -> Text:
    """Return the address of a port of a pod, `host:port`."""
    return (Host(pod), ":", Port(pod, port))


def rendered(text: Text, render: Render) -> str:
    """Return the text of these parts."""
    if isinstance(text, str):
        return text
    return "".join(map(render, text if isinstance(text, tuple) else (text,)))


def in_cluster(job: Job) -> Render:
    """Return how hosts, ports and files are named in a cluster."""

    def render(part: Part) -> str:
        match part:
            case Host(pod):
                return f"{pod}.{job.domain}"
            case Port(number=number):
                return str(number)
            case File(folder, name):
                return f"{folder}/{name}"
            case _:
                return part

    return render

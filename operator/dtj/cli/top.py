"""`dtj top`: the CPU and memory that each replica of a job uses, beside what it may use.

On a cluster, metrics-server measures the use. For a run of this machine, dtj measures the use of its processes.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from dtj.api.errors import Unusable
from dtj.api.quantities import amount
from dtj.api.status import Phase
from dtj.cli.connection import connect
from dtj.cli.job_table import state_text
from dtj.cli.options import ContextOption, JobName, LocalOption, NamespaceOption
from dtj.cli.status_view import pod_checkpoint
from dtj.cli.terminal import FormatOption, columns, output, print_data, print_table
from dtj.client import DistributedTrainingJob, Pod, PodUsage
from dtj.local.runs import Run
from dtj.local.usage import RunUsage, machine_memory
from dtj.plan.job import plan_job
from dtj.plan.pods import trainer_container
from dtj.views.figures import UNKNOWN, figures
from dtj.views.replicas import ranks_of, replica_state

if TYPE_CHECKING:
    from dtj.client import Client


NO_METRICS = (
    "the CPU and memory in use are unknown: the cluster has no metrics-server; install it to see them"
)


def top_view(
    job: DistributedTrainingJob,
    pods: Sequence[Pod],
    usage: Mapping[str, PodUsage] | None,
    machine: Mapping[str, str] | None = None,
) -> RenderableType:
    """Return the table with one line for each replica: its use of resources beside its limits, or else its requests.

    usage: the use by name of the pod; None if the cluster does not measure the use. machine: the resources of the
    machine on which all replicas run without limits.
    """
    resources = _resources(job)
    gpus = job.spec.accelerator.resource_name
    right = ("CPU", "OF", "MEMORY", "OF ", "GPUS")
    table = columns("REPLICA", "RANKS", "NODE", "STATE", *right, right=right)
    for pod in pods:
        used, allowed = (usage or {}).get(pod.name), {**resources.get(pod.name, {}), **(machine or {})}
        table.add_row(
            f"{pod.role}-{pod.index}",
            ranks_of(job, pod),
            pod.node or UNKNOWN,
            Text(*replica_state(pod)),
            _cores(used.cpu if used else None),
            _cores(allowed.get("cpu")),
            _bytes(used.memory if used else None),
            _bytes(allowed.get("memory")),
            str(allowed.get(gpus, UNKNOWN)),
        )
    parts: list[RenderableType] = [_headline(job), table]
    if text := pod_checkpoint(job.status):
        parts.append(Text(text))
    return Group(*parts) if usage is not None else Group(*parts, Text(NO_METRICS, "yellow"))


def _headline(job: DistributedTrainingJob) -> Text:
    line = Text.assemble((job.name, "bold"), ": ", state_text(job))
    if (rate := figures(job.status).get("rate")) and job.status.phase is Phase.RUNNING:
        line.append(f", {rate} over all ranks")
    return line


def _resources(job: DistributedTrainingJob) -> dict[str, dict[str, Any]]:
    """Return the limits, or else the requests, of the container that trains, by name of the pod."""
    resources_by_pod = {}
    for pod in plan_job(job.job).pods:
        resources = trainer_container(pod).get("resources") or {}
        resources_by_pod[pod["metadata"]["name"]] = {
            **(resources.get("requests") or {}),
            **(resources.get("limits") or {}),
        }
    return resources_by_pod


def _cores(quantity: str | int | None) -> str:
    return UNKNOWN if quantity is None else f"{amount(quantity):.2f}"


def _bytes(quantity: str | int | None) -> str:
    if quantity is None:
        return UNKNOWN
    mebibytes = amount(quantity) / Decimal(1 << 20)
    return f"{mebibytes:.0f}Mi" if mebibytes < 10_000 else f"{mebibytes / 1024:.1f}Gi"


app = typer.Typer()
_REFRESH_SECONDS = 5.0
"""Seconds between two tables of --watch. metrics-server measures every 15 s by default."""


@app.command()
def top(
    name: JobName,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh the table every few seconds.")
    ] = False,
    local: LocalOption = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    format_: FormatOption = None,
) -> None:
    """Show the CPU and memory that each replica of a job uses, beside its limits.

    ```
    dtj top fashion-mnist --watch
    dtj top fashion-mnist --local
    ```

    The cluster's metrics-server measures the use. Without it, the table shows only nodes, states and limits. Of a run
    of this machine, dtj measures the use itself, for a second, and shows it beside what the machine has.
    """
    if watch and format_:
        raise Unusable("--watch can't be used with --output", "leave out one of them")
    place = _local(name, namespace) if local else _OnCluster(connect(namespace, context), name)
    if format_:
        print_data({pod: asdict(used) for pod, used in (place.usage() or {}).items()}, format_)
    elif watch and output.is_terminal:
        _show_live(place)
    else:
        print_table(place.view())
        while watch:
            time.sleep(_REFRESH_SECONDS)
            print_table(place.view())


class _UsageSource(Protocol):
    def usage(self) -> Mapping[str, PodUsage] | None: ...

    def view(self) -> RenderableType: ...


class _OnCluster:
    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name

    def usage(self) -> Mapping[str, PodUsage] | None:
        # Read the job first, so that a wrong name raises NotFound: its metrics would only be an empty list.
        self._client.get(self._name)
        return self._client.usage(self._name)

    def view(self) -> RenderableType:
        client, name = self._client, self._name
        return top_view(client.get(name), client.pods(name), client.usage(name))


def _local(name: str, namespace: str | None) -> _UsageSource:
    from dtj.local.runs import Runs, home

    return LocalUse(Runs(home()).find(name, namespace))


def _show_live(place: _UsageSource) -> None:
    from rich.live import Live

    with Live(console=output, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            live.update(place.view(), refresh=True)
            time.sleep(_REFRESH_SECONDS)


class LocalUse:
    """The CPU and memory that the replicas of a local run use, on average since the last measurement."""

    def __init__(self, run: Run) -> None:
        """Take the first measurement."""
        self._run = run
        self._usage = RunUsage(run)

    def usage(self) -> dict[str, PodUsage]:
        """Return the use by name of the pod. Leave out a replica without a process."""
        return {
            f"{self._run.name}-{replica}": PodUsage(f"{used.cores * 1000:.0f}m", str(used.memory))
            for replica, used in self._usage.look().items()
        }

    def view(self) -> RenderableType:
        """Return the table, with the processors and the memory of this machine as the limits of each replica."""
        usage = self.usage()
        job = DistributedTrainingJob.from_cluster(self._run.manifest)
        machine = {"cpu": str(os.cpu_count()), "memory": str(machine_memory())}
        return top_view(job, _pods(job, usage), usage, machine)


def _pods(job: DistributedTrainingJob, usage: Mapping[str, PodUsage]) -> list[Pod]:
    """Return the replicas as pods: Running with a process, else Ended. A run does not record how replicas end."""

    def pod(name: str, role: str, index: int) -> Pod:
        phase = "Running" if name in usage else "Ended"
        return Pod(
            name, "", role, index, job.status.attempt, socket.gethostname(), phase,
            ready=True, deleting=False, disrupted=False, exit_code=None, signal=None, reason="", message="",
        )  # fmt: skip

    return [pod(each.name, each.role, each.index) for each in plan_job(job.job).shape.replicas]

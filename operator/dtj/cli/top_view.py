"""The table of `dtj top`. All functions are pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from dtj.api.quantities import amount
from dtj.api.status import Phase
from dtj.cli.job_table import state_text
from dtj.cli.progress import UNKNOWN, figures
from dtj.cli.replica_state import replica_state
from dtj.cli.status_view import pod_checkpoint, ranks_of
from dtj.cli.tables import columns
from dtj.plan.job import plan_job
from dtj.plan.pods import trainer_container

if TYPE_CHECKING:
    from dtj.client import DistributedTrainingJob, Pod, PodUsage

NO_METRICS = (
    "the cluster has no metrics-server, which measures the CPU and memory in use: install it to see them"
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
            replica_state(pod),
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

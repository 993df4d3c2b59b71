"""What `dtj top --local` shows: the replicas of a run of this machine as pods on a node."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from rich.console import RenderableType

from dtj.cli.top_view import top_view
from dtj.client import DistributedTrainingJob, Pod, PodUsage
from dtj.local.runs import Run
from dtj.local.usage import RunUsage, machine_memory
from dtj.plan.job import plan_job


class LocalUse:
    """The use of a run, from one look to the next."""

    def __init__(self, run: Run) -> None:
        """Look for the first time."""
        self._run = run
        self._usage = RunUsage(run)

    def usage(self) -> dict[str, PodUsage]:
        """Return the use by name of the pod; none of a replica without a process."""
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
    """Return the replicas as pods: one that has a process runs. The run does not keep how the others ended."""

    def pod(name: str, role: str, index: int) -> Pod:
        phase = "Running" if name in usage else "Ended"
        return Pod(
            name, "", role, index, job.status.attempt, socket.gethostname(), phase,
            ready=True, deleting=False, disrupted=False, exit_code=None, signal=None, reason="", message="",
        )  # fmt: skip

    return [pod(each.name, each.role, each.index) for each in plan_job(job.job).replicas]

"""What a plan is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dtj.api.identity import LABEL_ATTEMPT
from dtj.api.job import Manifest


@dataclass(frozen=True)
class Plan:
    """The objects of one attempt of a job."""

    service: Manifest
    config: Manifest
    ssh_secret: str | None
    """Name of the Secret with the job's ssh key, where the strategy needs one; its content is made once."""
    stages: tuple[tuple[Manifest, ...], ...]
    """Pods by stage: those of a stage are made when all of the stages before are ready."""
    decisive: tuple[str, ...]
    """Names of the pods whose success is the job's."""
    reporter: str
    """Name of the pod that runs rank 0 and serves /progress."""
    evaluator: str | None = None
    """Name of the pod that measures checkpoints beside the training, where there is one: the job does not need it."""
    restarts_with: Mapping[str, frozenset[str]] | None = None
    """The pods that are started again when one is lost, by its name; None: all of them, whichever it is."""

    @property
    def pods(self) -> tuple[Manifest, ...]:
        """Every pod of the attempt."""
        return tuple(pod for stage in self.stages for pod in stage)

    @property
    def attempts(self) -> dict[str, int]:
        """In which attempt each pod is to be, by its name."""
        return {pod["metadata"]["name"]: int(pod["metadata"]["labels"][LABEL_ATTEMPT]) for pod in self.pods}

"""`spec.runPolicy.schedulingPolicy`: how the pods of a job get their nodes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from dtj.api.base import OBJECT_NAME, ApiModel, Number


class Gang(StrEnum):
    """Who places the pods of a job all together or not at all."""

    NONE = "None"
    COSCHEDULING = "Coscheduling"
    VOLCANO = "Volcano"
    KUEUE = "Kueue"


class SchedulingPolicy(ApiModel):
    """How the pods of a job get their nodes, as Kubeflow's `runPolicy.schedulingPolicy`."""

    gang: Gang = Gang.NONE
    """Who places the pods all together or not at all. None: the cluster's scheduler places them one by one.
    Coscheduling: a PodGroup of scheduler-plugins. Volcano: a PodGroup of Volcano. Kueue: a pod group in a queue of
    Kueue."""
    queue: Annotated[str, Field(pattern=OBJECT_NAME, max_length=63)] | None = None
    """The LocalQueue of Kueue, in the job's namespace, which Kueue needs; or the Queue of Volcano, whose default is
    default."""
    priority_class_name: Annotated[str, Field(pattern=OBJECT_NAME, max_length=253)] | None = None
    """PriorityClass of all pods, unless a template names another; and of Volcano's PodGroup."""
    min_available: Annotated[int, Field(ge=1), Number] | None = None
    """With Coscheduling and Volcano: how many pods are enough to begin with. Default: all that the job begins with,
    the workers and the ps."""

"""The example with TensorFlow parameter servers, its pods and its checkpoints."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tests.cluster import jobs
from tests.cluster.jobs import PS_EXAMPLE, Job, Manifest, until

MODES = ("Asynchronous", "Synchronous")


def example(
    name: str, updates: str = "Asynchronous", *args: str, exports: bool = False, **spec: Any
) -> Manifest:
    """The example under another name, on the local object store. `exports`: see `jobs.example`."""
    job = jobs.example(name, PS_EXAMPLE, exports=exports)
    job["spec"]["parameterServer"]["updates"] = updates
    job["spec"]["args"] += args
    job["spec"].update(spec)
    return job


def by_name(job: Job) -> dict[str, Manifest]:
    """The job's pods by role and index."""
    return {pod["metadata"]["name"].removeprefix(f"{job.name}-"): pod for pod in job.pods()}


def wait_for_checkpoint(job: Job, made_since: datetime | None = None) -> int:
    """Step of one in the bucket, once all replicas run; one that an attempt restored was made before it."""

    def there() -> int | None:
        status = job.status
        assert status.get("phase") not in ("Succeeded", "Failed"), job.story()
        saved = (status.get("artifacts") or {}).get("checkpoint")
        restarting = job.condition("Restarting").get("status") == "True"
        if not saved or status["phase"] != "Running" or restarting:
            return None
        new = made_since is None or datetime.fromisoformat(saved["time"]) >= made_since
        return int(saved["step"]) if new else None

    return until(f"{job.name} to have a checkpoint made since {made_since}", there, 180, every=0.5)

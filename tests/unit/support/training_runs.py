"""Lines of metrics.jsonl, as the programs write them, of trainings at constant speed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from dtj.api.status import JobStatus
from dtj.report.run import Run, read_metrics

BEGAN = datetime(2026, 11, 21, 10, 0, tzinfo=UTC).timestamp()
BATCH = 128


def line(kind: str, at: float, step: int, **values: Any) -> dict[str, Any]:
    time = datetime.fromtimestamp(BEGAN + at, UTC).isoformat(timespec="microseconds")
    return {"kind": kind, "time": time, "attempt": 1, "worldSize": 1, "step": step} | values


def job_of(strategy: str, **roles: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of a job with these `replicaSpecs`."""
    return {"spec": {"strategy": strategy, "replicaSpecs": roles}}


def content(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def even_run(
    name: str,
    steps_per_second: float,
    *,
    steps: int = 1000,
    examples_a_step: int = BATCH,
    accuracy: float | None = None,
    total_seconds: float | None = None,
    ended: bool = True,
    done: int | None = None,
    step_times: Any = None,
    of_train: dict[str, Any] | None = None,
    job: dict[str, Any] | None = None,
    **facts: Any,
) -> Run:
    """Return a run whose first step ends after 10 s, followed by ten intervals at `steps_per_second`.

    of_train: more fields of each of its 11 rows of training. job: the manifest of the job.
    """
    always = {"worldSize": facts.get("workers", 1)}
    start = {"model": "cnn", "batchSize": BATCH, "data": "s3://data/it", "trainingExamples": 50000} | facts
    lines = [line("start", 0, 0, examples=0, totalSteps=steps, **always, **start)]
    last = steps if done is None else done
    for step in [1, *(1 + (last - 1) * part // 10 for part in range(1, 11))]:
        at = 10 + (step - 1) / steps_per_second
        lines.append(
            line("train", at, step, examples=step * examples_a_step, loss=1 / step, **always)
            | (of_train or {})
        )
    if accuracy is not None:
        lines.append(line("test", at, last, accuracy=accuracy, **always))
    if ended:
        lines.append(line("end", at, last, steps=last, stepTimes=step_times, **always))
    status = None
    if total_seconds is not None:
        times = [datetime.fromtimestamp(BEGAN + at, UTC).isoformat() for at in (-20, total_seconds - 20)]
        status = JobStatus(start_time=times[0], completion_time=times[1], attempt=1)
    return Run(name, read_metrics(content(lines)).rows, job=job, status=status)

"""What a plan asks for, as far as the status of its job depends on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dtj.api.identity import LABEL_ROLE
from dtj.api.job import Job
from dtj.api.spec import ParameterServer
from dtj.plan.model import Plan
from dtj.plan.pods import artifacts_uri
from dtj.status.delegated import with_launcher
from dtj.status.observed import Expected
from dtj.status.pods import PodView


def expectation(job: Job, plan: Plan, pods: Sequence[PodView]) -> Expected:
    """What is expected of the job's pods. pods: those that are there."""
    expected = Expected(
        replicas=Counter(pod["metadata"]["labels"][LABEL_ROLE] for pod in plan.pods),
        stages=plan.stage_names,
        decisive=plan.decisive,
        reporter=plan.reporter,
        artifacts_uri=artifacts_uri(job),
        attempts=plan.attempts,
        restarts_with=plan.restarts_with,
        evaluator=plan.evaluator,
        gang=job.spec.run_policy.scheduling_policy.gang,
        queue=job.spec.run_policy.scheduling_policy.queue,
        whole=plan.whole,
        evaluator_timeout=(job.spec.parameter_server or ParameterServer()).evaluator_timeout_seconds,
    )
    return with_launcher(expected, pods, max(job.status.attempt, 1)) if plan.mpijob else expected

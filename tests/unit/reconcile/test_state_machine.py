"""Convergence: from any state of a job, repeated passes converge and then change nothing.

Every day's examples are few and always the same. To look for more, DTJ_EXAMPLES says how many, each time other ones:
`DTJ_EXAMPLES=20000 python -m pytest tests/unit/reconcile/test_state_machine.py --timeout=0`.
"""

from __future__ import annotations

import pytest

from dtj.api.identity import KIND
from dtj.api.job import Manifest
from tests.unit.support.job_machine import MORE_EXAMPLES, Jobs, settings_of, small_specs


def test_no_attempt_begins_beside_pods_that_a_new_operator_has_not_seen() -> None:
    """Found by the machine: a worker is lost, the job grows, and an operator dies when that is stored."""
    jobs = Jobs()
    policy = {"backoffLimit": 3, "cleanPodPolicy": "Running", "suspend": False}
    jobs.begin({"runPolicy": policy, "replicaSpecs": {"worker": {"replicas": 1}}}, steps=5, failures=0)
    jobs.delete_a_pod(0)
    jobs.scale_the_job("worker", 2)
    jobs.let_another_operator_take_over_within_a_pass(3, "before", 0, KIND, passes=0)
    jobs.let_another_operator_take_over(9, "Pod")
    jobs.make_a_pass_with_what_the_cache_has()
    jobs.teardown()


def torch_distributed(spec: Manifest) -> Manifest:
    """Return the spec for strategy TorchDistributed."""
    replicas = spec["replicaSpecs"]["worker"]["replicas"]
    return {**spec, "strategy": "TorchDistributed", "replicaSpecs": {"worker": {"replicas": replicas + 1}}}


# Of ten seconds' work: a busy machine takes longer than a test may.
TestJobs = pytest.mark.timeout(0 if MORE_EXAMPLES else 600)(Jobs.TestCase)
TestJobs.settings = settings_of(100)


class TorchJobs(Jobs):
    """Jobs whose every worker decides."""

    specs = small_specs().map(torch_distributed)


TestTorchJobs = pytest.mark.timeout(0 if MORE_EXAMPLES else 600)(TorchJobs.TestCase)
TestTorchJobs.settings = settings_of(30)

"""The plan function of each strategy, and the registration of a strategy."""

from __future__ import annotations

from collections.abc import Callable

from dtj.api.horovod import HOROVOD
from dtj.api.job import Job
from dtj.api.parameter_server import PARAMETER_SERVER
from dtj.api.strategies import RULES
from dtj.api.strategy import StrategyRules
from dtj.api.torch_distributed import TORCH_DISTRIBUTED
from dtj.plan.horovod import horovod_plan
from dtj.plan.model import Plan
from dtj.plan.mpijob import mpijob_plan
from dtj.plan.parameter_server import parameter_server_plan
from dtj.plan.torch_distributed import torch_distributed_plan

PLANS: dict[str, Callable[[Job], Plan]] = {
    HOROVOD.name: lambda job: mpijob_plan(job) if job.spec.by_mpi_operator else horovod_plan(job),
    PARAMETER_SERVER.name: parameter_server_plan,
    TORCH_DISTRIBUTED.name: torch_distributed_plan,
}
"""The function that plans a job without faults, by the name of the strategy."""


def register(rules: StrategyRules, plan: Callable[[Job], Plan]) -> None:
    """Register a strategy. Generic code derives all behavior from its rules and its plan."""
    RULES[rules.name], PLANS[rules.name] = rules, plan

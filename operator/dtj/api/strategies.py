"""The registry of strategies."""

from __future__ import annotations

from enum import StrEnum

from dtj.api.horovod import HOROVOD
from dtj.api.parameter_server import PARAMETER_SERVER
from dtj.api.spec import STRATEGIES, JobSpec
from dtj.api.strategy import StrategyRules
from dtj.api.torch_distributed import TORCH_DISTRIBUTED

RULES: dict[str, StrategyRules] = STRATEGIES
"""The rules of each strategy, by its name in `spec.strategy`. `dtj.plan.job` has the plan of each strategy."""

RULES.update({rules.name: rules for rules in (HOROVOD, PARAMETER_SERVER, TORCH_DISTRIBUTED)})


def rules_of(spec: JobSpec) -> StrategyRules:
    """Return the rules of a spec's strategy, for the form of the job."""
    rules = RULES[spec.strategy]
    return rules.form(spec) if rules.form is not None else rules


class Strategy(StrEnum):
    """The names of dtj's own strategies, for programs that use the SDK."""

    HOROVOD = HOROVOD.name
    PARAMETER_SERVER = PARAMETER_SERVER.name
    TORCH_DISTRIBUTED = TORCH_DISTRIBUTED.name

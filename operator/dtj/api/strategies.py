"""The registry of strategies."""

from __future__ import annotations

from enum import StrEnum

from dtj.api.horovod import HOROVOD
from dtj.api.parameter_server import PARAMETER_SERVER
from dtj.api.strategy import StrategyRules
from dtj.api.torch_distributed import TORCH_DISTRIBUTED

RULES: dict[str, StrategyRules] = {
    rules.name: rules for rules in (HOROVOD, PARAMETER_SERVER, TORCH_DISTRIBUTED)
}
"""The rules of each strategy, by the name that `spec.strategy` gives. `dtj.plan.strategies` has the plan of each."""


class Strategy(StrEnum):
    """The names of dtj's own strategies, for programs that use the SDK."""

    HOROVOD = HOROVOD.name
    PARAMETER_SERVER = PARAMETER_SERVER.name
    TORCH_DISTRIBUTED = TORCH_DISTRIBUTED.name

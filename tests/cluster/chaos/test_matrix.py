"""Every fault on a training of each strategy, at a random moment."""

from __future__ import annotations

import pytest

from tests.cluster.chaos.faults import FAULTS, Fault
from tests.cluster.chaos.trial import SEED, Trials

pytestmark = [pytest.mark.cluster, pytest.mark.matrix]


def _cases() -> list[object]:
    return [
        pytest.param(
            fault,
            strategy,
            id=f"{fault.name}-{strategy}",
            marks=[
                *([pytest.mark.alone] if fault.alone else []),
                *([] if fault.in_make_test else [pytest.mark.chaos]),
            ],
        )
        for fault in FAULTS
        for strategy in fault.strategies
    ]


@pytest.mark.parametrize(("fault", "strategy"), _cases())
def test_a_training_survives(trials: Trials, fault: Fault, strategy: str) -> None:
    print(f"DTJ_SEED={SEED}")
    cost = trials.of(fault, strategy)
    print(cost)

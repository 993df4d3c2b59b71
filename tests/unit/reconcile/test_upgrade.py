"""The operator goes on with the jobs of an earlier version as that version would have; see tests/upgrade.py."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path

import pytest

from dtj.api.identity import KIND
from dtj.api.status import Phase
from tests import upgrade

STATES = json.loads(gzip.decompress((Path(__file__).parent / "states-93ec95e8.json.gz").read_bytes()))
"""Jobs of three strategies in eleven states each, as 93ec95e8 left them and went on with them."""


def test_every_state_of_every_strategy_is_there() -> None:
    assert STATES.keys() == {
        f"{strategy}, {state}" for strategy in upgrade.STRATEGIES for state in upgrade.REACH
    }
    jobs = [there for stored in STATES.values() for name, there in stored["objects"] if name[0] == KIND]
    assert {job["status"]["phase"] for job in jobs} == {*Phase}


@pytest.mark.parametrize("strategy", upgrade.STRATEGIES)
async def test_no_pod_is_touched_and_no_attempt_begins_by_an_upgrade(strategy: str) -> None:
    states = {name: stored for name, stored in STATES.items() if name.startswith(f"{strategy},")}
    assert await upgrade.differences(states) == []


async def test_a_pod_that_an_upgrade_takes_away_is_told() -> None:
    stored = copy.deepcopy(STATES["TorchDistributed, running"])
    stored["objects"] = [[name, there] for name, there in stored["objects"] if name[2] != "mnist-worker-1"]
    told = await upgrade.differences({"TorchDistributed, running": stored})
    assert any("meanwhile: attempt is 2, and was 1" in line for line in told)
    assert any("meanwhile: kept is" in line for line in told)

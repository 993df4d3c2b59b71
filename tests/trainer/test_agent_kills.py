"""Agents and programs are killed at drawn moments, against a real S3 server, in each of six ways of saving.

What holds after each kill: every manifest in the bucket is true and its snapshot whole. The next attempt restores at
least the newest snapshot. Where the agent lives on, it uploads what was whole at the program's death. No process is
left, the log is complete, and the termination message says what happened.

DTJ_TEST_KILLS: the number of kills, at moments that differ from run to run. DTJ_SEED: repeats a run.
DTJ_TEST_KILL_CHAINS: the only chains to run.
"""

from __future__ import annotations

import os
import secrets
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.trainer.conftest import BUCKET, ObjectStore
from tests.trainer.kill_chains import Chain
from tests.trainer.kill_plans import KINDS, chains
from tests.trainer.saving_program import WAYS

KILLS = int(os.environ.get("DTJ_TEST_KILLS", "6"))
SEED = os.environ.get("DTJ_SEED") or (secrets.token_hex(4) if "DTJ_TEST_KILLS" in os.environ else "20261121")
ONLY = os.environ.get("DTJ_TEST_KILL_CHAINS", "").split()
AT_ONCE = 6
"""Chains mostly wait."""


def table(kinds: Mapping[tuple[str, str], int]) -> str:
    """The number of kills of each kind by the way of saving."""
    lines = [f"{'':16}" + "".join(f"{kind:>9}" for kind in KINDS)]
    lines += [f"{way:16}" + "".join(f"{kinds[way, kind]:9}" for kind in KINDS) for way in WAYS]
    return "\n".join(lines)


def summary(done: Sequence[Chain]) -> str:
    kills = [(chain.plan.way, kill) for chain in done for kill in chain.plan.kills]
    moments = Counter(kill.moment for _, kill in kills)
    lost = sum((chain.lost_saves for chain in done), Counter[str]())
    return "\n".join(
        [
            f"{len(kills)} kills in {len(done)} chains, DTJ_SEED={SEED}",
            table(Counter((way, kill.killed) for way, kill in kills)),
            "moments: " + ", ".join(f"{moment} {many}" for moment, many in sorted(moments.items())),
            f"saves that no snapshot has, by what was killed: {dict(lost)}",
            f"chains with faults: {[chain.plan.number for chain in done if chain.faults]}",
        ]
    )


@pytest.mark.timeout(600 + 60 * KILLS)
def test_no_kill_tears_or_loses_a_checkpoint(object_store: ObjectStore, tmp_path: Path) -> None:
    drawn = [plan for plan in chains(SEED, KILLS) if not ONLY or str(plan.number) in ONLY]
    made = []
    for plan in drawn:
        folder = tmp_path / str(plan.number)
        folder.mkdir()
        uri = f"s3://{BUCKET}/kills-{uuid.uuid4().hex[:12]}"
        made.append(Chain(plan, uri, object_store.environment, folder))

    def run(chain: Chain) -> None:
        chain.run()
        print("\n".join([*chain.told, *chain.faults]), flush=True)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(run, made))

    print(summary(made))
    assert [fault for chain in made for fault in chain.faults] == []

"""Which pods may restart their ranks in place, and what they are told."""

from __future__ import annotations

from typing import Any

import pytest

from dtj.api.identity import LABEL_ROUNDS
from dtj.api.job import Manifest
from dtj.api.validation import notes
from dtj.plan.job import plan_job
from dtj.plan.pods import trainer_container
from dtj_trainer.contract import ENV_POD, PodInfo, Rounds
from tests.unit.support.jobs import job

IN_PLACE = {"restartStrategy": "InPlaceRestart"}
RECREATE = {"restartStrategy": "Recreate"}
OWN = {
    "template": {"spec": {"containers": [{"name": "trainer", "command": ["mpirun", "python", "train.py"]}]}}
}
TORCH = {"strategy": "TorchDistributed"}
PS = {"strategy": "ParameterServer", "replicaSpecs": {"worker": {"replicas": 2}, "ps": {}}}


def told(policy: Manifest, status: Manifest | None = None, **spec: Any) -> set[Rounds | None]:
    """What the pods of a job are told, which their labels say too."""
    plan = plan_job(job(status=status, runPolicy=policy, **spec))
    found = set()
    for pod in map(plan.pod, plan.shape.replicas):
        env = {variable["name"]: variable.get("value") for variable in trainer_container(pod)["env"]}
        info = PodInfo.from_json(env[ENV_POD])
        label = f"{info.rounds.before}-{info.rounds.limit}" if info.rounds else None
        assert pod["metadata"]["labels"].get(LABEL_ROUNDS) == label
        found.add(info.rounds)
    return found


@pytest.mark.parametrize("spec", [{}, TORCH, TORCH | {"command": ["torchrun", "train.py"]}])
def test_all_pods_are_told_of_restarts_limit_and_spares(spec: Manifest) -> None:
    restarts = {"attempt": 4, "restarts": {"application": 2, "inPlace": 1, "infrastructure": 5}}

    assert told(IN_PLACE, **spec) == {Rounds(0, 3, spare=True)}
    assert told(IN_PLACE | {"backoffLimit": 7, "warmSpare": "Never"}, restarts, **spec) == {
        Rounds(2, 7, spare=False)
    }
    assert told(IN_PLACE | {"warmSpare": "Auto"}, **spec) == {Rounds(0, 3, spare=True)}


@pytest.mark.parametrize("spec", [{}, TORCH])
def test_ranks_restart_in_place_by_default(spec: Manifest) -> None:
    assert told({}, **spec) == told(IN_PLACE, **spec) == {Rounds(0, 3, spare=True)}
    assert told({"warmSpare": "Never"}, **spec) == {Rounds(0, 3, spare=False)}
    assert told(RECREATE, **spec) == told(RECREATE | {"warmSpare": "Auto"}, **spec) == {None}
    assert list(notes(job(runPolicy=RECREATE, **spec))) == []


@pytest.mark.parametrize(
    "spec",
    [
        PS,
        {"horovod": {"launcher": "MPIJob"}},
        {"replicaSpecs": {"worker": {"replicas": 2}, "launcher": OWN}},
        {"replicaSpecs": {"worker": {"replicas": 2} | OWN}},
    ],
    ids=["ParameterServer", "MPIJob", "own launcher", "own worker"],
)
def test_jobs_without_an_agent_beside_each_rank_are_told_that_it_has_no_effect(spec: Manifest) -> None:
    assert told(IN_PLACE, **spec) == told({}, **spec) == {None}
    assert list(notes(job(**spec))) == []
    (note,) = notes(job(runPolicy=IN_PLACE, **spec))
    assert note.startswith("runPolicy.restartStrategy: InPlaceRestart has no effect")


def test_jobs_that_restart_in_place_have_no_note() -> None:
    assert list(notes(job(runPolicy=IN_PLACE))) == []
    assert list(notes(job(runPolicy=IN_PLACE, **TORCH))) == []

"""The contract of operator and trainer: PodInfo, the variable of the pod, and the number of a rank.

- a PodInfo comes back from JSON as it was, whatever its fields
- a text that can't be read names the field
- fields of a later release are ignored
- of the pods that run ranks, one uploads more than its log
- the rank is that of whatever started the ranks
"""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtj_trainer.contract import PodInfo, Rounds, rank_of

pods = st.builds(
    PodInfo,
    role=st.text(),
    index=st.integers(0, 9999),
    slots=st.integers(0, 16),
    part=st.sampled_from(["primary", "evaluator", "other"]),
    restores=st.booleans(),
    reads_data=st.booleans(),
    rounds=st.none() | st.builds(Rounds, st.integers(0, 100), st.integers(0, 100)),
)


@given(pods)
def test_a_pod_comes_back_as_it_was(pod: PodInfo) -> None:
    assert PodInfo.from_json(pod.to_json()) == pod


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("worker-1", "Expecting value"),
        ("[]", "not a JSON object"),
        ('{"index": 0}', "role is missing"),
        ('{"role": "worker"}', "index is missing"),
        ('{"role": 1, "index": 0}', "role must be a string, not 1"),
        ('{"role": "worker", "index": true}', "index must be a whole number of at least 0, not true"),
        ('{"role": "worker", "index": "$(DTJ_INDEX)"}', "index must be a whole number of at least 0, not "),
        ('{"role": "worker", "index": 0, "slots": -2}', "slots must be a whole number of at least 0, not -2"),
        (
            '{"role": "worker", "index": 0, "part": "all"}',
            'part must be one of primary, evaluator, other, not "all"',
        ),
        ('{"role": "worker", "index": 0, "part": []}', "part must be one of primary, evaluator, other"),
        ('{"role": "worker", "index": 0, "restores": "yes"}', 'restores must be true or false, not "yes"'),
        ('{"role": "worker", "index": 0, "readsData": 1}', "readsData must be true or false, not 1"),
        ('{"role": "worker", "index": 0, "peers": []}', "peers must be an object, not []"),
        ('{"role": "worker", "index": 0, "rounds": 3}', "rounds must be an object, not 3"),
        ('{"role": "worker", "index": 0, "rounds": {"before": 0}}', "rounds.limit is missing"),
        (
            '{"role": "worker", "index": 0, "rounds": {"before": -1, "limit": 6}}',
            "rounds.before must be a whole number of at least 0, not -1",
        ),
        (
            '{"role": "worker", "index": 0, "peers": {"host": "a", "pods": {}}}',
            'peers.host must be a host name with {} for the pod, not "a"',
        ),
        (
            '{"role": "worker", "index": 0, "peers": {"host": "{}", "pods": {"worker": "2"}}}',
            'peers.pods must be an object with the number of pods of each role, not {"worker": "2"}',
        ),
    ],
)
def test_what_can_not_be_read_is_named(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(fault)}"):
        PodInfo.from_json(text)


def test_a_pod_that_only_has_its_place_restores_uploads_and_reads_nothing() -> None:
    text = json.dumps({"role": "launcher", "index": 0, "ofALaterRelease": [1]})

    assert PodInfo.from_json(text) == PodInfo(role="launcher", index=0)
    assert PodInfo(role="launcher", index=0).ranks == range(0)


def test_of_pods_with_ranks_only_that_of_rank_0_takes_its_part() -> None:
    workers = [PodInfo(role="worker", index=index, slots=2, part="primary") for index in range(3)]

    assert [worker.uploads for worker in workers] == ["primary", "other", "other"]
    assert [list(worker.ranks) for worker in workers] == [[0, 1], [2, 3], [4, 5]]
    assert PodInfo(role="evaluator", index=1, part="evaluator").uploads == "evaluator"


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_RANK": "2", "PMIX_RANK": "2", "RANK": "7"}, 2),
        ({"PMI_RANK": "3"}, 3),
        ({"HOROVOD_RANK": "0"}, 0),
        ({"RANK": "5"}, 5),
        ({"OMPI_COMM_WORLD_RANK": "", "RANK": "1"}, 1),
        ({"RANK": "first"}, None),
    ],
)
def test_the_rank_is_of_whatever_started_the_ranks(environment: dict[str, str], rank: int | None) -> None:
    assert rank_of(environment) == rank

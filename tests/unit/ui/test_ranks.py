"""What `dtj ui` makes of the samples and the stacks of ranks, whatever their number and content."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtj.ui.outliers import LATELY_SECONDS, outliers_of
from dtj.ui.stacks import MOST_BYTES, MOST_FILES, StackKey, StacksAnswer, keys_to_read, stacks_of
from dtj.ui.usage import RankUsage, usage_of
from dtj.ui.utilisation import MOST_CELLS, MOST_DRAWN, MOST_ROWS, Question, UtilisationAnswer, utilisation_of
from tests.unit.support.training_runs import content

START = datetime(2026, 11, 21, 12, tzinfo=UTC)
QUESTION = Question(seconds=LATELY_SECONDS)


def line(seconds: float, name: str, **figures: Any) -> dict[str, Any]:
    """A line whose interval of 15 s ends so many seconds after START."""
    time = (START + timedelta(seconds=seconds)).isoformat()
    return {"time": time, "pod": f"worker-{name}", "seconds": 15.0, "programs": {name: figures}}


def samples(ranks: Mapping[str, float], ends: Iterable[int] = range(15, 61, 15)) -> Iterator[dict[str, Any]]:
    """Lines of ranks, each of which uses so many processors all the time."""
    for name, cores in ranks.items():
        for end in ends:
            yield line(end, name, cpuCores=cores)


def used(*attempts: Iterable[Mapping[str, Any]]) -> RankUsage:
    return usage_of(
        (f"utilisation/attempt-{number}/worker-0.jsonl", content([*lines]))
        for number, lines in enumerate(attempts, 1)
    )


def answered(usage: RankUsage, question: Question = QUESTION) -> UtilisationAnswer:
    return utilisation_of(usage, question, files_unread=0, bytes_read=0)


def test_of_five_thousand_ranks_the_one_that_hangs_is_shown() -> None:
    usage = used(samples({str(rank): 0.01 if rank == 4321 else 1.9 for rank in range(5000)}, (15, 30)))
    found = answered(usage)
    assert [row.rank for row in found.rows if row.remark] == ["4321"]
    assert (len(found.rows), found.rows_left_out) == (MOST_ROWS, 5000 - MOST_ROWS)
    assert [len(each.curves) for each in found.measures] == [MOST_DRAWN]
    assert found.curves_left_out == 5000 - MOST_DRAWN
    assert found.findings == ["rank 4321: 0.01 processors, the others 1.90 (it may hang or wait)"]
    assert len(found.model_dump_json()) < 100_000


def test_a_long_run_has_few_points_and_cells() -> None:
    found = answered(used(samples({"0": 1.0}, range(15, 150_000, 15))))
    assert len(found.rows[0].cores) == MOST_CELLS
    assert len(found.measures[0].curves[0].times) <= 240
    assert set(found.rows[0].cores) == {1.0}


@pytest.mark.parametrize(
    ("ranks", "kinds"),
    [
        ({"0": 1.9, "1": 0.1, "2": 1.8}, {"1": "idle"}),
        ({"0": 0.1, "1": 2.0, "2": 0.1}, {"1": "busy"}),
        ({"0": 1.9, "1": 0.1}, {"1": "idle"}),
        ({"0": 1.9, "1": 1.0, "2": 1.8}, {}),
        ({"0": 0.01, "1": 0.1, "2": 0.02}, {}),
        ({"0": 1.9, "1": 1.9, "ps-0": 0.1, "ps-1": 0.1, "launcher-0": 0.0}, {}),
    ],
)
def test_which_ranks_differ(ranks: dict[str, float], kinds: dict[str, str]) -> None:
    assert outliers_of(used(samples(ranks)), {}, LATELY_SECONDS).kinds == kinds


def test_many_ranks_that_differ_are_one_sentence() -> None:
    ranks = {str(rank): 0.1 if rank < 8 else 2.0 for rank in range(30)}
    (sentence,) = outliers_of(used(samples(ranks)), {}, LATELY_SECONDS).sentences
    assert sentence.startswith("rank 0, rank 1, rank 2, rank 3, rank 4 and 3 more: 0.10 processors")


def test_a_rank_without_samples_is_missing() -> None:
    ends = range(15, 1000, 15)
    usage = used([*samples({"0": 1.0, "1": 1.0}, ends), *samples({"2": 1.0}, range(15, 500, 15))])
    found = answered(usage)
    assert [row.rank for row in found.rows if row.remark == "missing"] == ["2"]
    assert found.findings == ["rank 2: last seen at 12:08:15 UTC, the others until 12:16:30 UTC"]
    assert found.rows[2].present[-1] is False


def test_a_rank_that_the_newest_attempt_does_not_have_is_not_missing() -> None:
    usage = used(samples({"0": 1.0, "1": 1.0, "2": 1.0}), samples({"0": 1.0, "1": 1.0}, range(600, 2000, 15)))
    assert outliers_of(usage, {}, LATELY_SECONDS).kinds == {}
    assert [(each.attempt, each.time - START.timestamp()) for each in answered(usage).attempts] == [
        (1, 0),
        (2, 585),
    ]


def test_what_a_rank_did_before_counts_if_the_training_succeeded() -> None:
    ranks = [*samples({"0": 1.9, "1": 1.9, "2": 1.9}, range(15, 900, 15))]
    ranks += [
        *samples({"0": 1.9}, range(900, 1000, 15)),
        *samples({"1": 0.0, "2": 0.0}, range(900, 1000, 15)),
    ]
    assert outliers_of(used(ranks), {}, LATELY_SECONDS).kinds == {"0": "busy"}
    assert outliers_of(used(ranks), {}, None).kinds == {}


def test_ranks_with_long_steps_are_slow() -> None:
    usage = used(samples({str(rank): 1.0 for rank in range(4)}))
    found = answered(usage, Question(steps={"0": 0.2, "1": 0.21, "2": 0.5, "3": 0.2}))
    assert found.findings == ["rank 2: a step takes 0.5 s, of the others 0.2 s"]
    assert found.rows[2].remark == "slow"


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.sampled_from(["time", "pod", "seconds", "programs", "gpus"])


@settings(max_examples=40)
@given(st.lists(st.dictionaries(FIELDS, JSON, max_size=5), max_size=5), JSON)
def test_a_line_of_anything_breaks_nothing(fields: list[dict[str, Any]], figure: Any) -> None:
    good = line(15, "0", cpuCores=figure, rssBytes=figure, readBytes=figure)
    lines = [good | {"gpus": {"0": {"utilisation": figure}}} | each for each in fields]
    usage = used(lines)
    json.loads(answered(usage).model_dump_json(by_alias=True))
    assert usage.left_out_lines <= len(lines)


def test_what_is_no_sample_is_counted_and_long_names_are_cut() -> None:
    lines = [line(15, "x" * 1000, cpuCores=1), {"pod": "a"}, line(15, "0") | {"time": "soon"}]
    usage = used(lines, [line(15, "0") | {"seconds": 1e9}])
    assert usage.left_out_lines == 3
    assert [*usage.stays] == ["x" * 80]
    assert usage_of([("utilisation/other.jsonl", content(lines))]).stays == {}


def read(text: str, key: str = "logs/attempt-1/stacks-0-1.txt") -> StacksAnswer:
    parsed = StackKey.of(key)
    assert parsed
    return stacks_of([(parsed, text.encode())], 0)


PYTHON = (
    '== process 7: x\nProcess 7: x\nPython v3\n\nThread 7 (idle): "MainThread"\n    {}\n    main (a.py:3)\n'
)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (PYTHON.format("wait (threading.py:3)"), "wait (threading.py:3)"),
        (
            PYTHON.format("_poll (torch/distributed/run.py:3)") + PYTHON.format("load (b.py:1)"),
            "load (b.py:1)",
        ),
        (PYTHON.format("f (built-in)"), "f (built-in)"),
        (
            "== process 7: x\nno Python stack: none\nthread 7 (mpirun): S (sleeping), in futex_wait\n",
            "thread 7 (mpirun): S (sleeping), in futex_wait",
        ),
        ("", None),
        ("== process 7: x\nThread", None),
    ],
)
def test_where_a_rank_stands(text: str, where: str | None) -> None:
    (dump,) = read(text).dumps
    assert (dump.files[0].where, dump.groups[0].ranks) == (where, ["0"])


@given(st.text(alphabet=st.sampled_from('= \n():"Thread process7MainThread.py<'), max_size=300))
def test_stacks_of_anything_break_nothing(text: str) -> None:
    assert read(f"== process 1: x\n{text}").files == 1


def test_of_many_files_the_newest_are_read() -> None:
    names = {f"logs/attempt-{a}/stacks-{r}-{n}.txt": 9 for a in (1, 2) for r in range(400) for n in (1, 2)}
    chosen, left_out = keys_to_read(
        {**names, "logs/attempt-2/rank-0.log": 9, "logs/attempt-2/a/stacks-0-1.txt": 9}
    )
    assert (len(chosen), left_out) == (MOST_FILES, 1600 - MOST_FILES)
    assert [(key.attempt, key.dump, key.rank) for key in (chosen[0], chosen[10], chosen[400])] == [
        (2, 2, "0"),
        (2, 2, "10"),
        (2, 1, "0"),
    ]
    assert keys_to_read({"logs/attempt-1/stacks-0-1.txt": MOST_BYTES + 1}) == ([], 1)

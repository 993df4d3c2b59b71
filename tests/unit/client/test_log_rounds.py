"""The rounds in a log: lines that begin one, and programs that print such lines themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtj.api.errors import NotFound
from dtj.client.log_rounds import RoundChoice
from dtj.client.logs import file_line
from dtj.client.objects import LogLine, LogQuery
from dtj_trainer.launch.pod_rounds import first_line
from dtj_trainer.launch.round_messages import Go


def of_round(number: int, *lines: LogLine, source: str, cut: bool = False) -> list[str]:
    log = RoundChoice("mnist", LogQuery(round=number)).log(source, lines if cut else ())
    return [line.text for line in lines if log.has(line)]


BEGINS = {
    "the agent of ranks, and the launcher": first_line(Go(2, 29500, None, None)),
    "a rank of Horovod": "dtj: round 2 begins",
    "an agent in its own output": "dtj: INFO: round 2 begins with checkpoint 7",
}


@pytest.mark.parametrize("text", BEGINS.values(), ids=BEGINS)
def test_each_form_of_the_line_begins_a_round(text: str) -> None:
    before, begins, after = (LogLine("worker-0", each) for each in ("a", text, "b"))
    assert of_round(2, before, begins, after, source="worker-0") == [text, "b"]
    assert of_round(1, before, begins, after, source="worker-0", cut=True) == ["a"]


@pytest.mark.parametrize(
    "text",
    [
        "x dtj: round 2 begins",
        "dtj: round 2 beginsx",
        "dtj: round two begins",
        "dtj: WARNING: round 2 begins",
    ],
)
def test_other_lines_begin_none(text: str) -> None:
    assert of_round(0, LogLine("worker-0", text), source="worker-0") == [text]


RANKS = ("rank 0", "rank 1", "rank 2")
IN_ROUND = st.lists(st.tuples(st.sampled_from(RANKS), st.text(max_size=3)), max_size=5)


@given(rounds=st.lists(IN_ROUND, min_size=1, max_size=4), own=st.booleans(), first=st.integers(0, 3))
def test_every_line_is_of_one_round(rounds: list[list[tuple[str, str]]], own: bool, first: int) -> None:
    """`own`: each rank tells the round, too. `first`: the log may begin after its first rounds."""
    source = "launcher-0"
    parts = []
    for number, printed in enumerate(rounds, first):
        ranks = [LogLine(rank, text) for rank, text in printed]
        begins = [LogLine(each, f"dtj: round {number} begins") for each in (source, *RANKS * own)]
        parts.append([*(begins if number > first else ()), *ranks])
    lines = [line for part in parts for line in part]
    if len(rounds) == 1:
        first = 0  # Nothing tells the round.

    for number, part in enumerate(parts, first):
        assert of_round(number, *lines, source=source, cut=True) == [line.text for line in part]


@given(
    printed=st.lists(st.sampled_from(["x", "dtj: round 1 begins", "dtj: round 9 begins"]), max_size=5),
    at=st.lists(st.integers(0, 6), min_size=5, max_size=5),
)
def test_a_program_that_prints_such_lines_spoils_no_view_but_its_own(
    printed: list[str], at: list[int]
) -> None:
    """`at`: where the lines of rank 0 are between those of others."""
    others = [
        file_line(text, "launcher-0")
        for text in (
            "starts",
            "[rank 1] a",
            "dtj: round 1 begins, after the failure of worker-0: killed",
            "[rank 1] dtj: round 1 begins",
            "[rank 1] b",
            "[rank 2] [rank 1] dtj: round 7 begins",
        )
    ]
    mixed = list(others)
    for place, text in zip(at, printed, strict=False):
        mixed.insert(place, LogLine("rank 0", text))

    for number in (0, 1):
        log = RoundChoice("mnist", LogQuery(round=number)).log("launcher-0", mixed)
        chosen = [line for line in mixed if log.has(line)]
        assert [line.text for line in chosen if line.source != "rank 0"] == [
            line.text for line in (others[:2] if number == 0 else others[2:])
        ]


def test_the_log_of_an_earlier_round_printed_again_changes_nothing() -> None:
    texts = ["dtj: round 1 begins", "a", "dtj: round 2 begins", "dtj: round 1 begins", "a", "b"]
    lines = [LogLine("rank 0", text) for text in texts]
    assert of_round(2, *lines, source="rank 0") == texts[2:]


def test_a_round_that_never_was_is_told_with_those_that_were() -> None:
    choice = RoundChoice("mnist", LogQuery(round=3, attempt=2))
    with pytest.raises(NotFound, match="the logs of attempt 2 of mnist have no round 3: they have round 0"):
        choice.check()
    log = choice.log("worker-0")
    for number in (1, 2):
        log.has(LogLine("worker-0", f"dtj: round {number} begins"))
    with pytest.raises(NotFound, match="they have rounds 0, 1, 2"):
        choice.check()
    assert not log.is_over()
    assert log.has(LogLine("worker-0", "dtj: round 3 begins"))
    choice.check()
    log.has(LogLine("worker-0", "dtj: round 4 begins"))
    assert log.is_over()

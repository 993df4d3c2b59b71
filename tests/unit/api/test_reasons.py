"""The enums of the status: reasons, condition types and failure classes, each with a comment."""

from __future__ import annotations

import ast
import re
from enum import StrEnum
from pathlib import Path

import pytest

import dtj
from dtj.api.reasons import FAILED, FAILURE_CLASSES, OBSTACLES, QUIET, STOPPED, OperatorFailureClass, Reason
from dtj.api.status import Condition, ConditionType, Failure, JobStatus, Phase
from dtj.status.failure import _GATES
from dtj_trainer.contract import Termination
from dtj_trainer.contract.failure_class import FailureClass
from tests.field_reference import member_docstrings

SOURCES = {path: path.read_text() for path in Path(dtj.__file__).parent.rglob("*.py")}


@pytest.mark.parametrize("words", [Reason, ConditionType, FailureClass])
def test_every_word_is_explained(words: type[StrEnum]) -> None:
    assert set(member_docstrings(words)) == set(words.__members__)


def test_a_failure_class_of_the_operator_is_explained_here_or_is_a_reason() -> None:
    explained = set(member_docstrings(OperatorFailureClass))
    assert {
        name for name, member in OperatorFailureClass.__members__.items() if member not in {*Reason}
    } <= explained


@pytest.mark.parametrize("words", [Reason, OperatorFailureClass])
def test_every_word_is_used(words: type[StrEnum]) -> None:
    used = set(re.findall(rf"\b{words.__name__}\.([A-Z_]+)", "".join(SOURCES.values())))
    assert set(words.__members__) == used


def test_no_reason_is_written_as_a_literal() -> None:
    """Words of dtj alone: Kubernetes has some of the others too, as the reason of a pod or of an answer."""
    own = {
        word
        for word in Reason
        if re.match(r"(Job|Pods|MPIJob|Spec|No|Evalua|Backoff[A-Z]|\w*Deadline)", word)
    }
    literals = {
        f"{path.name}: {node.value}"
        for path, source in SOURCES.items()
        if path.name != "reasons.py"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and node.value in own
    }
    assert literals == set()


def test_no_class_is_listed_twice() -> None:
    assert len(set(FAILURE_CLASSES)) == len(FAILURE_CLASSES) == len(FailureClass) + len(OperatorFailureClass)


def test_obstacles_are_reasons_as_well_as_classes() -> None:
    assert {*OBSTACLES} <= {*Reason} & {*OperatorFailureClass}
    assert STOPPED <= {*FAILED} <= {*Reason}
    assert {*Reason} >= QUIET


def test_the_schema_lists_the_words() -> None:
    def described(model: type, field: str) -> set[str]:
        text: str = model.model_fields[field].description or ""  # type: ignore[attr-defined]
        return set(re.findall(r"\b[A-Z]\w+", text.partition(". ")[0]))

    assert described(Failure, "failure_class") == {*FAILURE_CLASSES}
    assert described(Condition, "type") == described(JobStatus, "conditions") == {*ConditionType}
    assert described(JobStatus, "phase") == {*Phase}


def test_every_field_of_a_termination_message_passes_a_gate() -> None:
    assert _GATES.keys() == Termination.__annotations__.keys() - {"phases"}, (
        "phases are for the launcher alone"
    )

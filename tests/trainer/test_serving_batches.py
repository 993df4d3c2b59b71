"""How requests are gathered to batches."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import cast

import numpy as np
import pytest
from tests.patience import PATIENCE
from tests.trainer.conftest import until

from dtj_trainer.serving.batching import Batcher, Limits, Outcome, Overfull
from dtj_trainer.serving.loaded_model import LoadedModel


class Doubling:
    """Answers twice its input, and holds each batch until it may go on."""

    def __init__(self, *, held: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.may_run = threading.Event()
        if not held:
            self.may_run.set()

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        self.batches.append(inputs["x"].tolist())
        assert self.may_run.wait(30 * PATIENCE)
        if (inputs["x"] < 0).any():
            raise RuntimeError("negative")
        return [inputs["x"] * 2, -inputs["x"]]

    @property
    def as_model(self) -> LoadedModel:
        return cast(LoadedModel, self)


@pytest.fixture
def batcher() -> Iterator[Batcher]:
    made = Batcher("test", Limits(4, 0.01, 8), threading.Semaphore(1), lambda examples: None)
    yield made
    made.close()


def x(*values: int) -> dict[str, np.ndarray]:
    return {"x": np.array(values)}


def ask(batcher: Batcher, model: LoadedModel, inputs: dict[str, np.ndarray]) -> Future[Outcome]:
    told: Future[Outcome] = Future()
    batcher.submit(model, inputs, told.set_result)
    return told


def answer(told: Future[Outcome]) -> list[list[int]]:
    outcome = told.result(30 * PATIENCE)
    assert not isinstance(outcome, Exception)
    return [output.tolist() for output in outcome]


def test_requests_that_wait_become_one_batch_and_get_their_own_answers(batcher: Batcher) -> None:
    model = Doubling(held=True)
    first = ask(batcher, model.as_model, x(1))
    until(lambda: model.batches, "the first batch runs")
    others = [ask(batcher, model.as_model, x(*values)) for values in ((2,), (3, 4), (5, 6), (7,))]
    assert batcher.waiting == 6
    model.may_run.set()
    assert answer(first) == [[2], [-1]]
    assert [answer(each)[0] for each in others] == [[4], [6, 8], [10, 12], [14]]
    assert model.batches == [[1], [2, 3, 4], [5, 6, 7]]
    assert batcher.waiting == 0


def test_a_batch_is_for_one_version_of_the_model(batcher: Batcher) -> None:
    old, new = Doubling(held=True), Doubling()
    first = ask(batcher, old.as_model, x(0))
    until(lambda: old.batches, "the first batch runs")
    asked = [ask(batcher, model.as_model, x(value)) for value, model in enumerate((old, new, new, old), 1)]
    old.may_run.set()
    assert [answer(each)[0] for each in (first, *asked)] == [[0], [2], [4], [6], [8]]
    assert (old.batches, new.batches) == ([[0], [1], [4]], [[2, 3]])


def test_a_full_queue_takes_no_more_until_it_is_shorter(batcher: Batcher) -> None:
    model = Doubling(held=True)
    first = ask(batcher, model.as_model, x(0))
    until(lambda: model.batches, "the first batch runs")
    taken = [ask(batcher, model.as_model, x(value, value)) for value in range(4)]
    with pytest.raises(Overfull):
        ask(batcher, model.as_model, x(9))
    model.may_run.set()
    assert [answer(each) for each in (first, *taken)][-1] == [[6, 6], [-3, -3]]
    assert answer(ask(batcher, model.as_model, x(9))) == [[18], [-9]]


def test_a_batch_waits_for_as_many_requests_as_the_last_one_had() -> None:
    made = Batcher("test", Limits(4, 1000 * PATIENCE, 8), threading.Semaphore(1), lambda examples: None)
    model = Doubling(held=True)
    asked = [ask(made, model.as_model, x(value)) for value in range(3)]
    until(lambda: model.batches, "the first batch runs")
    model.may_run.set()
    assert [answer(each)[0] for each in asked] == [[0], [2], [4]]
    last = len(model.batches[-1])
    asked = [ask(made, model.as_model, x(value)) for value in range(last)]
    assert [answer(each)[0] for each in asked] == [[0], [2], [4]][:last]
    assert model.batches[-1] == list(range(last))
    made.close()


def test_a_failure_is_told_to_its_batch_alone(batcher: Batcher) -> None:
    model = Doubling()
    failed = ask(batcher, model.as_model, x(-1))
    assert repr(failed.result(30 * PATIENCE)) == "RuntimeError('negative')"
    assert answer(ask(batcher, model.as_model, x(1))) == [[2], [-1]]


def test_what_is_in_the_queue_is_answered_at_the_end() -> None:
    made = Batcher("test", Limits(1, 0, 8), threading.Semaphore(1), lambda examples: None)
    model = Doubling(held=True)
    asked = [ask(made, model.as_model, x(value)) for value in range(5)]
    closing = threading.Thread(target=made.close)
    closing.start()
    model.may_run.set()
    closing.join(30 * PATIENCE)
    assert [answer(each)[0] for each in asked] == [[0], [2], [4], [6], [8]]
    with pytest.raises(Overfull):
        ask(made, model.as_model, x(1))

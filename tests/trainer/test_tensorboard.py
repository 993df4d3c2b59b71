"""Event files: closed parts, and steps that a retry writes again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dtj_trainer.artifacts.segments import SEGMENT_BYTES, SEGMENT_SECONDS
from dtj_trainer.tensorboard import ROTATE_BYTES, ROTATE_SECONDS, ScalarWriter

pytestmark = pytest.mark.torch


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def read(folder: Path, tag: str) -> list[tuple[int, float]]:
    """The scalars as TensorBoard shows them."""
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


def test_parts_are_closed_and_never_touched_again(tmp_path: Path) -> None:
    clock = Clock()
    writer = ScalarWriter(tmp_path, rotate_seconds=30, clock=clock)
    assert list(tmp_path.iterdir()) == []
    sizes: dict[str, int] = {}
    for step in range(1, 11):
        clock.now = step * 10.0
        writer.add(step, {"loss": 1 / step})
        paths = sorted(tmp_path.iterdir())
        for name, size in sizes.items():
            assert (tmp_path / name).stat().st_size == size
        sizes = {path.name: path.stat().st_size for path in paths[:-1]}
    writer.close()
    assert len(list(tmp_path.iterdir())) == 4
    found = dict(read(tmp_path, "loss"))
    assert found == pytest.approx({step: 1 / step for step in range(1, 11)})


def test_a_part_is_closed_when_it_is_large(tmp_path: Path) -> None:
    writer = ScalarWriter(tmp_path, rotate_bytes=1000, clock=Clock())
    for step in range(1, 101):
        writer.add(step, {"loss": 1 / step})
    writer.close()
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert sum(sizes) / 1100 <= len(sizes) <= sum(sizes) / 1000 + 1
    assert [step for step, _ in read(tmp_path, "loss")] == list(range(1, 101))
    assert ROTATE_BYTES < SEGMENT_BYTES
    assert ROTATE_SECONDS < SEGMENT_SECONDS


def test_a_retry_replaces_the_steps_that_were_lost(tmp_path: Path) -> None:
    first = ScalarWriter(tmp_path)
    for step in range(1, 8):
        first.add(step, {"loss": 1.0})
    first.close()
    # The next attempt's pod is another one, later.
    (part,) = tmp_path.iterdir()
    part.rename(tmp_path / "events.out.tfevents.1000000000.pod.00000")
    second = ScalarWriter(tmp_path, first_step=4)
    second.add(5, {"loss": 2.0})
    second.close()
    assert read(tmp_path, "loss") == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 1.0), (5, 2.0)]

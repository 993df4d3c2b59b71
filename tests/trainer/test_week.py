"""A part of `make bench-week`, by the real code and a fake clock: a pod sends in proportion to what it writes.

The passes are 20 s apart, not 1 s, and rank 0 of a Horovod job is left out: a chief writes the same and more. The
benchmark measures processor time and memory too.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.bench.week import DAY, HOUR, KINDS, SimulatedPod, allowed_bytes, allowed_objects

STEP_SECONDS = 20
SECONDS = {"other": DAY, "primary": 6 * HOUR}
"""The simulated time, by the part of the pod. A day of a primary pod, with its many files, takes a test too long."""
LOG_ON_DISK_BYTES = 2 * 64 * 1024 * 1024


@pytest.mark.parametrize("name", [name for name in KINDS if name != "horovod-rank-0"])
def test_a_pod_sends_what_it_writes(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    pod, seconds = SimulatedPod(kind, tmp_path), SECONDS[kind.part]
    for second in range(STEP_SECONDS, seconds + 1, STEP_SECONDS):
        pod.pass_seconds(second - STEP_SECONDS, second)
    assert pod.end()
    assert pod.sink.kept == pod.written
    assert pod.sink.bytes <= allowed_bytes(pod.written, seconds)
    assert len(pod.sink.sizes) <= allowed_objects(seconds)
    assert pod.disk <= LOG_ON_DISK_BYTES * 1.05

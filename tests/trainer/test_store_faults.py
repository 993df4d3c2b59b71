"""The matrix of the store's faults: each fault in each phase of a pod.

Each cell runs `dtj-launch replica` with a script that knows nothing of dtj, against a real S3 server behind a proxy
with the fault. In each cell

* the pod ends by itself, and soon enough for its timeout
* exit code and termination message say what happened, and the file that is concerned
* each manifest in the bucket has the sizes and the SHA-256 of its files, and no complete checkpoint is lost
* another attempt, without the fault, goes on from the right state

`make test-store-faults` runs all cells, and shows the table of what happened. `make test` runs those of DIAGONAL.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.trainer.conftest import REPOSITORY, Launched, ObjectStore, Workspace, until
from tests.trainer.store_faults import Fault, FaultyStore, faulty_store

from dtj_trainer.artifacts.snapshot import read_index
from dtj_trainer.artifacts.store import Store

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
folder, orders, size = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
def state():
    newest = max(folder.glob("model-*.bin"), key=lambda path: int(path.stem[6:]), default=None)
    if newest is None:
        return 0
    step = int(newest.stem[6:])
    return step if newest.read_bytes() == bytes([step]) * size else -1
def save(step):
    new = folder / "new.tmp"
    new.write_bytes(bytes([step]) * size)
    new.rename(folder / f"model-{step}.bin")
    print("saved", step, flush=True)
def leave(*_):
    save(state() + 1)
    os._exit(143)
signal.signal(signal.SIGTERM, leave)
print("state", state(), flush=True)
while not (orders / "end").exists():
    for order in list(orders.glob("save-*")):
        save(int(order.name[5:]))
        order.unlink()
    time.sleep(0.02)
"""
"""Reads its state, saves each step that it is told to, and another one at SIGTERM."""

SMALL, IN_PARTS = 32_768, 17 * 2**20

FAULTS = {
    "slow": "slow",
    "slowdown": "slowdown",
    "cut": "cut",
    "lost": "lost",
    "hang": "hang",
    "one denied": "denied",
    "all denied": "denied",
    "expired": "expired",
    "stale": "stale",
    "error200": "error200",
}
PHASES = ("start", "restore", "training", "SIGTERM", "end")


class Expected(NamedTuple):
    """How an attempt with a fault ends. `state`: that of the next attempt. `seconds`: the sync timeout."""

    code: int
    state: int
    message: str = ""
    seconds: float = 60


LAST = {"training": 3, "SIGTERM": 2, "end": 2, "start": 1, "restore": 3}
"""The last step that a script saves in each phase."""
STOPPED = r"the program ended when it was told to stop \(SIGTERM\)"
DENIED = r"access to s3://\S+{} at \S+ is denied \(AccessDenied\)"
EXPIRED = r"the S3 session token for s3://\S+ is expired or invalid \(ExpiredToken\)"
SILENT = r"S3 at \S+ can't be reached for s3://\S+: Read timeout"
REFUSED = {
    "one denied": DENIED.format(r"model-\d.bin"),
    "all denied": DENIED.format(""),
    "expired": EXPIRED,
    "hang": SILENT,
}
"""The faults that last: how the cause reads."""


def expected(fault: str, phase: str) -> Expected:
    """The table. A fault that passes, or ends, harms nothing. One that lasts ends the pod, and is named."""
    if phase == "training" or fault not in REFUSED:
        code = 143 if phase == "SIGTERM" else 0
        return Expected(code, LAST[phase], STOPPED if phase == "SIGTERM" else "")
    seconds = 30 if fault == "hang" else 4
    if phase == "SIGTERM":
        return Expected(143, 1, STOPPED, 4)
    if phase == "end" or (fault, phase) == ("one denied", "start"):
        begin = r"not all artifacts could be uploaded within \d+ s: " if fault == "hang" else ""
        begin = begin or "artifacts could not be uploaded: "
        return Expected(69, 1 if phase == "end" else 0, begin + REFUSED[fault], seconds)
    state = {"start": 0, "restore": 2}[phase]
    return Expected(69, state, "checkpoints could not be restored: " + REFUSED[fault], seconds)


DIAGONAL = {
    ("slowdown", "start"),
    ("cut", "restore"),
    ("expired", "training"),
    ("hang", "SIGTERM"),
    ("one denied", "end"),
}
CELLS = [
    pytest.param(
        fault,
        phase,
        id=f"{fault}-{phase}".replace(" ", "-"),
        marks=() if (fault, phase) in DIAGONAL else pytest.mark.store_faults,
    )
    for fault in FAULTS
    for phase in PHASES
]


@dataclass
class Bench:
    """The proxy, the bucket behind it, and the attempts of one job."""

    proxy: FaultyStore
    store: Store
    make: Callable[..., Workspace]
    size: int = SMALL

    def attempt(
        self, number: int, seconds: float, *, direct: bool = False, **more: str
    ) -> tuple[Workspace, Launched]:
        """Start an attempt; `direct`: without the proxy. more: variables."""
        if not direct:
            more["AWS_ENDPOINT_URL_S3"] = self.proxy.endpoint
        pod = self.make(
            f"attempt-{number}",
            DTJ_STRATEGY="TorchDistributed",
            DTJ_ROLE="worker",
            RANK="0",
            DTJ_ARTIFACTS_URI=self.store.location.uri,
            DTJ_ATTEMPT=str(number),
            DTJ_SYNC_TIMEOUT_SECONDS=str(seconds),
            **more,
        )
        orders = pod.root.parent / "orders"
        orders.mkdir()
        folder = str(pod.root / "checkpoints")
        run = pod.launch("replica", sys.executable, "-c", SCRIPT, folder, str(orders), str(self.size))
        return pod, run

    def begin(self, fault: Fault) -> None:
        fault.began = time.monotonic()
        self.proxy.fault = fault

    def order(self, pod: Workspace, name: str) -> None:
        (pod.root.parent / "orders" / name).touch()

    def save(self, pod: Workspace, run: Launched, step: int, *, stored: bool = False) -> None:
        self.order(pod, f"save-{step}")
        run.says(f"saved {step}\n")
        if stored:
            until(lambda: step in self.steps(), f"step {step} in the bucket", tell=lambda: run.output)

    def manifests(self) -> dict[str, Any]:
        return dict(read_index(self.store.below("checkpoints")).manifests)

    def steps(self) -> set[int]:
        """The newest step of each complete checkpoint. Each file must be as its manifest says."""
        found, below = set[int](), self.store.below("checkpoints")
        for manifest in self.manifests().values():
            for file in manifest.files:
                content = below.get_bytes(file.key)
                assert len(content) == file.size
                assert hashlib.sha256(content).hexdigest() == file.sha256
            found.add(max(int(file.path[6:-4]) for file in manifest.files))
        return found


@pytest.fixture
def bench(
    object_store: ObjectStore, job_store: Store, make_workspace: Callable[..., Workspace]
) -> Iterator[Bench]:
    with faulty_store(object_store.endpoint) as proxy:
        yield Bench(proxy, job_store, make_workspace)


def started(run: Launched) -> bool:
    """Wait for the script's start, or the end; whether the script has started."""
    until(lambda: state_of(run) is not None or run.process.poll() is not None, "start or end", 120)
    return state_of(run) is not None


def state_of(run: Launched) -> int | None:
    """The state from which the script goes on; None before it has told."""
    found = re.search(r"^state (-?\d+)$", run.output, re.MULTILINE)
    return int(found[1]) if found else None


def run_cell(bench: Bench, fault: Fault, phase: str, seconds: float) -> tuple[Workspace, Launched, int]:
    """Run the attempts up to the one with the fault; return the latter and its number."""
    if phase == "start":
        bench.begin(fault)
        pod, run = bench.attempt(1, seconds)
        if started(run):
            bench.save(pod, run, 1)
            bench.order(pod, "end")
        return pod, run, 1
    pod, run = bench.attempt(1, seconds if phase != "restore" else 60)
    run.says("state 0\n")
    bench.save(pod, run, 1, stored=True)
    listing = [
        item._replace(key=f"{bench.store.location.prefix}/{item.key}") for item in bench.store.objects()
    ]
    fault.listing = sorted(listing)
    if phase == "restore":
        bench.save(pod, run, 2, stored=True)
        bench.order(pod, "end")
        assert run.ended() == 0
        bench.begin(fault)
        pod, run = bench.attempt(2, seconds)
        if started(run):
            assert state_of(run) == (1 if fault.name == "stale" else 2)
            bench.save(pod, run, 3)
            bench.order(pod, "end")
        return pod, run, 2
    bench.begin(fault)
    if phase == "SIGTERM":
        run.terminate()
        return pod, run, 1
    bench.save(pod, run, 2)
    if phase == "training":
        # The fault holds up no program.
        if fault.name != "stale":
            until(lambda: fault.injected >= 2, "the fault", 120)
        bench.save(pod, run, 3)
        bench.proxy.fault = None
    bench.order(pod, "end")
    return pod, run, 1


@pytest.mark.parametrize(("fault", "phase"), CELLS)
def test_fault(bench: Bench, fault: str, phase: str) -> None:
    wanted = expected(fault, phase)
    bench.size = IN_PARTS if fault in {"cut", "lost", "error200"} else SMALL
    key = {"start": "model-1.bin", "training": "model-", "SIGTERM": "model-2.bin", "end": "model-2.bin"}
    injected = Fault(FAULTS[fault], key.get(phase, "model-2.bin") if fault == "one denied" else "")
    pod, run, number = run_cell(bench, injected, phase, wanted.seconds)
    before = set(bench.manifests())
    code = run.ended(2 * wanted.seconds + 20)
    took = time.monotonic() - injected.began
    message = pod.termination.get("message", "")
    tell(f"{fault:10} | {phase:8} | {took:5.1f} s | {code:3} | {message}")
    assert code == wanted.code, run.output
    assert injected.injected or fault == "stale"  # A pod that runs alone lists nothing.
    assert re.match(wanted.message, message), message
    assert bool(wanted.message) == bool(message)
    bench.proxy.fault = None
    steps = bench.steps()
    assert before <= set(bench.manifests())
    pod, run = bench.attempt(number + 1, 60, direct=True)
    until(lambda: state_of(run) is not None, "the start of the script", tell=lambda: run.output)
    assert state_of(run) == wanted.state, (steps, run.output)
    bench.order(pod, "end")
    assert run.ended() == 0


def test_a_signal_during_the_last_upload(bench: Bench, tmp_path: Path) -> None:
    """The program has succeeded, and the store is silent. The pod tells at once, and ends within its grace."""
    (tmp_path / "sitecustomize.py").write_text(
        "from dtj_trainer import contract\n"
        "contract.TERMINATION_GRACE_SECONDS = 13\n"
        "from dtj_trainer.artifacts.sync import PodSync\n"
        "finish = PodSync.finish\n"
        "def told(*given, **named):\n"
        "    print('last upload', flush=True)\n"
        "    finish(*given, **named)\n"
        "PodSync.finish = told\n"
    )
    pod, run = bench.attempt(1, 300, PYTHONPATH=f"{tmp_path}:{REPOSITORY / 'trainer'}")
    run.says("state 0\n")
    bench.begin(Fault("hang"))
    bench.save(pod, run, 1)
    bench.order(pod, "end")
    run.says("last upload")
    run.terminate()
    until(pod.termination_log.exists, "the message", 2)
    told = "the pod was told to stop (SIGTERM) during its last upload"
    assert pod.termination["message"] == told
    assert run.ended(13) == 143
    message = pod.termination
    assert message["message"].startswith(f"{told}: not all artifacts could be uploaded before the pod ends: ")
    assert (message["class"], message["signal"]) == ("Signal", 15)


def tell(row: str) -> None:
    """Keep a row of the table."""
    print(row)
    if path := os.environ.get("DTJ_FAULT_TABLE"):
        with Path(path).open("a") as table:
            table.write(f"{row}\n")

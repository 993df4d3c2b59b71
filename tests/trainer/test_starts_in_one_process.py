"""Starts of a program, one after another in one process: each leaves nothing behind that the next one meets."""

from __future__ import annotations

import json
import os
import sys
from ast import literal_eval
from collections.abc import Callable

from tests.trainer.conftest import Workspace, free_ports

from dtj_trainer import contract
from dtj_trainer.artifacts.segments import segments_of
from dtj_trainer.artifacts.snapshot import read_index
from dtj_trainer.artifacts.store import Store

STARTS = int(os.environ.get("DTJ_TEST_STARTS", "16"))
"""`make test-chaos` makes 200."""
WARM = 10
"""After so many starts, all modules are imported and all caches are full."""

# Each program says what it finds, saves, leaves a torn file, and dies in one of four ways.
PROGRAM = """
import os, signal, sys
from pathlib import Path
number, root = int(sys.argv[1]), Path(os.environ["DTJ_ROOT"])
found = sorted(path.name for path in (root / "checkpoints").iterdir())
assert os.environ["DTJ_ATTEMPT"] == str(number)
print("start", number, "finds", found, Path(os.environ["DTJ_TERMINATION_LOG"]).read_bytes())
new = root / "checkpoints" / f"step-{number}"
new.with_suffix(".tmp").write_text(f"state of {number}")
new.with_suffix(".tmp").rename(new)
torn = open(root / "checkpoints" / "torn", "w")
torn.write("half"), torn.flush()
(root / "tensorboard").mkdir(exist_ok=True)
sys.stdout.flush()
if number % 4 == 2:
    os.kill(os.getpid(), signal.SIGKILL)
if number % 4 == 3:
    os.kill(os.getppid(), signal.SIGTERM)
    signal.pause()
torn.close()
(root / "checkpoints" / "torn").unlink()
sys.exit(number % 4 and 7)
"""

# The agent's process makes and closes the starts, and says what it holds after each. Its memory is what malloc has
# handed out, not what is resident: glibc keeps stacks and arenas of ended threads.
AGENT = """
import ctypes, gc, json, os, signal, sys, threading, time
from collections import Counter
import psutil
from dtj_trainer.launch.processes import adopt_orphans
from dtj_trainer.launch.replica import run_replica
from dtj_trainer.launch.settings import read_settings
program, starts = sys.argv[1], int(sys.argv[2])
process = psutil.Process()
libc = ctypes.CDLL(None)
class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split())]
libc.mallinfo2.restype = Mallinfo
adopt_orphans()
def files():
    for number in os.listdir("/proc/self/fd"):
        try:
            yield os.readlink(f"/proc/self/fd/{number}").partition(":")[0]
        except OSError:
            pass
for number in range(1, starts + 1):
    settings = read_settings({**os.environ, "DTJ_ATTEMPT": str(number)})
    code = run_replica(settings, [sys.executable, "-S", "-c", program, str(number)])
    until = time.monotonic() + 60
    while threading.active_count() > 1 and time.monotonic() < until:
        time.sleep(0.005)
    gc.collect()
    held = {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "files": Counter(files()),
        "listens": [each.laddr.port for each in process.net_connections() if each.status == "LISTEN"],
        "children": [child.pid for child in process.children()],
        "environment": dict(os.environ),
        "handlers": [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)],
    }
    heap = libc.mallinfo2()
    print("held", json.dumps([code, held, heap.uordblks + heap.hblkhd]), flush=True)
"""


def test_each_start_leaves_nothing(
    make_workspace: Callable[..., Workspace], job_uri: str, job_store: Store
) -> None:
    port = free_ports(1)[0]
    pod = make_workspace(
        DTJ_ARTIFACTS_URI=job_uri,
        DTJ_PROGRESS_PORT=str(port),
        DTJ_CHECKPOINTS_KEEP="1000",
        DTJ_STRATEGY="ParameterServer",
        DTJ_ROLE="chief",
        PYTHONMALLOC="malloc",  # All objects count in the agent's measure of its heap.
    )
    pod.termination_log.write_text('{"class": "Signal", "message": "of a start before"}')
    run = pod.run(sys.executable, "-c", AGENT, PROGRAM, str(STARTS))
    assert run.ended(60 + 3 * STARTS) == 0, run.output[-3000:]
    said = [
        json.loads(line.removeprefix("held ")) for line in run.output.splitlines() if line.startswith("held ")
    ]
    assert [code for code, *_ in said] == [
        {1: 7, 2: 137, 3: 143, 0: 0}[number % 4] for number in range(1, STARTS + 1)
    ]
    first = said[WARM - 1][1]
    assert first["listens"] == []
    assert first["children"] == []
    for number, (_, held, _) in enumerate(said[WARM:], WARM + 1):
        assert held == first, f"after start {number}"
    # A table of the interpreter that doubles takes up to 1 MiB at once.
    growth = said[-1][2] - said[WARM - 1][2]
    assert growth < 2**20 + (STARTS - WARM) * 50_000, f"{growth} bytes more after {STARTS} starts"
    by_now: set[str] = set()
    killed = {f"step-{number}" for number in range(1, STARTS + 1) if number % 4 in (2, 3)}
    for number in range(1, STARTS + 1):
        key = f"{contract.LOGS}/attempt-{number}/chief-0.log"
        stored = segments_of(key, [item.key for item in job_store.named(key)])
        lines = b"".join(job_store.get_bytes(part.key) for part in stored).decode().splitlines()
        begin, _, rest = lines[0].partition(" finds ")
        found, _, message = rest.rpartition(" ")
        assert (len(lines), begin, message) == (1, f"start {number}", "b''")
        # What is renamed into place in the moment of a kill may be lost, and what is torn must be.
        assert by_now - killed <= set(literal_eval(found)) <= by_now
        by_now.add(f"step-{number}")
    manifests = read_index(job_store.below("checkpoints")).manifests.values()
    assert {file.path for manifest in manifests for file in manifest.files} <= by_now

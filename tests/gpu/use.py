"""Rows of what dtj says of the GPU's use, and of what a waiting interpreter holds."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterator

from tests.gpu.place import Place, gpu_only, nvidia_smi, standing
from tests.gpu.sheet import Sheet

BESIDE_SMI, IDLE, WAITING = "utilisation beside nvidia-smi", "idle GPU", "waiting interpreter"
SECONDS = 60
APART = 0.15
"""Of utilisation, between the means of two samplers that do not look at the same moments."""
_HALF_BUSY = """
import sys, time, torch
one = torch.randn(4096, 4096, device="cuda")
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    until = time.monotonic() + 0.6
    while time.monotonic() < until:
        for _ in range(20):
            one @ one
        torch.cuda.synchronize()
    time.sleep(0.4)
"""
_IDLE = "import sys, time, torch; one = torch.zeros(1, device='cuda'); time.sleep(float(sys.argv[1]))"
_WAITS = "import sys, torch, torch._dynamo; print('imported', flush=True); sys.stdin.read()"
_QUERY = "--query-gpu=utilization.gpu,memory.used"


@gpu_only(BESIDE_SMI, IDLE)
def utilisation(at: Place) -> Iterator[Sheet]:
    """Compare dtj's samples with nvidia-smi's over the same minute; then sample an idle GPU."""
    row = Sheet(BESIDE_SMI)
    theirs = subprocess.Popen(
        ["nvidia-smi", _QUERY, "--format=csv,noheader,nounits", "-lms", "500"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        samples = _samples(at, "half-busy", _HALF_BUSY, SECONDS)
    finally:
        theirs.terminate()
        lines, _ = theirs.communicate()
    pairs = [[float(word) for word in line.split(",")] for line in lines.splitlines() if line.count(",") == 1]
    busy = [pair for pair in pairs if pair[0]]
    row.require(busy and samples, "one of the samplers has nothing")
    # The samples begin and end with the program; nvidia-smi looks before and after it, too.
    seen = pairs[pairs.index(busy[0]) : len(pairs) - pairs[::-1].index(busy[-1])]
    smi = statistics.mean(pair[0] / 100 for pair in seen)
    ours = statistics.mean(sample["utilisation"] for sample in samples)
    row.say("nvidia-smi", smi)
    row.say("dtj", ours)
    row.hold("apart", abs(smi - ours), at_most=APART)
    row.hold(
        "memory, dtj by nvidia-smi",
        max(sample["memoryUsedBytes"] for sample in samples) / 2**20 / max(pair[1] for pair in pairs),
        at_least=0.95,
        at_most=1.05,
    )
    yield row
    row = Sheet(IDLE)
    idle = _samples(at, "idle", _IDLE, 12)
    row.hold("utilisation", max(sample["utilisation"] for sample in idle[1:] or idle), at_most=0.02)
    lines = subprocess.run(
        ["dtj", "report", "idle", "--local"],
        env={**at.environment, "DTJ_HOME": str(at.home)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    row.names("GPU", lines)
    yield row


def _samples(at: Place, name: str, code: str, seconds: int) -> list[dict[str, float]]:
    """Return dtj's samples of the first GPU while a script runs."""
    script = at.folder / f"{name}.py"
    script.write_text(code)
    with at.job(name, [at.python, str(script)], [str(seconds)], seconds=seconds + 60) as run:
        run.ended()
        (file,) = (run.root / "utilisation").rglob("worker-0.jsonl")
        found = (json.loads(line).get("gpus", {}) for line in file.read_text().splitlines())
        return [gpus["0"] for gpus in found if "0" in gpus]


@gpu_only(WAITING)
def waiting(at: Place) -> Iterator[Sheet]:
    """Look whether an interpreter that has imported PyTorch and waits holds memory of the GPU."""
    row = Sheet(WAITING)
    used = ["--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    (before,) = nvidia_smi(*used)
    with standing(_WAITS) as process:
        (after,) = nvidia_smi(*used)
        holders = nvidia_smi("--query-compute-apps=pid", "--format=csv,noheader")
    row.hold("MiB more on the GPU", float(after) - float(before), at_most=0)
    row.require(str(process.pid) not in holders, "nvidia-smi names the process among those that compute")
    yield row

"""`python -m tests.bench.spares`: from the SIGKILL of a bare PyTorch script's ranks to their next first step.

Once by new processes, once by warm spares, alternating in one run. The ranks are two, with gloo, on this machine.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from dtj.local.store_keeper import free_ports
from dtj_trainer.launch.program import Started, Starter
from dtj_trainer.launch.spare import Spares, private_bytes
from tests.bench.machine import machine
from tests.bench.targets import Target, verdicts

RANKS = 2
RATIO = "spare/cold"
TARGETS = (Target(RATIO, RATIO, 0.3, at_least=False, of_a_ratio=True),)
SCRIPT = """
import time
import torch

torch.distributed.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.ones(4, 8)).sum().backward()
optimizer.step()
print("step", flush=True)
time.sleep(100000)
"""


class Ranks:
    """The ranks of the script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spares = Spares()
        self._processes: list[Started] = []

    def restart(self, how: Mapping[str, Starter]) -> float:
        """Kill the ranks, and start them anew; return the seconds to the first step of the last one."""
        (port,) = free_ports(1)
        begun = time.monotonic()
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
        self._processes = [
            starter.start(
                [sys.executable, "train.py"],
                {
                    **os.environ,
                    **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS)},
                    **{"RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": "1"},
                },
                self.folder,
            )
            for rank, starter in how.items()
        ]
        for process in self._processes:
            assert process.stdout is not None
            assert any(line == b"step\n" for line in process.stdout)
        return time.monotonic() - begun

    def wait_for_spares(self) -> list[float]:
        """Wait until each rank has a spare that is ready; return the megabytes of each."""
        pids: dict[str, int] = {}
        while len(pids) < RANKS:
            self.spares.tend(lambda: True)
            pids = self.spares.ready()
            time.sleep(0.05)
        return [private_bytes(pid) / 1e6 for pid in pids.values()]

    def close(self) -> None:
        """End all."""
        self.spares.close()
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
            process.wait()


def main() -> int:
    """Measure alternating pairs."""
    print(machine())
    found: dict[str, list[float]] = {"cold": [], "spare": []}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(SCRIPT)
        ranks = Ranks(Path(folder))
        new = {str(rank): Starter() for rank in range(RANKS)}
        warm = {rank: ranks.spares.starter(rank) for rank in new}
        try:
            ranks.restart(warm)  # Files come from the disk the first time.
            for _ in range(int(os.environ.get("ROUNDS", "5"))):
                found["cold"].append(ranks.restart(new))
                ranks.restart(warm)
                memory = ranks.wait_for_spares()
                found["spare"].append(ranks.restart(warm))
                cold, spare = found["cold"][-1], found["spare"][-1]
                print(f"cold {cold:.2f} s, spare {spare:.2f} s, ratio {spare / cold:.3f},", end=" ")
                print(f"a spare has {max(memory):.0f} MB of its own")
        finally:
            ranks.close()
    ratio = statistics.median(spare / cold for spare, cold in zip(found["spare"], found["cold"], strict=True))
    lines = verdicts(TARGETS, {RATIO: ratio})
    print(*lines, sep="\n")
    return any(line.endswith("missed") for line in lines)


if __name__ == "__main__":
    sys.exit(main())

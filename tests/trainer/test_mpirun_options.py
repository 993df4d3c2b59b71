"""The ranks that the real mpirun starts in each worker, compared with the prediction of `dtj convert`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.patience import PATIENCE
from tests.unit.support.mpirun_options import EVEN, NEVER, UNEVEN, WORKERS

pytestmark = pytest.mark.skipif(not shutil.which("mpirun"), reason="needs openmpi-bin")

_OF_NODE = re.compile(r"Data for node: (\S+).*Num procs: (\d+)")


def ranks(folder: Path, options: str, slots: int) -> list[int] | None:
    """Ranks of each worker as mpirun maps them, without starting any; None where it refuses."""
    hostfile = folder / "hostfile"
    hostfile.write_text("".join(f"{worker} slots={slots}\n" for worker in WORKERS))
    environment = {
        "PATH": os.environ["PATH"],
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": str(hostfile),
        "OMPI_MCA_orte_set_default_slots": str(slots),
    }
    words = options.replace("/etc/mpi/hostfile", str(hostfile)).split()
    # Unbound: the workers have more processors than this machine may have.
    command = ["mpirun", "--do-not-launch", "--display-map", "--bind-to", "none", *words, "true"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=20 * PATIENCE
    )
    found = {node: int(count) for node, count in _OF_NODE.findall(done.stdout)}
    return [found.get(worker, 0) for worker in WORKERS] if found else None


@pytest.mark.parametrize(
    ("options", "slots", "wanted"),
    [
        *((options, slots, [each, each]) for options, slots, each in EVEN),
        *UNEVEN,
        *((options, slots, None) for options, slots in NEVER),
    ],
)
def test_mpirun_runs_as_many_ranks_as_convert_believes(
    options: str, slots: int, wanted: list[int] | None, tmp_path: Path
) -> None:
    assert ranks(tmp_path, options, slots) == wanted

"""`python3 tests/gpu/run.py` checks dtj on one GPU, or the same rows, smaller, on a CPU: docs/performance-gpu.md.

The machine's own Python 3.11 or newer with PyTorch is enough, beside the kit of `make gpu-kit`; without a kit, the
environment has all packages of dtj.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])
# The folder of this file would hide modules of other packages by its own names.

from tests.gpu import kit  # noqa: E402 - the path of the repository comes first

UNPACKED = "DTJ_GPU_CHECK"
SECONDS = 480.0


def main() -> int:
    """Run the check; 1 where a row fails or has no time left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kit", type=Path, default=kit.KIT, help="folder of the kit (default: %(default)s)")
    parser.add_argument(
        "--out",
        type=Path,
        default=kit.REPOSITORY / "build" / "gpu",
        help="folder of the results (%(default)s)",
    )
    parser.add_argument("--python", default="python", help="what runs the programs (default: %(default)s)")
    parser.add_argument("--rows", nargs="*", help="only these rows, by their functions (default: all)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all rows (default: %(default)s)")
    given = parser.parse_args()
    if UNPACKED not in os.environ and given.kit.is_dir():
        with tempfile.TemporaryDirectory(prefix="dtj-gpu-") as folder:
            return _with_kit(given.kit, Path(folder))
    from tests.gpu.rows import check

    began = float(os.environ.get(UNPACKED, time.monotonic()))
    with tempfile.TemporaryDirectory(prefix="dtj-gpu-") as folder:
        return check(
            given.kit if given.kit.is_dir() else None,
            Path(folder),
            given.out,
            given.python,
            names=given.rows,
            deadline=began + given.seconds,
        )


def _with_kit(folder: Path, unpacked: Path) -> int:
    """Run this program again, in a process that has the kit's packages."""
    import subprocess

    found = kit.environment(folder, unpacked) | {UNPACKED: str(time.monotonic())}
    command = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]]
    return subprocess.run(command, env=os.environ | found, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

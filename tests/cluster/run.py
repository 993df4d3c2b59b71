"""`python -m tests.cluster.run`: bring a cluster up, install the operator, run the cluster tests, remove the cluster.

A cluster that was up before stays up.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import processor_time
from tests.cluster.progress import note
from tests.stage_times import report_file, timed

ROOT = Path(__file__).parents[2]
# First, while other stages compute, those beside which no other may run: they mostly wait. Then the rest, beside the
# trainings of tests/at_once.py, of which no two run at the same time.
IN_TEST = "not chaos and not layouts and not skew"
"""An -m replaces that of pyproject.toml."""
ALL = {
    "cluster-alone": ("-m", f"alone and {IN_TEST}", "tests/cluster"),
    "cluster-at-once": ("-m", f"not alone and not last and {IN_TEST}", "--numprocesses=4", "tests/cluster"),
}
LAST = {"cluster-last": ("-m", "last", "tests/cluster")}
"""What holds of the cluster after all other tests."""


def main() -> int:
    """Exit code of pytest, or of what failed before it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", choices=("local", "kind"), default="local")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest (default: all of tests/cluster)")
    options = parser.parse_args()
    here = os.environ.get("KUBECONFIG")
    if here:
        note(f"the tests run on the cluster of KUBECONFIG={here}")
        return _test(dict(os.environ), options.pytest)
    # Whoever ends this program early finds the cluster taken down, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    was_up = _module("up", "--cluster", options.cluster, "--is-up").returncode == 0
    try:
        up_command = [sys.executable, "-m", "tests.cluster.up", "--cluster", options.cluster]
        # On a bare machine, it builds Kubernetes and the images. All tests of the cluster wait for it.
        with timed("cluster-up"), processor_time.preferred("cluster-up", up_command) as command:
            up = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        return up.returncode or _test({**os.environ, **exports(up.stdout)}, options.pytest)
    finally:
        if not was_up:
            _module("down", "--cluster", options.cluster)


def exports(text: str) -> dict[str, str]:
    """The variables of `export NAME=value` lines."""
    words = [shlex.split(line)[1] for line in text.splitlines() if line.startswith("export ")]
    return dict(word.split("=", 1) for word in words)


def _test(environment: dict[str, str], arguments: list[str]) -> int:
    with timed("cluster-install"):
        installed = _module("install", environment=environment)
        # For trainings on this machine that are compared with those of the cluster.
        wheel = [sys.executable, "docker/wheels.py", "--install", "--framework=torch"]
        horovod = subprocess.run(wheel, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
    if failed := installed.returncode or horovod.returncode:
        return failed
    runs = ({"cluster-chosen": arguments} if arguments else ALL) | LAST
    return max(_pytest(environment, stage, words) for stage, words in runs.items())


def _pytest(environment: dict[str, str], stage: str, words: Sequence[str]) -> int:
    command = [sys.executable, "-m", "pytest", "--timeout=2400", f"--junitxml={report_file(stage)}", *words]
    with timed(stage):
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def _module(
    name: str, *words: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", f"tests.cluster.{name}", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False)


if __name__ == "__main__":
    sys.exit(main())

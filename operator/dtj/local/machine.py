"""Resources of this machine: free ports, GPUs, installed programs and packages."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from dtj.api.errors import Unusable
from dtj.api.job import Job
from dtj.plan.model import Plan
from dtj.plan.pods import trainer_container
from dtj_trainer import contract

_LOWEST_PORT, _HIGHEST_PORT = 15000, 32000
_FRAMEWORKS = {
    "dtj_trainer.programs.horovod_image_classification": ("torch", "horovod"),
    "dtj_trainer.programs.horovod_tf_image_classification": ("tensorflow", "horovod"),
    "dtj_trainer.programs.ps_image_classification": ("tensorflow",),
}
_EXTRAS = {"torch": "pip install 'dtj[torch]'", "tensorflow": "pip install 'dtj[tensorflow]'"}
_HOROVOD = "`python docker/wheels.py --install` in the repository of dtj builds and installs Horovod"


def check_machine(job: Job) -> None:
    """Raise Unusable for what this machine, or this Python environment, lacks that the job can't do without."""
    if not sys.platform.startswith("linux"):
        raise Unusable(
            f"dtj run needs Linux, this is {sys.platform}", "dtj submit FILE runs the job on a cluster"
        )
    if shutil.which("dtj-launch", path=_search_path()) is None:
        raise Unusable("dtj-launch is not beside this Python", "pip install 'dtj[trainer]'")
    needed = job.spec.rules.executables
    if needed and not any(shutil.which(program, path=_search_path()) for program in needed):
        *first, last = needed
        missing = f"neither {', '.join(first)} nor {last} is" if first else f"{last} is not"
        raise Unusable(
            f"{missing} installed, which starts the ranks of strategy {job.spec.strategy}", _HOROVOD
        )
    for word in (*job.spec.command, *job.spec.args):
        for package in _FRAMEWORKS.get(word, ()):
            if importlib.util.find_spec(package) is None:
                raise Unusable(
                    f"{word} needs {package}, which is not installed in this Python environment",
                    _EXTRAS.get(package, _HOROVOD),
                )


def without_own_root(folder: Path) -> str | None:
    """A note for the user if programs cannot have their own `/dtj` on this machine, else None.

    folder: the existing folder of a run.
    """
    command = [sys.executable, "-P", "-m", "dtj_trainer.launch.own_root", str(folder)]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - no shell
    fault = tried.stdout or tried.stderr.strip().rpartition("\n")[2]
    if not fault:
        return None
    return (
        f"programs can't have a {contract.ROOT} of their own here: {fault}. Paths below {contract.ROOT} in command, "
        f"args and env name the workspace all the same. A script that has such a path written into it uses this "
        f"machine's {contract.ROOT}: other jobs see what it writes there, and nothing of that is uploaded"
    )


def share_gpus(job: Job, plan: Plan, devices: Sequence[str]) -> dict[str, list[str]]:
    """The devices of each pod, by the name of the pod. Each replica has its own devices. All ranks of Horovod see all
    devices of the job, because MPI counts local ranks over the machine. Raises Unusable when the job asks for more
    devices than this machine has.
    """
    wanted = {
        pod["metadata"]["name"]: int(
            (trainer_container(pod).get("resources") or {})
            .get("limits", {})
            .get(job.spec.accelerator.resource_name, 0)
        )
        for pod in plan.pods
    }
    total = sum(wanted.values())
    if total > len(devices):
        raise Unusable(
            f"the job asks for {total} GPUs, this machine has {len(devices)} that it may use",
            "ask for fewer (replicas, gpus), widen CUDA_VISIBLE_DEVICES, or run it on a cluster: dtj submit FILE",
        )
    if job.spec.rules.shares_gpus:
        return {name: list(devices[:total]) for name, count in wanted.items() if count}
    left = iter(devices)
    return {name: [next(left) for _ in range(count)] for name, count in wanted.items() if count}


def gpus() -> list[str]:
    """The NVIDIA devices that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [device.strip() for device in given.split(",") if device.strip() not in ("", "-1")]
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        told = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=20, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return []
    lines = [line for line in told.stdout.splitlines() if line.startswith("GPU ")]
    return [str(number) for number in range(len(lines))]


def free_ports(count: int, given: Collection[int] = ()) -> list[int]:
    """Ports that nothing listens on, below those that the kernel gives to outgoing connections. given: ports that
    others are to listen on.
    """
    found: list[int] = []
    candidates = [port for port in range(_LOWEST_PORT, _HIGHEST_PORT) if port not in given]
    random.shuffle(candidates)
    for port in candidates:
        if len(found) == count:
            break
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            found.append(port)
    return found


def _search_path() -> str:
    """As that of the job's processes."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"

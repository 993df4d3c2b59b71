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
from dtj.api.pod_template import limits_of
from dtj.plan.model import Plan
from dtj_trainer import contract
from dtj_trainer.contract.distribution import install_line

_LOWEST_PORT, _HIGHEST_PORT = 15000, 32000
_FRAMEWORKS = {
    "dtj_trainer.programs.horovod_image_classification": ("torch", "horovod"),
    "dtj_trainer.programs.horovod_tf_image_classification": ("tensorflow", "horovod"),
    "dtj_trainer.programs.ps_image_classification": ("tensorflow",),
    "dtj_trainer.programs.torch_image_classification": ("torch",),
}
_HOROVOD = "`python docker/wheels.py --install` in the repository of dtj builds and installs Horovod"


def check_machine(job: Job) -> None:
    """Raise Unusable if this machine or this Python environment lacks something that the job needs."""
    if not sys.platform.startswith("linux"):
        raise Unusable(
            f"dtj run needs Linux, but this machine runs {sys.platform}",
            "dtj submit FILE runs the job on a cluster",
        )
    if shutil.which("dtj-launch", path=_search_path()) is None:
        raise Unusable("dtj-launch is not installed in this Python environment", install_line("trainer"))
    needed = job.rules.executables
    if needed and not any(shutil.which(program, path=_search_path()) for program in needed):
        *first, last = needed
        missing = f"neither {', '.join(first)} nor {last} is" if first else f"{last} is not"
        raise Unusable(
            f"{missing} installed, and strategy {job.spec.strategy} needs it to start the ranks", _HOROVOD
        )
    for word in (*job.own_command, *job.spec.args):
        for package in _FRAMEWORKS.get(word, ()):
            if importlib.util.find_spec(package) is None:
                raise Unusable(
                    f"{word} needs {package}, which is not installed in this Python environment",
                    _HOROVOD if package == "horovod" else install_line(package),
                )


def without_own_root(folder: Path) -> str | None:
    """Return a note for the user if dtj can't mount a `/dtj` for each program on this machine, else None.

    folder: the existing folder of a run.
    """
    command = [sys.executable, "-P", "-m", "dtj_trainer.launch.own_root", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - no shell
    fault = result.stdout or result.stderr.strip().rpartition("\n")[2]
    if not fault:
        return None
    return (
        f"dtj can't mount a {contract.ROOT} for each program on this machine: {fault}. Paths below {contract.ROOT} "
        f"in command, args and env still refer to the workspace. A script that contains such a path uses the "
        f"{contract.ROOT} of this machine: all jobs share the files there, and dtj does not upload them"
    )


def share_gpus(job: Job, plan: Plan, devices: Sequence[str]) -> dict[str, list[str]]:
    """Return the devices of each pod, by pod name.

    Each replica has its own devices. All ranks of Horovod see all devices of the job, because MPI counts the local
    ranks of the whole machine. Raises Unusable when the job asks for more devices than this machine has.
    """
    resource = job.spec.accelerator.resource_name
    requested = {
        name: int(limits_of(recipe.spec).get(resource, recipe.spec.gpus) or 0)
        for name, recipe in plan.recipes.items()
    }
    total = sum(requested.values())
    if total > len(devices):
        raise Unusable(
            f"the job asks for {total} GPUs, this machine has {len(devices)} that dtj may use",
            "reduce replicas or gpus, widen CUDA_VISIBLE_DEVICES, or run the job on a cluster: dtj submit FILE",
        )
    if job.rules.shares_gpus:
        return {name: list(devices[:total]) for name, count in requested.items() if count}
    left = iter(devices)
    return {name: [next(left) for _ in range(count)] for name, count in requested.items() if count}


def gpus() -> list[str]:
    """Return the NVIDIA devices that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [device.strip() for device in visible.split(",") if device.strip() not in ("", "-1")]
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        listing = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=20, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return []
    lines = [line for line in listing.stdout.splitlines() if line.startswith("GPU ")]
    return [str(number) for number in range(len(lines))]


def free_ports(count: int, taken: Collection[int] = ()) -> list[int]:
    """Return ports on which no process listens, below the ephemeral ports of outgoing connections.

    taken: ports that are left out, because programs that do not listen yet will use them.
    """
    free: list[int] = []
    candidates = [port for port in range(_LOWEST_PORT, _HIGHEST_PORT) if port not in taken]
    random.shuffle(candidates)
    for port in candidates:
        if len(free) == count:
            break
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            free.append(port)
    return free


def _search_path() -> str:
    """Return the PATH that the processes of the job get."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"

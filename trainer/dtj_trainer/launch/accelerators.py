"""Checks for accelerators before a pod's program starts, without a framework.

The check fails only where it is certain that no program can use an accelerator. With accelerators of an unknown
vendor, with a driver that does not answer in time, or with a driver library outside the search path, the program
starts.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from dtj_trainer.launch import cuda_driver

log = logging.getLogger(__name__)

DRIVER_SECONDS = 60.0
"""How long the driver may take to answer. Without persistence mode, a driver first initializes each GPU of the node,
which takes seconds."""
_WAIT_SECONDS = DRIVER_SECONDS + 5.0
"""Longer than DRIVER_SECONDS: a process that hangs in the driver can't always be killed, so the check gives up."""
_REMEDY = "docs/gpu-images.md describes what a node and an image need; with gpus: 0, the job trains on CPUs"

Driver = Callable[[], Mapping[str, object]]


class AcceleratorCheck:
    """A check that starts with the object, and queries CUDA's driver in the background.

    `asked`: how many accelerators the pod requested. `resource`: their resource name, for example nvidia.com/gpu.
    `devices`: the folder of device files.
    """

    def __init__(
        self, asked: int, resource: str, devices: Path = Path("/dev"), driver: Driver | None = None
    ) -> None:
        self._asked = f"{asked} of {resource} {'was' if asked == 1 else 'were'} asked for"
        self._fault: str | None = None
        self._driver = driver or _ask_driver
        self._thread: threading.Thread | None = None
        make = resource.partition("/")[0] if asked > 0 else ""
        if make in ("nvidia.com", "amd.com") and (without := _without_gpus()):
            log.warning("%s, and %s: a program that uses it computes on the CPU", self._asked, without)
        if make == "nvidia.com":
            if has_nvidia(devices):
                self._thread = threading.Thread(target=self._ask, name="accelerators", daemon=True)
                self._thread.start()
            else:
                self._fault = self._without_devices(f"no device of NVIDIA ({devices}/nvidia0)")
        elif make == "amd.com" and not (devices / "kfd").exists():
            self._fault = self._without_devices(f"no device of AMD ({devices}/kfd)")

    def fault(self, *, wait: bool) -> str | None:
        """Return why no program can use an accelerator here; None if programs can, or while nothing is known.

        wait: wait for the driver's answer, _WAIT_SECONDS at most.
        """
        if wait and self._thread is not None:
            self._thread.join(_WAIT_SECONDS)
        return self._fault

    def _without_devices(self, what: str) -> str:
        return (
            f"{self._asked}, and the container has {what}: the node's container runtime gave the container none. "
            f"Set spec.accelerator.runtimeClassName to a RuntimeClass that gives containers accelerators; {_REMEDY}"
        )

    def _ask(self) -> None:
        answer = self._driver()
        if answer.get("library") is False:
            log.warning(
                "%s, and no libcuda.so.1 is found, without which no program can use CUDA: the node's driver is not "
                "in the container, or not on LD_LIBRARY_PATH",
                self._asked,
            )
        elif answer.get("devices") == 0 or "error" in answer:
            why = answer.get("error", "it counts no devices")
            self._fault = f"{self._asked}, and CUDA's driver offers none: {why}; {_REMEDY}"


def has_nvidia(devices: Path) -> bool:
    """Return whether a device file of any NVIDIA driver exists: for servers, WSL or Jetson.

    NVIDIA_VISIBLE_DEVICES is no proof: with devices from CDI, its value is `void`.
    """
    return any((devices / name).exists() for name in ("dxg", "nvgpu", "nvhost-gpu")) or any(
        path.name.removeprefix("nvidia").isdecimal() for path in devices.glob("nvidia[0-9]*")
    )


def _without_gpus() -> str | None:
    """Return a text if this Python's PyTorch is built for CPUs only; None otherwise. PyTorch is not imported.

    The result is a warning only: the program may use another environment or another framework.
    """
    found = find_spec("torch")
    if found is None or found.origin is None:
        return None
    try:
        built = (Path(found.origin).parent / "version.py").read_text()
    except OSError:
        return None
    makes = dict(re.findall(r"^(cuda|hip)\b[^=\n]*= *(.+)$", built, re.MULTILINE))
    if makes and set(makes.values()) == {"None"}:
        return "PyTorch in this image is built without CUDA (docs/gpu-images.md)"
    return None


def _ask_driver() -> Mapping[str, object]:
    """Return what `cuda_driver` prints; empty on an error."""
    command = [sys.executable, "-I", "-S", cuda_driver.__file__]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DRIVER_SECONDS)  # noqa: S603
        answer = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        log.warning("CUDA's driver could not be asked for its devices: %s", error)
        return {}
    return answer if isinstance(answer, dict) else {}

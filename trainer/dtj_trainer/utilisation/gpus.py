"""Readings of NVIDIA's GPUs by NVML, the library behind nvidia-smi."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dtj_trainer.launch.accelerators import has_nvidia
from dtj_trainer.utilisation.readings import GpuReading

log = logging.getLogger(__name__)


def _pynvml() -> Any:
    import pynvml

    return pynvml


class Gpus:
    """The GPUs that the container has. Where NVML does not answer, there are no readings, and one warning."""

    def __init__(self, devices: Path = Path("/dev"), nvml: Callable[[], Any] = _pynvml) -> None:
        """devices: the folder of device files. nvml: returns the module pynvml (of nvidia-ml-py)."""
        self._told = False
        self._handles: dict[str, Any] | None = None
        self._nvml: Any = None
        if has_nvidia(devices):
            try:
                self._nvml = nvml()
            except ImportError:
                self._tell("nvidia-ml-py is not installed here")

    def read(self) -> Mapping[str, GpuReading]:
        """Return the reading of each GPU, by number; empty where none can be read."""
        if self._nvml is None:
            return {}
        try:
            if self._handles is None:
                self._handles = self._open()
            return {number: self._reading(handle) for number, handle in self._handles.items()}
        except self._nvml.NVMLError as error:
            self._tell(str(error))
            return {}

    def _open(self) -> dict[str, Any]:
        self._nvml.nvmlInit()
        numbers = range(self._nvml.nvmlDeviceGetCount())
        return {str(number): self._nvml.nvmlDeviceGetHandleByIndex(number) for number in numbers}

    def _reading(self, handle: Any) -> GpuReading:
        nvml = self._nvml
        rates = self._supported(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._supported(self._memory, handle)
        power = self._supported(nvml.nvmlDeviceGetPowerUsage, handle)
        return GpuReading(
            utilisation=None if rates is None else rates.gpu / 100,
            memory_used=None if memory is None else memory.used,
            memory=None if memory is None else memory.total,
            power=None if power is None else power / 1000,
        )

    def _memory(self, handle: Any) -> Any:
        """Return total and used memory, without what the driver reserves: what nvidia-smi shows."""
        nvml = self._nvml
        try:
            return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        except nvml.NVMLError_FunctionNotFound:
            # A driver before 510 has only the version that counts the reserve as used.
            return nvml.nvmlDeviceGetMemoryInfo(handle)

    def _supported(self, ask: Callable[[Any], Any], handle: Any) -> Any:
        """Return the answer; None where the GPU does not have the figure, as a slice of a GPU has no utilisation."""
        try:
            return ask(handle)
        except self._nvml.NVMLError_NotSupported:
            return None

    def _tell(self, why: str) -> None:
        if not self._told:
            self._told = True
            log.warning("the utilisation of GPUs is not measured: %s", why)

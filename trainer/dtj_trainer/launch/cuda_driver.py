"""Asks CUDA's driver for its devices, in a process of its own: a broken driver may hang or crash whoever asks.

Run as a file, by any Python 3 and without packages. Prints one line of JSON: `{"library": false}` where the
driver's library is not to be had, `{"devices": 2}`, or `{"error": "CUDA_ERROR_NO_DEVICE (100)"}`.
"""

from __future__ import annotations

import ctypes
import json

LIBRARIES = (
    "libcuda.so.1",
    # Where GKE and WSL put the library; not every image has these folders on its search path.
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
)


def answer() -> dict[str, object]:
    """What the driver says; see the module."""
    driver = _library()
    if driver is None:
        return {"library": False}
    if error := driver.cuInit(0):
        return {"error": _named(driver, error)}
    count = ctypes.c_int()
    if error := driver.cuDeviceGetCount(ctypes.byref(count)):
        return {"error": _named(driver, error)}
    return {"devices": count.value}


def _library() -> ctypes.CDLL | None:
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _named(driver: ctypes.CDLL, error: int) -> str:
    name = ctypes.c_char_p()
    if driver.cuGetErrorName(error, ctypes.byref(name)) or name.value is None:
        return f"error {error}"
    return f"{name.value.decode(errors='replace')} ({error})"


if __name__ == "__main__":
    print(json.dumps(answer()), flush=True)

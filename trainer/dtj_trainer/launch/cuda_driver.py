"""Queries CUDA's driver for its devices, in a separate process, because a broken driver may hang or crash its caller.

Run it as a file, with any Python 3 and without packages. It prints one line of JSON: `{"library": false}` without the
driver's library, `{"devices": 2}`, or `{"error": "CUDA_ERROR_NO_DEVICE (100)"}`.
"""

from __future__ import annotations

import ctypes
import json

LIBRARIES = (
    "libcuda.so.1",
    # GKE and WSL install the library here. Not every image has these folders on its search path.
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
)


def answer() -> dict[str, object]:
    """Return the line to print; see the module."""
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

"""Exports the final model to ONNX, in a process of its own, after the training.

The process imports a framework anew: threads, memory and MPI of the trained process play no role. Whatever happens to
it, the training has succeeded, and its model stays as it is. The log and model.json then say why there is no ONNX
model.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING

from dtj_trainer import contract, progress
from dtj_trainer.contract.distribution import install_line
from dtj_trainer.launch import cgroups
from dtj_trainer.parent_death import die_with_parent
from dtj_trainer.train import model_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import IO

log = logging.getLogger(__name__)

FORMS = {
    "model.pt2": ("onnx", "onnxruntime", "onnxscript"),
    "model.keras": ("onnx", "onnxruntime", "tf2onnx"),
}
"""The files that are exported, and the modules of the extra `export` that the export of each needs."""
REFUSED = 3
"""The exit code of a trial that has found out that the model can't be exported."""
LIMIT_SECONDS = 900.0
"""The time limit of an export. The largest built-in network takes a minute on a busy machine."""
LEAST_ROOM = 1 << 30
"""Bytes of memory that an export needs, besides ROOM_FACTOR times the size of the model."""
ROOM_FACTOR = 6
LAST_ROOM = 64 << 20
"""With fewer bytes of memory left in the container, dtj ends the export. On most nodes, the kernel's OOM killer would
otherwise kill all processes of the container."""
LOOK_SECONDS = 0.02
"""Seconds between two checks of the free memory. A process needs longer than that to fill LAST_ROOM bytes."""
_STOPPED = "the pod was stopped during the export"
_NO_MEMORY = "the export ran out of memory: raise the container's memory limit"
_OF_RANKS = ("OMPI_", "PMIX_", "PMI_", "HOROVOD_", "TF_CONFIG", "TORCHELASTIC_", "MASTER_")
"""Prefixes of environment variables that make a process a rank of a training. _RANK_NAMES has whole names."""
_RANK_NAMES = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "GROUP_RANK",
}


class _NotExported(Exception):
    """The export can't succeed, or failed. The message is the reason, for the user."""


def export_model(folder: Path, stopping: Callable[[], bool]) -> None:
    """Write model.onnx beside a final model, complete its model.json, and write the manifest anew.

    `stopping` says whether the process has to end. Never raises: `export` in model.json and the job's progress say
    what failed. Without the packages of the extra `export`, the model is left as it is, and the log says so.
    """
    form = next((name for name in FORMS if (folder / name).is_file()), None)
    if form is None:
        return
    if missing := [name for name in FORMS[form] if importlib.util.find_spec(name) is None]:
        log.info(
            "the model is not exported to ONNX: packages are not installed: %s; %s",
            ", ".join(missing),
            install_line("export"),
        )
        return
    began = time.monotonic()
    progress.exporting()
    try:
        _check_memory((folder / form).stat().st_size)
        _run(folder, stopping)
    except _NotExported as reason:
        _tell(folder, str(reason))
    except Exception as error:
        log.debug("the export failed", exc_info=True)
        _tell(folder, f"{type(error).__name__}: {error}")
    else:
        progress.exported()
        log.info("%s is written, in %.1f s", folder / contract.MODEL_ONNX_FILE, time.monotonic() - began)


def begin_trial(command: list[str], size: int) -> None:
    """Start a program that tries the export of a model of `size` bytes beside the training, if memory allows.

    If the program exits with REFUSED, the last line of its output goes to the log and to the job's progress.
    """
    try:
        _check_memory(size)
        # Use a file, not a pipe: the output is read after the program has ended, and a full pipe would block it.
        output = tempfile.TemporaryFile()  # noqa: SIM115 - the thread closes it
        process = _started(command, output, subprocess.DEVNULL)
    except (_NotExported, OSError) as reason:
        log.info("no trial of the export runs beside the training: %s", reason)
        return

    def tell() -> None:
        with output:
            if process.wait() == REFUSED:
                output.seek(0)
                lines = output.read().decode(errors="replace").strip().splitlines()
                progress.exported(lines[-1])
                log.warning("the export at the end of this training will fail: %s", lines[-1])

    threading.Thread(target=tell, name="export-trial", daemon=True).start()


def _started(command: list[str], output: IO[bytes], errors: int) -> subprocess.Popen[bytes]:
    """Start a program that is no rank of the training, and the first that the kernel kills if memory runs out."""
    return subprocess.Popen(
        command,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        preexec_fn=_expendable(),
    )


def _check_memory(size: int) -> None:
    """Raise _NotExported if the container has no room for a model file of `size` bytes."""
    room, needed = _room(), LEAST_ROOM + ROOM_FACTOR * size
    if room is not None and room < needed:
        raise _NotExported(
            f"the export needs {needed >> 20} MiB of memory, but the container's memory limit leaves "
            f"{room >> 20} MiB: raise the limit"
        )


def _room() -> int | None:
    """Return the bytes that are left to this container; None without a limit."""
    usage = cgroups.usage()
    if usage.memory is None or usage.memory_limit is None:
        return None
    return usage.memory_limit - usage.memory


def _run(folder: Path, stopping: Callable[[], bool]) -> None:
    """Run the export to its end. Raises _NotExported unless it succeeds."""
    command = [sys.executable, "-P", "-m", "dtj_trainer.serving.export", str(folder)]
    with tempfile.TemporaryFile() as output:
        process = _started(command, output, subprocess.STDOUT)
        try:
            why = _watched(process, stopping)
        finally:
            process.kill()
            code = process.wait()
        if code and (why or stopping()):
            raise _NotExported(why or _STOPPED)
        if code == -signal.SIGKILL:
            raise _NotExported(_NO_MEMORY)
        if code:
            output.seek(0)
            lines = output.read().decode(errors="replace").strip().splitlines()
            raise _NotExported(lines[-1][:1000] if lines else f"the export ended with exit code {code}")


def _watched(process: subprocess.Popen[bytes], stopping: Callable[[], bool]) -> str | None:
    """Wait for the end of the export; return why the export has to be killed, or None if it ended by itself."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        try:
            process.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        else:
            return None
        if stopping():
            return _STOPPED
        if (room := _room()) is not None and room < LAST_ROOM:
            return _NO_MEMORY
        if time.monotonic() > deadline:
            return f"the export took more than {LIMIT_SECONDS:.0f} s"


def _environment() -> dict[str, str]:
    """Return the variables for a process that is no rank, and uses no GPU."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_OF_RANKS) and name not in _RANK_NAMES
    }
    return {**kept, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}


def _expendable() -> Callable[[], None]:
    """Return a `preexec_fn`: the new process ends with this one, and is the OOM killer's first choice."""
    die = die_with_parent()

    def start() -> None:
        die()
        # The OOM killer prefers the process with the highest value. The end of a rank would fail the job.
        with contextlib.suppress(OSError):
            os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC), b"1000")

    return start


def _tell(folder: Path, reason: str) -> None:
    """Say in the log, in the job's progress and in model.json why there is no ONNX model."""
    progress.exported(reason)
    log.warning("the model is not exported to ONNX: %s; `dtj export` can export it later", reason)
    try:
        description = json.loads((folder / contract.MODEL_DESCRIPTION_FILE).read_bytes())
        (folder / contract.MODEL_ONNX_FILE).unlink(missing_ok=True)
        model_files.write_description(folder, {**description, "export": {"error": reason}})
    except (OSError, ValueError, TypeError) as error:
        log.warning(
            "%s does not record that the export failed: %s", folder / contract.MODEL_DESCRIPTION_FILE, error
        )

"""Warm interpreters: processes that have imported a framework and fork for each program of a test.

Importing PyTorch takes 3 s of a processor, importing TensorFlow 4 s. A test gives `warm.python("torch")` in place of
`sys.executable`. This `python` is a process of its own for the test: it hands its arguments, environment, working
directory and files to a warm interpreter, passes signals on, and ends as the program ends. A program that needs other
settings at its import than the warm interpreter has, runs in a cold interpreter.

A forked program is a new process with fresh modules of dtj: only the modules of FRAMEWORKS are shared. Its parent,
process group, cgroup and /proc entry are those of the warm interpreter: tests of processes use `sys.executable`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ENV_FOLDER = "WARM_PYTHON"
"""Names the folder of this run of pytest, also in the workers of pytest-xdist."""
ENV_LEDGER, LEDGER = "WARM_PYTHON_LEDGER", ".used"
"""Names the file for the processor seconds of the programs of one process of pytest."""
HASH_SEEDS = ("1", "2")
"""One server for each: ranks of one training that iterate over sets see different orders, as cold ranks do."""
START_SECONDS = 300
COLD = "cold.log"
KILL = signal.SIGRTMIN
"""Send it to a warm process where another takes SIGKILL: it ends with -SIGKILL once its program has ended."""


@dataclass(frozen=True)
class Framework:
    """What a warm interpreter has imported."""

    modules: tuple[str, ...]
    environment: dict[str, str]
    """Settings that modules read while they are imported. Programs with other settings start cold."""
    settings: tuple[str, ...] = ()
    """Beginnings of the names of further variables of this kind, beside those of OF_ALL."""
    path: tuple[str, ...] = ()
    """Folders before all others of sys.path."""
    hidden: tuple[str, ...] = ()
    """Modules that the programs' image does not have."""
    again: tuple[str, ...] = ()
    """Modules that read the environment while they are imported: run again for each program."""


_NO_THREADS = {"OPENBLAS_NUM_THREADS": "1"}  # numpy would start threads at its import, which no fork has.
_OF_TORCH = ("PYTORCH_", "TORCH_")
_OF_TENSORFLOW = ("KERAS_", "TF_", "XLA_")
_ROOT = Path(__file__).parents[2]
FRAMEWORKS = {
    "torch": Framework(
        modules=(
            *("numpy", "PIL.Image", "boto3", "botocore.client", "botocore.session", "urllib3"),
            *("torch", "torch._dynamo", "torch.distributed.nn.functional", "torch.distributed.run"),
            *("torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.distributed.pipelining"),
            *("torch.distributed.checkpoint.state_dict", "horovod.torch"),
            *("torch.export._trace", "torch.export.pt2_archive._package", "torch._inductor.ir"),
            "google.protobuf.descriptor_pb2",
        ),
        environment=_NO_THREADS,
        settings=_OF_TORCH,
    ),
    "tensorflow": Framework(
        modules=(
            *("numpy", "PIL.Image", "boto3", "botocore.client", "botocore.session", "urllib3"),
            *("tensorflow", "keras", "tensorflow.python.distribute.distribute_lib"),
        ),
        environment=_NO_THREADS | {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""},
        settings=_OF_TENSORFLOW,
        path=(str(_ROOT / "tests/trainer/not_in_the_images"),),
    ),
}
FRAMEWORKS["operator"] = Framework(
    modules=("dtj.process",),
    environment={},
    hidden=("kubernetes_validate",),
    again=("kubernetes.config.kube_config", "kubernetes.aio.config.kube_config"),
)
FRAMEWORKS["horovod-tensorflow"] = Framework(
    modules=(*FRAMEWORKS["tensorflow"].modules, "horovod.tensorflow"),
    environment=FRAMEWORKS["tensorflow"].environment,
    settings=_OF_TENSORFLOW,
    path=(str(Path(sys.prefix) / "horovod-tensorflow"), *FRAMEWORKS["tensorflow"].path),
)


def python(framework: str) -> str:
    """The path of a `python` with a framework of FRAMEWORKS. Start its servers unless they run."""
    folder = Path(os.environ[ENV_FOLDER]) / framework
    os.environ[ENV_LEDGER] = f"{folder.parent}/{os.getpid()}{LEDGER}"
    executable = folder / "python"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not executable.exists():
            _start(folder, framework)
            _write_client(executable, FRAMEWORKS[framework])
    return str(executable)


def _start(folder: Path, framework: str) -> None:
    has = FRAMEWORKS[framework]
    processes = []
    for number, seed in enumerate(HASH_SEEDS):
        with (folder / f"{number}.log").open("wb") as log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.warm.server", framework, folder / f"{number}.socket"],
                    cwd=_ROOT,
                    env={
                        **{name: value for name, value in os.environ.items() if not _is_set_here(name)},
                        **OUTSIDE,
                        **has.environment,
                        "PYTHONHASHSEED": seed,
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
        (folder / f"{number}.pid").write_text(str(processes[-1].pid))
    deadline = time.monotonic() + START_SECONDS
    while not all((folder / f"{number}.socket").exists() for number in range(len(HASH_SEEDS))):
        ended = [process for process in processes if process.poll() is not None]
        if ended or time.monotonic() > deadline:
            text = "\n".join(log.read_text(errors="replace") for log in sorted(folder.glob("*.log")))
            raise RuntimeError(f"the warm interpreters of {framework} do not start:\n{text}")
        time.sleep(0.05)


OF_ALL = ("KMP_", "LD_", "MKL_", "NUMEXPR_", "OMP_", "OPENBLAS_", "PYTHON")
"""Beginnings of the names of variables that any framework may read while it is imported."""
READ_LATER = {
    *("PYTHON_EXEC", "PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED"),
    *("TF_CONFIG", "TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES", "TF_GRPC_DEFAULT_OPTIONS"),
    *("OMP_NUM_THREADS", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
}
"""Variables with these beginnings that programs read later; the server sets the number of threads."""
NAMESPACES = ("user", "net", "pid", "ipc")
"""A client in other ones than pytest's starts cold. Its mount namespace may be its own."""


def decides_an_import(name: str) -> bool:
    """Whether a variable may change what an import does."""
    return name not in READ_LATER and name.startswith((*OF_ALL, *_OF_TORCH, *_OF_TENSORFLOW))


OUTSIDE = {name: value for name, value in os.environ.items() if decides_an_import(name)}
"""The settings of the machine, before any test changes one."""


def _is_set_here(name: str) -> bool:
    return decides_an_import(name) or name == "OMP_NUM_THREADS"


def _write_client(executable: Path, framework: Framework) -> None:
    values = {
        "PYTHON": sys.executable,
        "KILL": int(KILL),
        "FOLDER": str(executable.parent),
        "COLD": COLD,
        "SETTINGS": OUTSIDE | framework.environment,
        "IMPORT_SETTINGS": (*OF_ALL, *framework.settings),
        "READ_LATER": READ_LATER,
        "NAMESPACES": {name: str(Path(f"/proc/self/ns/{name}").readlink()) for name in NAMESPACES},
    }
    text = Path(__file__).with_name("client.py").read_text()
    lines = [f"#!{sys.executable} -IS", *(f"{name} = {value!r}" for name, value in values.items())]
    new = executable.with_name("new")
    new.write_text("\n".join([*lines, text]))
    new.chmod(0o755)
    new.rename(executable)


def cold_starts() -> Counter[str]:
    """Numbers of programs of this run of pytest that have started cold, by reason."""
    logs = Path(os.environ[ENV_FOLDER]).glob(f"*/{COLD}")
    return Counter(line.partition(": [")[0] for log in logs for line in log.read_text().splitlines())


def used() -> float:
    """Processor seconds of the programs so far that this process has started, and that have ended."""
    with suppress(KeyError, OSError):
        ledger = Path(os.environ[ENV_FOLDER]) / f"{os.getpid()}{LEDGER}"
        return sum(map(float, ledger.read_text().split()))
    return 0.0


def make_folder() -> None:
    """Begin a run of pytest: its workers share the servers that `python` starts."""
    os.environ[ENV_FOLDER] = tempfile.mkdtemp(prefix=f"warm-{os.getpid()}-")


def pytest_pid() -> int:
    """The process without which the servers end."""
    return int(Path(os.environ[ENV_FOLDER]).name.split("-")[1])


def end() -> None:
    """End a run of pytest: end the servers, and programs that a test has left."""
    folder = Path(os.environ.pop(ENV_FOLDER))
    for file in folder.glob("*/*.pid"):
        with suppress(ProcessLookupError):
            os.kill(int(file.read_text()), signal.SIGTERM)
    shutil.rmtree(folder, ignore_errors=True)

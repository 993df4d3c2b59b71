"""`python -m tests.warm.server FRAMEWORK SOCKET`: import a framework, then fork for each program; see `tests.warm`.

Three processes serve a program: this one forks a keeper, and the keeper forks the program. The keeper passes signals
to the program and its end to the client, and kills the program when the client is gone.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import marshal
import os
import runpy
import select
import signal
import socket
import sys
import types
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.warm import ENV_LEDGER, FRAMEWORKS, Framework, pytest_pid

FILES = 3
LIBC = ctypes.CDLL(None, use_errno=True)


def serve(framework: Framework, path: Path) -> list[str]:
    """Serve at a socket until SIGTERM, or until pytest is gone. Return in a program's process: its arguments."""
    sys.path[1:1] = framework.path
    sys.modules.update(dict.fromkeys(framework.hidden))  # type: ignore[arg-type]
    for module in framework.modules:
        if importlib.util.find_spec(module.partition(".")[0]):
            importlib.import_module(module)
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        raise SystemExit(f"{threads} threads after the imports: a fork would have one of them")
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    hidden = path.with_suffix(".new")
    listener.bind(str(hidden))
    listener.listen(64)
    hidden.rename(path)
    pytest = os.pidfd_open(pytest_pid())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # The kernel reaps the keepers.
    while True:
        ready, _, _ = select.select([listener, pytest], [], [])
        if pytest in ready:
            sys.exit()
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os.close(pytest)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _keep(connection)
        connection.close()


def _keep(connection: socket.socket) -> list[str]:
    """Return in the process of the program alone: its arguments."""
    length, files, _, _ = socket.recv_fds(connection, 4, FILES)
    if len(files) < FILES:
        os._exit(1)
    request, missing = b"", int.from_bytes(length, "little")
    while missing:
        request += (part := connection.recv(missing))
        missing -= len(part)
        if not part:
            os._exit(1)
    arguments, environment, *place = marshal.loads(request)
    pid = os.fork()
    if pid == 0:
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        _enter_mounts(connection)
        connection.close()
        return _become(arguments, environment, *place)
    for file in files:
        os.close(file)
    ended = os.pidfd_open(pid)
    while True:
        ready, _, _ = select.select([connection, ended], [], [])
        if connection in ready:
            numbers = connection.recv(64)
            for number in numbers:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            if not numbers:
                for kill in (os.kill, os.killpg):
                    with suppress(ProcessLookupError):
                        kill(pid, signal.SIGKILL)
                _wait(pid, environment)
                os._exit(1)
        if ended in ready:
            code = _wait(pid, environment)
            with suppress(OSError):
                connection.sendall(code.to_bytes(4, "little", signed=True))
            os._exit(0)


def _wait(pid: int, environment: dict[str, str]) -> int:
    """The exit code of the program, whose processor seconds are noted."""
    _, status, used = os.wait4(pid, 0)
    with suppress(KeyError, OSError), Path(environment[ENV_LEDGER]).open("a") as ledger:
        ledger.write(f"{used.ru_utime + used.ru_stime:.2f}\n")
    return os.waitstatus_to_exitcode(status)


def _enter_mounts(connection: socket.socket) -> None:
    """Enter the mount namespace of the client: under `dtj run` it has a /dtj of its own."""
    client = int.from_bytes(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder
    )
    theirs = Path(f"/proc/{client}/ns/mnt")
    if theirs.samefile("/proc/self/ns/mnt"):
        return
    with theirs.open() as namespace:
        if LIBC.setns(namespace.fileno(), 0):
            raise OSError(ctypes.get_errno(), "setns")


def _become(
    arguments: list[str], environment: dict[str, str], folder: str, umask: int, niceness: int
) -> list[str]:
    """Take the settings of the client's process."""
    os.setsid()
    os.chdir(folder)
    os.umask(umask)
    os.setpriority(os.PRIO_PROCESS, 0, niceness)
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [entry for entry in sys.path if entry not in path]
    os.environ.clear()
    os.environ.update(environment)
    sys.path[1:1] = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if environment.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules and (threads := environment.get("OMP_NUM_THREADS")):
        sys.modules["torch"].set_num_threads(int(threads))
    return arguments


def run(arguments: list[str]) -> None:
    """Run a program as `python ARGUMENTS…` does."""
    main_module: Any = types.ModuleType("__main__")
    main_module.__builtins__ = __builtins__
    sys.modules["__main__"] = main_module
    if arguments[0] == "-m":
        sys.path[0] = str(Path.cwd())
        sys.argv[:] = arguments[1:]
        runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]
        return
    if arguments[0] == "-c":
        sys.path[0] = ""
        sys.argv[:] = ["-c", *arguments[2:]]
        source, name = arguments[1], "<string>"
    else:
        sys.path[0] = str(Path(arguments[0]).resolve().parent)
        sys.argv[:] = arguments
        source, name = Path(arguments[0]).read_text(), arguments[0]
        main_module.__file__ = name
    exec(compile(source, name, "exec"), main_module.__dict__)


if __name__ == "__main__":
    kept = FRAMEWORKS[sys.argv[1]]
    words = serve(kept, Path(sys.argv[2]))
    for module in kept.again:
        if module in sys.modules:
            importlib.reload(sys.modules[module])
    run(words)

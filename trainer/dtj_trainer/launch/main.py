"""`dtj-launch KIND -- COMMAND…`: runs one process of a job in this container."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NoReturn

from dtj_trainer import contract
from dtj_trainer.contract.failure_class import FailureClass
from dtj_trainer.launch import own_root
from dtj_trainer.launch.processes import adopt_orphans
from dtj_trainer.launch.settings import Settings, SettingsError, read_settings
from dtj_trainer.launch.termination import write_termination

# A minimal init as process 1 of a container without tini: it reaps orphans and forwards signals.

# Signals that the kernel raises in the faulty process itself, or that can't be waited for.
_NOT_PASSED_ON = {
    *(signal.SIGKILL, signal.SIGSTOP),
    *(
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGABRT,
        signal.SIGTRAP,
        signal.SIGSYS,
    ),
}


def leave_process_1() -> None:
    """If this is process 1, continue in a child, and run a small init in process 1; otherwise do nothing.

    Processes whose parent has ended become children of process 1. dtj-launch waits only for its own children. As
    process 1 it would accumulate zombies of all others: a week of data loaders may use up all pids of a pod. Call the
    function before any thread is started.
    """
    if os.getpid() != 1:
        return
    waited_for = signal.valid_signals() - _NOT_PASSED_ON
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    # When process 1 exits, the kernel kills all other processes of the container.
    os._exit(_look_after(child, waited_for))


def _look_after(child: int, waited_for: Collection[int]) -> int:
    """Serve until the child has ended; return its exit code, as a shell reports it."""
    while True:
        number = signal.sigwaitinfo(waited_for).si_signo
        if number != signal.SIGCHLD:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
        elif (status := _reaped(child)) is not None:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _reaped(child: int) -> int | None:
    """Reap all ended processes, as one signal may stand for several; return the child's status if it ended."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == child:
            found = status


log = logging.getLogger(__name__)

USAGE = """usage: dtj-launch KIND -- COMMAND [ARGUMENT…]

Runs one process of a distributed training job, by its kind:
  replica    restores artifacts, runs COMMAND as the pod's one process, uploads artifacts
  ranks      restores artifacts, runs COMMAND once for each PyTorch rank of the pod, uploads artifacts
  worker     restores artifacts, serves ssh, uploads artifacts while ranks run
  launcher   waits for the workers and runs COMMAND on them by mpirun or gloo
  rank       runs COMMAND as one rank in a worker's pod
  command    runs COMMAND as it is: a container's own command, where the workspace is not at /dtj (dtj run), or in
             the folder of the job's code

dtj-launch reads its settings from the environment (DTJ_…, AWS_…); docs/contract.md describes the variables.
"""

Kind = Callable[[Settings, Sequence[str]], int]


def _worker(settings: Settings, command: Sequence[str]) -> int:
    from dtj_trainer.launch.worker import run_worker

    return run_worker(settings, command)


def _launcher(settings: Settings, command: Sequence[str]) -> int:
    from dtj_trainer.launch.launcher import run_launcher

    return run_launcher(settings, command)


def _rank(settings: Settings, command: Sequence[str]) -> int:
    from dtj_trainer.launch.horovod_rank import run_rank

    return run_rank(settings, command)


def _replica(settings: Settings, command: Sequence[str]) -> int:
    from dtj_trainer.launch.replica import run_replica

    return run_replica(settings, command)


def _ranks(settings: Settings, command: Sequence[str]) -> int:
    from dtj_trainer.launch.replica import run_ranks

    return run_ranks(settings, command)


def _command(settings: Settings, command: Sequence[str]) -> int:
    try:
        if settings.code_folder is not None:
            os.chdir(settings.code_folder)
        os.execvpe(command[0], [*command], settings.environment)  # noqa: S606 - the purpose
    except OSError as error:
        sys.stderr.write(f"dtj-launch: {command[0]}: {error.strerror}\n")
    return contract.EXIT_COMMAND_NOT_FOUND


KINDS: dict[str, Kind] = {
    "replica": _replica,
    "ranks": _ranks,
    "worker": _worker,
    "launcher": _launcher,
    "rank": _rank,
    "command": _command,
}
NEEDS_NO_COMMAND = {"worker"}
RUN_PROGRAMS = {"rank", "ranks", "replica", "command"}
ADOPT_ORPHANS = {"rank", "ranks", "replica"}
BRING_CODE = {"worker", "ranks", "replica", "command"}
"""Kinds that unpack the job's code and install its packages. A rank uses the code that its pod's worker unpacked."""
KEEP_CHECKPOINTS = {"worker", "ranks", "replica"}
WITHOUT_MESSAGE = {"rank", "command"}
"""Kinds whose termination message another process of the pod writes."""
NO_POD = {contract.ENV_POD: contract.PodInfo(role="command", index=0).to_json()}
"""The PodInfo of `command` outside of a job's pod."""
EXIT_SOFTWARE = 70
"""The exit code of an error in dtj-launch itself (sysexits.h)."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line; return the exit code."""
    words, command = _split(arguments)
    if words in (["-h"], ["--help"]):
        sys.stdout.write(USAGE)
        return 0
    kind = KINDS.get(words[0]) if len(words) == 1 else None
    if kind is None or not (command or words[0] in NEEDS_NO_COMMAND):
        sys.stderr.write(USAGE)
        return contract.EXIT_CONFIG
    name = words[0]
    try:
        settings = read_settings({**NO_POD, **os.environ} if name == "command" else os.environ)
    except SettingsError as error:
        sys.stderr.write(f"dtj-launch: {error}\n")
        return contract.EXIT_CONFIG
    _log_to_stderr(f"[rank {settings.rank}] " if name == "rank" and settings.rank is not None else "")
    for number in (signal.SIGTERM, signal.SIGINT):
        # Process 1 of a container ignores signals without a handler. Each kind installs its own handlers later.
        signal.signal(number, _leave if name in WITHOUT_MESSAGE else _leave_with_message(settings))
    if failed := _prepare_folders(name, settings):
        return failed
    try:
        environment = dict(settings.environment)
        if environment.get(contract.ENV_CHECKPOINTS_DIR):
            environment[contract.ENV_CHECKPOINTS_DIR] = str(settings.checkpoints_dir or settings.checkpoints)
        if name in RUN_PROGRAMS and settings.own_root:
            kept = settings.checkpoints_dir if settings.artifacts_uri else None
            command, environment = own_root.enter(settings.root, command, environment, kept)
        environment = _with_code(environment, settings)
        settings = replace(settings, environment=environment)
        # This process itself reads the AWS variables and the paths of folders, too.
        os.environ.update(environment)
        if name in ADOPT_ORPHANS:
            adopt_orphans()
        return kind(settings, command)
    except own_root.NoNamespaceError as error:
        log.error("%s", error)
        return contract.EXIT_CONFIG
    except Exception as error:
        log.exception("dtj-launch itself failed")
        message = f"dtj-launch itself failed: {error!r}"
        report = _termination(settings, FailureClass.APPLICATION_ERROR, message, EXIT_SOFTWARE)
        write_termination(settings.termination_log, report)
        return EXIT_SOFTWARE


def _prepare_folders(name: str, settings: Settings) -> int:
    """Make the folders of code and checkpoints that a kind needs; return the exit code of a failure, or 0."""
    # Bring the code first: the folder of checkpoints may lie in the folder of the code.
    if name in BRING_CODE and (settings.code or settings.packages) and (code := _bring_code(settings)):
        return code
    if settings.checkpoints_dir and not settings.own_root and name in KEEP_CHECKPOINTS:
        try:
            settings.checkpoints_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            where = f"{contract.ENV_CHECKPOINTS_DIR}={settings.checkpoints_dir}"
            sys.stderr.write(f"dtj-launch: {where}: can't make the folder: {error.strerror}\n")
            return contract.EXIT_CONFIG
    return 0


def _with_code(environment: dict[str, str], settings: Settings) -> dict[str, str]:
    """Make the folders of the code and of the packages the first entries of PYTHONPATH. Commands that packages bring
    are the last ones of PATH.
    """
    code, packages = settings.code_folder, settings.packages_folder

    def path(name: str, *entries: object) -> dict[str, str]:
        return {name: os.pathsep.join(str(entry) for entry in entries if entry)} if any(entries) else {}

    path_of_modules = path("PYTHONPATH", code, packages, environment.get("PYTHONPATH"))
    path_of_commands = path("PATH", environment.get("PATH"), packages and packages / "bin")
    return {**environment, **path_of_modules, **path_of_commands}


def _bring_code(settings: Settings) -> int:
    """Unpack the job's code and install its packages; return the exit code of a failure, or 0."""
    from dtj_trainer.launch.code import CodeUnavailable, bring_code, bring_packages

    try:
        bring_code(settings)
        bring_packages(settings)
    except CodeUnavailable as error:
        log.error("%s", error)
        report = _termination(settings, error.cause, str(error), contract.EXIT_UNAVAILABLE)
        write_termination(settings.termination_log, report)
        return contract.EXIT_UNAVAILABLE
    return 0


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    words = list(arguments)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def _leave(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _leave_with_message(settings: Settings) -> Callable[[int, object], NoReturn]:
    """Return a handler that ends the process at once: a restore has nothing to save, and its threads wait for S3."""

    def leave(number: int, _: object) -> NoReturn:
        code = 128 + number
        message = f"the pod was told to stop ({signal.Signals(number).name}) before its program ran"
        report = _termination(settings, FailureClass.SIGNAL, message, code)
        write_termination(settings.termination_log, {**report, "signal": number})
        os._exit(code)

    return leave


def _termination(settings: Settings, cause: FailureClass, message: str, code: int) -> contract.Termination:
    return {
        "class": cause,
        "message": message,
        "role": settings.pod.role,
        "index": settings.pod.index,
        "host": settings.host,
        "exitCode": code,
    }


def _log_to_stderr(prefix: str) -> None:
    logging.basicConfig(
        format=f"{prefix}dtj: %(levelname)s: %(message)s", level=logging.WARNING, stream=sys.stderr
    )
    logging.getLogger("dtj_trainer").setLevel(logging.INFO)


def main() -> NoReturn:
    """Run the console script."""
    leave_process_1()
    try:
        code = run(sys.argv[1:])
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Do not wait for threads that still upload: an incomplete checkpoint has no manifest and does no harm.
    os._exit(code)


if __name__ == "__main__":
    main()

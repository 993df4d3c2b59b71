"""A minimal init as process 1 of a container without tini: it reaps orphans and forwards signals."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection

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
    # The kernel then kills all other processes of the container.
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

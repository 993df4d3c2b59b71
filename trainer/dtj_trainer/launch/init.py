"""What process 1 of a container does for all others, where the image has no tini: reap orphans, pass signals on."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection

# The kernel raises these in the process at fault, or lets nobody wait for them.
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
    """Go on in a child where this is process 1, which stays behind as a small init; elsewhere do nothing.

    Processes whose parent has ended become children of process 1. dtj-launch waits for its own children alone, so as
    process 1 it would collect the zombies of all others: in a week of data loaders that may be all the pids of a pod.
    Call it before any thread is started.
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
    # The kernel ends what is left in the container.
    os._exit(_look_after(child, waited_for))


def _look_after(child: int, waited_for: Collection[int]) -> int:
    """Serve until the child has ended; its exit code, as a shell tells it."""
    while True:
        number = signal.sigwaitinfo(waited_for).si_signo
        if number != signal.SIGCHLD:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
        elif (status := _reaped(child)) is not None:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _reaped(child: int) -> int | None:
    """Reap whatever has ended, as one signal may stand for several; the child's status if it was among them."""
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

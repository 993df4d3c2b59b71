"""Makes `/dtj` the workspace where the workspace lies elsewhere, as under `dtj run`.

The program gets a mount namespace (mount_namespaces(7)). Its root directory has the entries of this machine's root
directory, and the workspace as `/dtj`. Processes outside the namespace do not see its mounts, and the mounts end with
the program. The new root directory is read-only, because a file in it would vanish with the namespace.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dtj_trainer import contract

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

log = logging.getLogger(__name__)

# linux/sched.h, linux/mount.h
_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE = 0x1, 0x20, 0x1000, 0x4000
_UNBINDABLE, _SLAVE = 0x20000, 0x80000
_DETACH = 2

TRIAL_SECONDS = 30.0
"""The time limit of the trial. A trial takes milliseconds, unless a network file system in `/` has a server that does
not answer."""


class NoNamespaceError(Exception):
    """The reason why a program can't have its own `/dtj`."""


def enter(
    root: Path, command: Sequence[str], environment: Mapping[str, str], checkpoints: Path | None = None
) -> tuple[list[str], dict[str, str]]:
    """Mount the workspace `root` at `/dtj` for this process and its children.

    Return the command and the environment of the program. A process can call the function once.

    checkpoints: where the workspace's folder of checkpoints is mounted, too.

    Call it before any thread is started. Where mounting is impossible, the workspace's path replaces `/dtj` in the
    command and in the variables that `contract.ENV_ROOT_VARIABLES` names. `checkpoints` can't be replaced, because
    the program itself may name it: raises NoNamespaceError.
    """
    fault = fault_of_a_trial(root, checkpoints)
    if fault is None:
        here = Path.cwd()
        try:
            _mount(root, checkpoints)
        except (NoNamespaceError, OSError) as error:
            os.chdir(here)
            fault = _describe(error)
        else:
            return list(command), dict(environment)
    if checkpoints:
        raise NoNamespaceError(f"{contract.ENV_CHECKPOINTS_DIR}={checkpoints} can't be mounted: {fault}")
    log.warning(
        "the workspace can't be mounted at %s for the program: %s; the workspace's own path replaces %s in command "
        "and env",
        contract.ROOT,
        fault,
        contract.ROOT,
    )
    moved = {
        name: _moved(environment[name], root)
        for name in environment.get(contract.ENV_ROOT_VARIABLES, "").split()
        if name in environment
    }
    return [_moved(word, root) for word in command], {**environment, **moved}


def fault_of_a_trial(root: Path, checkpoints: Path | None = None) -> str | None:
    """Try `enter` in a child, because a half-made namespace would do harm; return the fault, or None."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _mount(root, checkpoints)
        except Exception as error:  # noqa: BLE001 - whatever it is, the program runs without a namespace
            os.write(writer, _describe(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:  # noqa: PTH123 - a descriptor
        if not select.select([answer], [], [], TRIAL_SECONDS)[0]:
            # The child may hang in the kernel, where no signal reaches it. Do not wait for its end.
            os.kill(child, signal.SIGKILL)
            return f"a file system of this machine has not answered for {TRIAL_SECONDS:.0f} s"
        fault = answer.read().decode()
    os.waitpid(child, 0)
    return fault or None


def _moved(text: str, root: Path) -> str:
    return contract.ROOT_IN_TEXT.sub(lambda _: str(root), text)


def _describe(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.strerror} ({error.filename})"
    return str(error) if isinstance(error, NoNamespaceError) else repr(error)


def _mount(root: Path, checkpoints: Path | None) -> None:
    """Enter a mount namespace. Raises NoNamespaceError and OSError, and then leaves the root directory as it was."""
    here = Path.cwd()
    for what, path in (
        ("working directory", here),
        ("run's folder", root),
        ("Python environment", Path(sys.prefix)),
    ):
        if path.is_relative_to(contract.ROOT):
            raise NoNamespaceError(
                f"the {what} is {path}, which the workspace would hide at {contract.ROOT}: use another folder"
            )
    _leave_the_machines_mounts()
    _call("mount", b"none", b"/", None, _RECURSIVE | _SLAVE, None)
    new = root / contract.RUN / "root"
    new.mkdir(parents=True, exist_ok=True)
    _call("mount", b"tmpfs", os.fsencode(new), b"tmpfs", 0, b"mode=755")
    # Make the new root unbindable: otherwise the recursive bind mount of its parent would contain it.
    _call("mount", b"none", os.fsencode(new), None, _UNBINDABLE, None)
    with os.scandir("/") as entries:
        for entry in entries:
            if entry.path != str(contract.ROOT):
                _take_over(entry, new / entry.name)
    own = new / contract.ROOT.name
    own.mkdir()
    _call("mount", os.fsencode(root), os.fsencode(own), None, _BIND | _RECURSIVE, None)
    if checkpoints:
        kept, place = root / contract.CHECKPOINTS, new / checkpoints.relative_to("/")
        for folder in (kept, place):
            folder.mkdir(parents=True, exist_ok=True)
        _call("mount", os.fsencode(kept), os.fsencode(place), None, _BIND, None)
    _call("mount", b"none", os.fsencode(new), None, _REMOUNT | _BIND | _READ_ONLY, None)
    os.chdir(new)
    # Stack the old root on the new one and detach the old one: pivot_root(2).
    _call("pivot_root", b".", b".")
    _call("umount2", b".", _DETACH)
    os.chdir(here)


def _take_over(entry: os.DirEntry[str], place: Path) -> None:
    if entry.is_symlink():
        place.symlink_to(Path(entry).readlink())
        return
    if entry.is_dir():
        place.mkdir()
    else:
        place.touch()
    _call("mount", os.fsencode(entry), os.fsencode(place), None, _BIND | _RECURSIVE, None)


def _leave_the_machines_mounts() -> None:
    """Unshare the mounts. Without CAP_SYS_ADMIN, use a user namespace."""
    user, group = os.geteuid(), os.getegid()
    try:
        _call("unshare", _NEW_MOUNTS)
    except PermissionError:
        try:
            _call("unshare", _NEW_MOUNTS | _NEW_USER)
        except OSError as error:
            raise NoNamespaceError(f"this user may make no mount namespace ({error.strerror})") from error
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _call(name: str, *arguments: bytes | int | None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    wide = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    if getattr(libc, name)(*wide) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def main() -> None:
    """Print why a workspace in the given folder can't be mounted at `/dtj`; nothing if it can."""
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as folder:
        sys.stdout.write(fault_of_a_trial(Path(folder)) or "")


if __name__ == "__main__":
    main()

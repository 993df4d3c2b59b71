"""Keeps SeaweedFS running while a `dtj` command holds the users' lock: `python store_keeper.py FOLDER WEED`.

A process of its own, standard library only, started by `dtj.local.object_store`. The credentials of the server
are in its environment. It ends, with the server, when nobody holds FOLDER/users.lock any more. It must have one
thread: PR_SET_PDEATHSIG tells of the end of the thread that started a process.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

PORTS = ("s3", "master", "volume", "filer", "admin")
GRPC_OFFSET = 10000
"""SeaweedFS takes a second port this far above each of its ports."""
CHOICE = range(12000, 22000)
"""Ports to choose from. These ports and those GRPC_OFFSET above lie below the ephemeral ports."""
POLL_SECONDS = 0.25
TRIES = 3
"""Another process may take a port between the check of the port and the start of the server."""
START_SECONDS = 120
"""A start takes 1 s on a calm machine. A busy machine is no fault."""
TERMINATE_SECONDS = 1.0
PR_SET_PDEATHSIG = 1


def serve(folder: Path, weed: str) -> int:
    """Run the server until nobody uses it; 0, or 1 when it did not come up."""
    with (folder / "keeper.lock").open("w") as alone, (folder / "users.lock").open("w") as users:
        # The server inherits this lock: two never write to one data folder.
        fcntl.flock(alone, fcntl.LOCK_EX)
        os.set_inheritable(alone.fileno(), True)
        while process := _start_somewhere(folder, weed, alone.fileno()):
            while process.poll() is None:
                if _unused(users.fileno()):
                    # A newcomer waits for the lock until this process has ended.
                    _stop(process)
                    return 0
                time.sleep(POLL_SECONDS)
            print("SeaweedFS ended by itself; it is started again", flush=True)
        return 1


def running_port(folder: Path) -> int | None:
    """The S3 port in server.json, if the process in server.json listens on that port."""
    last = _last(folder)
    port: int = last["ports"][0] if last else 0
    return port if port and listens(last["weed"], port) else None


def listens(pid: int, port: int) -> bool:
    """Whether this process listens on this port. An answer alone may be a stranger's, who took the port."""
    try:
        sockets = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
        files = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    listening = {
        f"socket:[{inode}]"
        for _, local, _, state, *_, inode in (fields[:10] for fields in sockets)
        if state == "0A" and local.endswith(f":{port:04X}")
    }
    for file in files:
        with suppress(OSError):  # The process has closed the file meanwhile.
            if str(file.readlink()) in listening:
                return True
    return False


def free_ports(count: int) -> list[int]:
    """Neighbouring ports on which SeaweedFS can listen."""
    while True:
        first = random.choice(CHOICE[:-count])  # noqa: S311 - no secret
        ports = list(range(first, first + count))
        if all(_is_free(port) for port in ports):
            return ports


def _unused(users: int) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _start_somewhere(folder: Path, weed: str, lock: int) -> subprocess.Popen[bytes] | None:
    """Start the server on ports where the server gets ready; None when the server gets ready nowhere."""
    deadline = time.monotonic() + START_SECONDS
    for _ in range(TRIES):
        ports = _ports(folder)
        process = _start(folder, weed, ports, lock)
        if _ready(process, ports[0], deadline):
            _write(folder / "server.json", {"pid": os.getpid(), "weed": process.pid, "ports": ports})
            return process
        # The next try, and the next start, must choose other ports.
        (folder / "server.json").unlink(missing_ok=True)
        if process.poll() is None:
            _stop(process)
            print(f"SeaweedFS is not ready after {START_SECONDS} s", flush=True)
            break
    return None


def _start(folder: Path, weed: str, ports: list[int], lock: int) -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None)
    keeper = os.getpid()

    def die_with_keeper() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os.kill(os.getpid(), signal.SIGKILL)

    return subprocess.Popen(  # noqa: S603 - the program that open_store found
        [
            *(weed, "mini", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *("-admin.ui=false", "-master.telemetry=false", "-webdav=false"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false"),
            "-s3.allowDeleteBucketNotEmpty=false",
            *(f"-{name}.port={port}" for name, port in zip(PORTS, ports, strict=True)),
        ],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        pass_fds=(lock,),
        preexec_fn=die_with_keeper,
    )


def _ready(process: subprocess.Popen[bytes], port: int, deadline: float) -> bool:
    """Wait until the server listens on its S3 port."""
    while process.poll() is None and time.monotonic() < deadline:
        if listens(process.pid, port):
            return True
        time.sleep(0.05)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(TERMINATE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()  # What it has answered for is on the disk.
        process.wait()


def _ports(folder: Path) -> list[int]:
    """The ports of the last time where they are free, so that who still uses the endpoint finds it again."""
    last: list[int] = _last(folder).get("ports", [])
    return last if last and all(_is_free(port) for port in last) else free_ports(len(PORTS))


def _last(folder: Path) -> dict[str, Any]:
    """What server.json says of the last server; empty where the content is not the keeper's."""
    try:
        last = json.loads((folder / "server.json").read_text())
        usable = [port for port in last["ports"] if isinstance(port, int) and port in CHOICE]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return dict(last) if "weed" in last and len(usable) == len(PORTS) else {}


def _is_free(port: int) -> bool:
    """Whether SeaweedFS finds the port free: SeaweedFS asks for all addresses, and listens on loopback only."""
    dual = socket.has_dualstack_ipv6()
    for number in (port, port + GRPC_OFFSET):
        with socket.socket(socket.AF_INET6 if dual else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if dual:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            try:
                # The probe does not listen: a server that starts at this moment would fail of a listener.
                probe.bind(("", number))
            except OSError:
                return False
    return True


def _write(path: Path, content: dict[str, object]) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(content))
    temporary.rename(path)


if __name__ == "__main__":
    sys.exit(serve(Path(sys.argv[1]), sys.argv[2]))

"""Keep SeaweedFS running while a process holds FOLDER/users.lock: `python store_keeper.py FOLDER WEED`.

`dtj.local.object_store` starts this program, which uses the standard library only. The environment has the
credentials of the server. The keeper ends the server and itself when no process holds the lock. The keeper must have
one thread, because PR_SET_PDEATHSIG signals the end of the thread that started the server.
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
"""SeaweedFS opens a second port this far above each of its ports."""
CHOICE = range(12000, 22000)
"""Ports to choose from. These ports and those GRPC_OFFSET above lie below the ephemeral ports."""
POLL_SECONDS = 0.25
TRIES = 3
"""Number of starts on different ports. Another process may take a port between the check and the start."""
START_SECONDS = 120
"""Seconds for all tries. A start takes 1 s on an idle machine, and much longer on a busy machine."""
TERMINATE_SECONDS = 1.0
SOCKETS = Path("/tmp")  # noqa: S108 - SeaweedFS puts its sockets there
PR_SET_PDEATHSIG = 1


def serve(folder: Path, weed: str) -> int:
    """Run the server until no process uses it. Return the exit code: 0, or 1 if the server did not start."""
    with (folder / "keeper.lock").open("w") as alone, (folder / "users.lock").open("w") as users:
        # The server inherits this lock, so that two servers never write to the same data folder.
        fcntl.flock(alone, fcntl.LOCK_EX)
        os.set_inheritable(alone.fileno(), True)
        while process := _start_somewhere(folder, weed, alone.fileno()):
            while process.poll() is None:
                if _unused(users.fileno()):
                    # This process now holds users.lock. A new dtj command waits for the lock until this process ends.
                    _stop(process)
                    _remove_sockets(_last_server(folder).get("ports", []))
                    return 0
                time.sleep(POLL_SECONDS)
            print("SeaweedFS ended unexpectedly; the keeper starts it again", flush=True)
        return 1


def running_port(folder: Path) -> int | None:
    """Return the S3 port in server.json if the process in server.json listens on that port, else None."""
    last = _last_server(folder)
    port: int = last["ports"][0] if last else 0
    return port if port and listens(last["weed"], port) else None


def listens(pid: int, port: int) -> bool:
    """Return whether this process listens on this port. A connection is no proof: another process may listen."""
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
        with suppress(OSError):  # The process closed the file in the meantime.
            if str(file.readlink()) in listening:
                return True
    return False


def free_ports(count: int) -> list[int]:
    """Return consecutive ports on which SeaweedFS can listen."""
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
    """Start the server on free ports. Return None if the server does not become ready on any."""
    deadline = time.monotonic() + START_SECONDS
    for _ in range(TRIES):
        ports = _ports(folder)
        process = _start(folder, weed, ports, lock)
        if _ready(process, ports[0], deadline):
            _write(folder / "server.json", {"pid": os.getpid(), "weed": process.pid, "ports": ports})
            return process
        # Without server.json, the next try chooses other ports.
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
            # By default, SeaweedFS also writes log files to /tmp, and nobody removes these files.
            *(weed, "-logtostderr=true"),
            *("mini", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
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
    """Wait until the server listens on its S3 port. Return False after the deadline or if the server ended."""
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
        process.kill()  # A kill loses no data: acknowledged writes are on the disk.
        process.wait()


def _remove_sockets(ports: list[int]) -> None:
    """Remove the Unix sockets of a server that has ended. SeaweedFS names its sockets by port, and leaves them."""
    for port in ports:
        for number in (port, port + GRPC_OFFSET):
            for path in SOCKETS.glob(f"seaweedfs-*-{number}.sock"):
                with suppress(OSError):
                    path.unlink()


def _ports(folder: Path) -> list[int]:
    """Return the ports of the last server if they are free, so that an endpoint that is still in use stays valid."""
    last: list[int] = _last_server(folder).get("ports", [])
    return last if last and all(_is_free(port) for port in last) else free_ports(len(PORTS))


def _last_server(folder: Path) -> dict[str, Any]:
    """Return the content of server.json, or an empty dict if the content is missing or invalid."""
    try:
        last = json.loads((folder / "server.json").read_text())
        usable = [port for port in last["ports"] if isinstance(port, int) and port in CHOICE]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return dict(last) if "weed" in last and len(usable) == len(PORTS) else {}


def _is_free(port: int) -> bool:
    """Return whether the port is free on all addresses. SeaweedFS checks them all, but listens on loopback only."""
    dual = socket.has_dualstack_ipv6()
    for number in (port, port + GRPC_OFFSET):
        with socket.socket(socket.AF_INET6 if dual else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if dual:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            try:
                # Do not listen: a server that starts at this moment would fail because of a listener.
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

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
import urllib.error
import urllib.request
from pathlib import Path

PORTS = ("s3", "master", "volume", "filer", "admin")
GRPC_OFFSET = 10000
"""SeaweedFS takes a second port this far above each of its ports."""
POLL_SECONDS = 0.25
START_SECONDS = 30
TERMINATE_SECONDS = 1.0
PR_SET_PDEATHSIG = 1


def serve(folder: Path, weed: str) -> int:
    """Run the server until nobody uses it; 0, or 1 when it did not come up."""
    with (folder / "keeper.lock").open("w") as alone, (folder / "users.lock").open("w") as users:
        # The server inherits this lock: two never write to one data folder.
        fcntl.flock(alone, fcntl.LOCK_EX)
        os.set_inheritable(alone.fileno(), True)
        ports = _ports(folder)
        while True:
            process = _start(folder, weed, ports, alone.fileno())
            if not _ready(process, ports[0]):
                _stop(process)
                return 1
            _write(folder / "server.json", {"pid": os.getpid(), "weed": process.pid, "ports": ports})
            while process.poll() is None:
                if _unused(users.fileno()):
                    # A newcomer waits for the lock until this process has ended.
                    _stop(process)
                    return 0
                time.sleep(POLL_SECONDS)
            print("SeaweedFS ended by itself; it is started again", flush=True)


def _unused(users: int) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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


def _ready(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the S3 port answers anything at all."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            opener.open(f"http://127.0.0.1:{port}/", timeout=2).close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            time.sleep(0.05)
        else:
            return True
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
    try:
        last = json.loads((folder / "server.json").read_text())["ports"]
    except (OSError, ValueError, KeyError):
        last = []
    if len(last) == len(PORTS) and all(_is_free(port) for port in last):
        return [int(port) for port in last]
    while True:
        first = random.randrange(12000, 22000 - len(PORTS))  # noqa: S311 - below the ephemeral ports
        ports = list(range(first, first + len(PORTS)))
        if all(_is_free(port) for port in ports):
            return ports


def _is_free(port: int) -> bool:
    for number in (port, port + GRPC_OFFSET):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", number))
            except OSError:
                return False
    return True


def _write(path: Path, content: dict[str, object]) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(content))
    temporary.rename(path)


if __name__ == "__main__":
    sys.exit(serve(Path(sys.argv[1]), sys.argv[2]))

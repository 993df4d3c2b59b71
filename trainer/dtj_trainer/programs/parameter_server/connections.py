"""Connections to replicas that fell silent are given up soon.

TensorFlow waits for an answer as long as the connection stands, and one to a node that died or was cut off stands
until the kernel gives it up: after 15 minutes, or never when nothing is left to be sent. gRPC's own pings are no
help: a server takes them for abuse when an operation lasts three minutes, and TensorFlow has no setting against
that. So the kernel asks, and a kernel answers, also for a process that is only busy.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dtj_trainer import contract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dtj_trainer.programs.parameter_server.cluster import Cluster

log = logging.getLogger(__name__)

_PROBE_SECONDS = 10
_LOOK_SECONDS = 2.0
_OPEN = Path("/proc/self/fd")


def give_up_when_silent(cluster: Cluster) -> None:
    """See to it, from now on, that connections to the cluster's servers break when they fall silent."""
    ports = {int(address.rpartition(":")[2]) for hosts in cluster.addresses.values() for address in hosts}
    if not _OPEN.is_dir():
        log.warning("%s is missing: a replica that falls silent is noticed after 15 minutes or later", _OPEN)
        return

    def watch() -> None:
        while True:
            for connection in connections(ports):
                with connection, suppress(OSError):  # it may end meanwhile
                    probe(connection)
            time.sleep(_LOOK_SECONDS)

    threading.Thread(target=watch, name="give-up-when-silent", daemon=True).start()


def connections(ports: set[int]) -> Iterator[socket.socket]:
    """The TCP connections that this process has to one of these ports, as duplicates to be closed.

    TensorFlow opens, closes and opens them meanwhile, in threads of its own: what a number stands for is asked of
    the duplicate, which nobody else closes.
    """
    for file in _OPEN.iterdir():
        try:
            duplicate = os.dup(int(file.name))
        except OSError:
            continue  # closed meanwhile
        if not stat.S_ISSOCK(os.fstat(duplicate).st_mode):
            os.close(duplicate)
            continue
        found = socket.socket(fileno=duplicate)
        if _port_of_peer(found) in ports:
            yield found
        else:
            found.close()


def _port_of_peer(found: socket.socket) -> int | None:
    internet = found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM
    try:
        return int(found.getpeername()[1]) if internet else None
    except OSError:
        return None  # it listens, or is over


def probe(connection: socket.socket) -> None:
    """Have the kernel ask the other side while nothing is sent, and break the connection without an answer."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
    # Also for what was sent and is not acknowledged; it goes before a count of probes.
    connection.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, contract.TENSORFLOW_SILENCE_SECONDS * 1000
    )

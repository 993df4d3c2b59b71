"""Breaks connections to silent replicas soon.

TensorFlow waits for an answer while the connection stands. A connection to a node that died or was cut off stands
until the kernel breaks it: after 15 minutes, or never if no data is left to send. gRPC's keepalive pings do not help:
a server rejects them as abuse when an operation lasts three minutes, and TensorFlow has no setting for that. TCP
keepalive works, because the peer's kernel answers it, even for a process that is busy.
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

    from dtj_trainer.ps.cluster import Cluster


log = logging.getLogger(__name__)

_PROBE_SECONDS = 10
_LOOK_SECONDS = 2.0
_OPEN = Path("/proc/self/fd")


def give_up_when_silent(cluster: Cluster) -> None:
    """Start a thread that makes connections to the cluster's servers break when the peer stops answering."""
    ports = {int(address.rpartition(":")[2]) for hosts in cluster.addresses.values() for address in hosts}
    if not _OPEN.is_dir():
        log.warning(
            "the folder %s is missing, so a replica that stops answering goes unnoticed for 15 minutes or longer; "
            "mount /proc to notice it within seconds",
            _OPEN,
        )
        return

    def watch() -> None:
        while True:
            for connection in connections(ports):
                with connection, suppress(OSError):  # The connection may end meanwhile.
                    probe(connection)
            time.sleep(_LOOK_SECONDS)

    threading.Thread(target=watch, name="give-up-when-silent", daemon=True).start()


def connections(ports: set[int]) -> Iterator[socket.socket]:
    """Yield the TCP connections of this process to one of these ports, as duplicates that the caller closes.

    TensorFlow opens and closes connections meanwhile, in threads of its own. Therefore the function examines the
    duplicate of a descriptor, which no other thread closes.
    """
    for file in _OPEN.iterdir():
        try:
            duplicate = os.dup(int(file.name))
        except OSError:
            continue  # TensorFlow closed the descriptor meanwhile.
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
        return None  # The socket has no peer: it listens, or its connection has ended.


def probe(connection: socket.socket) -> None:
    """Enable TCP keepalive, so that the kernel breaks a connection whose peer does not answer."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
    # The user timeout also covers unacknowledged data, and takes precedence over the count of keepalive probes.
    connection.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, contract.TENSORFLOW_SILENCE_SECONDS * 1000
    )

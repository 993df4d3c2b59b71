"""Detects ps and workers that fell silent, because TensorFlow reports their loss only as some error."""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from dtj_trainer import contract

CONNECT_SECONDS = 3.0
_CHECKS_AT_A_TIME = 32
_SERVERS = ("ps", "worker")


def silent_servers(environment: Mapping[str, str]) -> list[str]:
    """Return the host:port of servers in TF_CONFIG whose node does not answer. A server that refuses connections is
    not silent: its node runs, and its pod reports the cause itself.
    """
    try:
        cluster = json.loads(environment.get(contract.ENV_TF_CONFIG, ""))["cluster"]
        servers = [str(address) for role in _SERVERS for address in cluster.get(role, ())]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    with ThreadPoolExecutor(_CHECKS_AT_A_TIME) as pool:
        return [each for each, silent in zip(servers, pool.map(_is_silent, servers), strict=True) if silent]


def _is_silent(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        return isinstance(error, TimeoutError) or error.errno == errno.EHOSTUNREACH
    except (ValueError, OverflowError):
        pass  # An invalid address is another fault.
    return False

"""Finds the tasks of a TensorFlow cluster that do not answer: TensorFlow reports their loss only as some error."""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from dtj_trainer import contract

CONNECT_SECONDS = 3.0
_CHECKS_AT_A_TIME = 32


def silent_servers(environment: Mapping[str, str]) -> list[str]:
    """Return the host:port of the tasks in TF_CONFIG whose nodes do not answer.

    A task that refuses the connection is not silent: its node runs, and its pod reports its own end. The task of this
    pod refuses the connection too, because its program has ended.
    """
    try:
        cluster = json.loads(environment.get(contract.ENV_TF_CONFIG, ""))["cluster"]
        servers = [str(address) for addresses in cluster.values() for address in addresses]
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
        pass  # An invalid address says nothing about a node.
    return False

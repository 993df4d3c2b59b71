"""Whether a TensorFlow program may have failed for a ps or a worker that fell silent: it tells only an error."""

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
    """The host:port of those in TF_CONFIG from whose node nothing comes back. Who refuses a connection is not silent:
    its node lives, and tells itself what became of it.
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
        pass  # no address: that is another fault
    return False

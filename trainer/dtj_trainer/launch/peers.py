"""Waits until every host of the hostfile, or every worker of this machine, is ready for its ranks."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path

log = logging.getLogger(__name__)

CONNECT_SECONDS = 3.0
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0
TELL_EVERY_SECONDS = 15.0
_CHECKS_AT_A_TIME = 32


class Answer(Enum):
    """The result of connecting to a host's ssh port, or to the socket of a worker on this machine."""

    READY = "answers"
    UNRESOLVED = "its name does not resolve"
    SILENT = "it does not answer"
    REFUSED = "the connection is refused"
    NO_SSH = "what answers is no ssh server"
    NO_SUPERVISOR = "its supervisor does not answer"


class PeersUnreachable(Exception):
    """Hosts did not answer within the timeout. The message names them."""


class HostfileError(ValueError):
    """The hostfile is missing or names no host."""


def read_hosts(hostfile: Path) -> list[str]:
    """List the hosts of an Open MPI hostfile, each once, in the file's order."""
    try:
        lines = hostfile.read_text().splitlines()
    except OSError as error:
        raise HostfileError(f"the hostfile {hostfile} can't be read: {error.strerror}") from error
    words = (line.split("#", 1)[0].split() for line in lines)
    hosts = list(dict.fromkeys(line[0] for line in words if line))
    if not hosts:
        raise HostfileError(f"the hostfile {hostfile} names no host")
    return hosts


def ask(host: str, port: int) -> Answer:
    """Resolve the name, connect, and read the first bytes of the banner."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return Answer.UNRESOLVED
    found = Answer.SILENT
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as connection:
                connection.settimeout(CONNECT_SECONDS)
                connection.connect(address)
                banner = connection.recv(4)
        except ConnectionRefusedError:
            found = Answer.REFUSED
        except OSError:
            found = Answer.SILENT
        else:
            if banner == b"SSH-":
                return Answer.READY
            found = Answer.NO_SSH
    return found


def ask_all(hosts: list[str], port: int) -> dict[str, Answer]:
    """Ask many hosts in parallel."""
    with ThreadPoolExecutor(_CHECKS_AT_A_TIME) as pool:
        return dict(zip(hosts, pool.map(lambda host: ask(host, port), hosts), strict=True))


def wait_for_peers(
    peers: list[str],
    ask_peers: Callable[[list[str]], dict[str, Answer]],
    timeout: float,
    kind: str,
    fault: str,
) -> None:
    """Return when all peers answer. Raises PeersUnreachable after `timeout` seconds.

    `kind`: the noun for the peers, in the plural. `fault`: the predicate for peers that don't answer.
    """
    started = told = time.monotonic()
    waiting = dict.fromkeys(peers, Answer.SILENT)
    pause = FIRST_PAUSE_SECONDS
    while True:
        answers = ask_peers(list(waiting))
        waiting = {peer: answer for peer, answer in answers.items() if answer is not Answer.READY}
        now = time.monotonic()
        if not waiting:
            log.info("all %d %s answer after %.1f s", len(peers), kind, now - started)
            return
        if now - started >= timeout:
            raise PeersUnreachable(
                f"after {timeout:g} s {len(waiting)} of {len(peers)} {kind} {fault}: {describe(waiting)}"
            )
        if now - told >= TELL_EVERY_SECONDS:
            told = now
            log.info("waiting for %d of %d %s: %s", len(waiting), len(peers), kind, describe(waiting))
        time.sleep(max(min(pause, started + timeout - now), 0.0))
        pause = min(pause * 1.5, LONGEST_PAUSE_SECONDS)


def describe(waiting: dict[str, Answer]) -> str:
    """Group hosts by what is wrong with them."""
    reasons: dict[Answer, list[str]] = {}
    for host, answer in waiting.items():
        reasons.setdefault(answer, []).append(host)
    return "; ".join(f"{', '.join(names)} ({answer.value})" for answer, names in reasons.items())

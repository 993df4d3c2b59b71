"""The members of the job from TF_CONFIG, and whether they answer."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtj_trainer import contract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

log = logging.getLogger(__name__)

PEER_TIMEOUT_SECONDS = 300.0
_CONNECT_SECONDS = 2.0
_AGAIN_SECONDS = 0.5
_LOG_SECONDS = 30.0


class BadCluster(Exception):
    """TF_CONFIG is missing or unsuitable. The message is for the user."""


class TasksUnreachable(Exception):
    """Replicas did not answer in time. The message names them."""


@dataclass(frozen=True)
class Task:
    """A replica: its type in TF_CONFIG and its number."""

    type: str
    index: int

    def __str__(self) -> str:
        names = {"ps": "parameter server"}
        return f"{names.get(self.type, self.type)} {self.index}"


@dataclass(frozen=True)
class Cluster:
    """`addresses` holds host:port of each chief, worker and ps by type; `task` is this process."""

    addresses: Mapping[str, tuple[str, ...]]
    task: Task

    @property
    def workers(self) -> int:
        """The number of the job's workers, whether or not they run at the moment."""
        return len(self.addresses["worker"])

    @property
    def ps(self) -> int:
        """The number of the job's parameter servers."""
        return len(self.addresses["ps"])

    def address(self, task: Task) -> str:
        """Return host:port of a task in the cluster."""
        return self.addresses[task.type][task.index]

    def tasks(self, *types: str) -> list[Task]:
        """List the tasks of these types, ordered by number."""
        return [Task(kind, index) for kind in types for index in range(len(self.addresses[kind]))]


def from_environment() -> Cluster:
    """Read the cluster from TF_CONFIG. Raises BadCluster."""
    text = os.environ.get(contract.ENV_TF_CONFIG, "")
    if not text:
        raise BadCluster(
            f"{contract.ENV_TF_CONFIG} is not set: only the pods of a ParameterServer job have the variable"
        )
    try:
        content = json.loads(text)
        addresses = {kind: tuple(map(str, hosts)) for kind, hosts in content["cluster"].items()}
        task = Task(str(content["task"]["type"]), int(content["task"]["index"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadCluster(f"{contract.ENV_TF_CONFIG} can't be read: {error!r} in {text[:200]}") from error
    if len(addresses.get("chief", ())) != 1 or not addresses.get("worker") or not addresses.get("ps"):
        seen = ", ".join(f"{len(hosts)} {kind}" for kind, hosts in sorted(addresses.items())) or "nobody"
        raise BadCluster(
            f"this program needs a chief, workers and parameter servers, but {contract.ENV_TF_CONFIG} has {seen}"
        )
    without = [each for hosts in addresses.values() for each in hosts if not _has_port(each)]
    if without:
        raise BadCluster(
            f"{contract.ENV_TF_CONFIG} has addresses that are not host:port: {', '.join(without)}"
        )
    if task.type != "evaluator" and not 0 <= task.index < len(addresses.get(task.type, ())):
        raise BadCluster(f"{contract.ENV_TF_CONFIG} names the task {task}, which its cluster doesn't have")
    return Cluster(addresses, task)


def _has_port(address: str) -> bool:
    host, _, port = address.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 65536


def peer_timeout() -> float:
    """Return the seconds to wait for the other replicas."""
    text = os.environ.get(contract.ENV_PEER_TIMEOUT_SECONDS, "")
    try:
        return float(text) if text.strip() else PEER_TIMEOUT_SECONDS
    except ValueError:
        return PEER_TIMEOUT_SECONDS


def wait_for(cluster: Cluster, tasks: Iterable[Task], timeout: float, stopped: Callable[[], bool]) -> bool:
    """Wait until all `tasks` accept connections; return False when `stopped` became true earlier.

    Raises TasksUnreachable, with the names of the missing tasks, after `timeout` seconds.
    """
    missing = list(tasks)
    began = logged_at = time.monotonic()
    while True:
        missing = [task for task in missing if not answers(cluster.address(task))]
        now = time.monotonic()
        if not missing:
            return True
        if stopped():
            return False
        if now - began >= timeout:
            named = ", ".join(f"{task} at {cluster.address(task)}" for task in missing)
            raise TasksUnreachable(f"after {timeout:.0f} s no answer from {named}")
        if now - logged_at >= _LOG_SECONDS:
            logged_at = now
            log.info("waiting for connections to %s", ", ".join(map(str, missing)))
        time.sleep(_AGAIN_SECONDS)


def silent(cluster: Cluster, *types: str) -> list[Task]:
    """List the tasks of these types that accept no connection at this moment."""
    return [task for task in cluster.tasks(*types) if not answers(cluster.address(task))]


def blamed(message: str) -> list[Task]:
    """List the parameter servers that an error message of TensorFlow names; without any, the workers."""
    for kind in ("ps", "worker"):
        found = {int(index) for index in re.findall(rf"/job:{kind}/(?:replica:\d+/)?task:(\d+)", message)}
        if found:
            return [Task(kind, index) for index in sorted(found)]
    return []


def answers(address: str) -> bool:
    """Return whether host:port accepts a connection; False for a name that does not resolve."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS):
            return True
    except OSError:
        return False

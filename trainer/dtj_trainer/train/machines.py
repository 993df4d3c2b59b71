"""The nodes and processors on which the ranks run together: more ranks on the same processors train no faster."""

from __future__ import annotations

import math
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dtj_trainer.train.threads import cpu_limit

if TYPE_CHECKING:
    from collections.abc import Iterable

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Place(NamedTuple):
    """Where a rank runs. Bit n of `cpus` is set if the rank may use CPU n. `limit` is the container's, in CPUs."""

    node: str
    container: str
    cpus: int
    limit: float = math.inf


def own_place() -> Place:
    """Return the place of this process. All containers of a node have its kernel, and so its boot id."""
    container = socket.gethostname()
    try:
        node = _BOOT_ID.read_text().strip()
    except OSError:
        node = container
    return Place(node, container, sum(1 << cpu for cpu in os.sched_getaffinity(0)), cpu_limit() or math.inf)


def machines_of(places: Iterable[Place]) -> dict[str, object]:
    """Return the numbers of `nodes`, and of `processors` that the ranks may use together."""
    cpus: dict[str, dict[str, int]] = {}
    limits: dict[tuple[str, str], float] = {}
    for place in places:
        of_node = cpus.setdefault(place.node, {})
        of_node[place.container] = of_node.get(place.container, 0) | place.cpus
        limits[place.node, place.container] = place.limit
    total = 0.0
    for node, of_node in cpus.items():
        allowed = sum(min(each.bit_count(), limits[node, container]) for container, each in of_node.items())
        of_all = 0
        for each in of_node.values():
            of_all |= each
        total += min(allowed, of_all.bit_count())
    return {"nodes": len(cpus), "processors": max(int(total), 1)}

"""The number of ranks that a launcher's mpirun starts in each worker."""

from __future__ import annotations

from collections.abc import Sequence

from dtj.convert.mpirun import Launch

HOSTFILES = ("/etc/mpi/hostfile", "$OMPI_MCA_orte_default_hostfile")
"""Names of mpi-operator's hostfile in commands. dtj's hostfile has the same path."""


class Uneven(Exception):
    """The workers do not have the same number of ranks, or the number is not known before the launcher starts."""


class NeverStarts(Exception):
    """The command of the launcher can't start the ranks as written."""


def ranks_of_each_worker(launch: Launch, workers: Sequence[str], slots: int) -> int:
    """Return the number of ranks in each worker.

    workers: host names of the workers. slots: `slotsPerWorker`.
    Raises Uneven if dtj's mpirun can't start the same number of ranks in each of the same workers, and NeverStarts if
    the command can't start the ranks as written.
    """
    if launch.hostfile not in (None, *HOSTFILES):
        raise NeverStarts(
            f"takes its hosts from {launch.hostfile}, which can't name dtj's pods; use /etc/mpi/hostfile"
        )
    count = len(workers)
    slots = _slots_by_hosts(launch, workers, slots)
    if launch.elastic:
        return _elastic(launch, count, slots)
    if launch.odd:
        raise Uneven(f"{launch.odd[0]} places ranks in a way that dtj's mpirun does not support")
    total_slots, per_node = count * slots, launch.per_node
    ranks = launch.ranks or count * (per_node or slots)
    if ranks > total_slots and not launch.oversubscribes:
        raise NeverStarts(
            f"starts {ranks} ranks where the workers have {total_slots} slots, which mpirun refuses without "
            "--oversubscribe; set slotsPerWorker, or the number of ranks"
        )
    if per_node is not None:
        if ranks > count * per_node:
            raise NeverStarts(f"starts {ranks} ranks, and at most {per_node} in each of {count} workers")
        if per_node > slots and not launch.oversubscribes:
            raise NeverStarts(
                f"starts {per_node} ranks in a worker that has {slots} slots, which mpirun refuses without "
                "--oversubscribe; set slotsPerWorker"
            )
        if ranks < count * per_node:
            raise Uneven(f"{ranks} ranks do not fill {count} workers with {per_node} ranks each")
        return per_node
    if ranks == total_slots or (ranks % count == 0 and (ranks > total_slots or launch.by_node)):
        return ranks // count
    raise Uneven(f"{ranks} ranks do not fill the {total_slots} slots of {count} workers")


def _slots_by_hosts(launch: Launch, workers: Sequence[str], slots: int) -> int:
    """Return the slots of each worker: from `-H` if the command has the option, else `slots`."""
    if launch.hosts is None:
        return slots
    numbers = {number or (slots if launch.by_horovodrun else 1) for number in launch.hosts.values()}
    if set(launch.hosts) != set(workers) or len(numbers) != 1:
        raise NeverStarts(
            f"names the hosts {', '.join(launch.hosts)}, and dtj runs the same number of ranks on every worker; "
            "remove the option, and set replicas and slotsPerWorker"
        )
    return numbers.pop()


def _elastic(launch: Launch, workers: int, slots: int) -> int:
    """Return the ranks of each worker. An elastic run uses every slot up to its maximum number of ranks."""
    slots = launch.per_node or slots
    highest = launch.elastic.get("max-np") or launch.elastic.get("max-num-proc") or ""
    if highest.isdecimal() and int(highest) < workers * slots:
        raise NeverStarts(
            f"runs at most {highest} ranks elastically, and dtj would start {workers * slots}, one in each slot; set "
            "replicas and slotsPerWorker"
        )
    return slots

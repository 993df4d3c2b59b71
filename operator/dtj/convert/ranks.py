"""How many ranks a launcher's mpirun starts in each worker."""

from __future__ import annotations

from collections.abc import Sequence

from dtj.convert.mpirun import Launch

HOSTFILES = ("/etc/mpi/hostfile", "$OMPI_MCA_orte_default_hostfile")
"""Words for the hostfile of mpi-operator; dtj's hostfile is at the same path."""


class Uneven(Exception):
    """The workers do not have the same number of ranks, or the number is not known before the launcher starts."""


class NeverStarts(Exception):
    """The launcher would not start as written, with Kubeflow's operator or with dtj."""


def ranks_of_each_worker(launch: Launch, workers: Sequence[str], slots: int) -> int:
    """The number of ranks in each worker.

    workers: their names. slots: `slotsPerWorker`. Raises Uneven where dtj's mpirun can't start as many ranks in the
    same places, and NeverStarts where mpirun refuses its options.
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
    total, most = count * slots, launch.a_node
    ranks = launch.ranks or count * (most or slots)
    if ranks > total and not launch.oversubscribes:
        raise NeverStarts(
            f"starts {ranks} ranks where the workers have {total} slots, which mpirun refuses without "
            "--oversubscribe; set slotsPerWorker, or the number of ranks"
        )
    if most is not None:
        if ranks > count * most:
            raise NeverStarts(f"starts {ranks} ranks, and at most {most} in each of {count} workers")
        if most > slots and not launch.oversubscribes:
            raise NeverStarts(
                f"starts {most} ranks in a worker that has {slots} slots, which mpirun refuses without "
                "--oversubscribe; set slotsPerWorker"
            )
        if ranks < count * most:
            raise Uneven(f"{ranks} ranks do not fill {count} workers with {most} ranks each")
        return most
    if ranks == total or (ranks % count == 0 and (ranks > total or launch.by_node)):
        return ranks // count
    raise Uneven(f"{ranks} ranks do not fill the {total} slots of {count} workers")


def _slots_by_hosts(launch: Launch, workers: Sequence[str], slots: int) -> int:
    """Slots of each worker where `-H` names the hosts."""
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
    """Ranks of each worker of an elastic run, which takes every slot up to its highest number of ranks."""
    slots = launch.a_node or slots
    highest = launch.elastic.get("max-np") or launch.elastic.get("max-num-proc") or ""
    if highest.isdecimal() and int(highest) < workers * slots:
        raise NeverStarts(
            f"runs at most {highest} ranks elastically, and dtj would start {workers * slots}, one in each slot; set "
            "replicas and slotsPerWorker"
        )
    return slots

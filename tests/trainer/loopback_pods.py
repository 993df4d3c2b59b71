"""Pods of a job whose hosts are addresses of this machine: 127.0.0.2 and so on, with one port."""

from __future__ import annotations

from dataclasses import dataclass

from dtj.local.store_keeper import free_ports
from dtj_trainer import contract
from dtj_trainer.artifacts.peer_hosts import PeerHosts


@dataclass(frozen=True)
class LoopbackPods(PeerHosts):
    """The pods, and which of them this one is."""

    @classmethod
    def of(cls, own: int, count: int, port: int) -> LoopbackPods:
        peers = contract.Peers("{}.invalid", {"worker": count})
        return cls(peers, own, port, listen=_address(own))

    def host_of(self, number: int) -> str:
        return _address(number)


def free_port() -> int:
    """Return a port on which nothing listens, on whatever address of this machine."""
    return free_ports(1)[0]


def _address(number: int) -> str:
    return f"127.0.0.{number + 2}"

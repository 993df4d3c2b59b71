"""Where the pods that restore the same checkpoint answer each other."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtj_trainer import contract

if TYPE_CHECKING:
    from collections.abc import Mapping

OWN_HOST = "localhost"
"""A pod reaches itself by this name also before its own name resolves."""
_SWITCH = {"": True, "true": True, "false": False}


@dataclass(frozen=True)
class PeerHosts:
    """The pods, and which of them this one is."""

    pods: contract.Peers
    own: int
    """This pod's number."""
    port: int = contract.PEERS_PORT
    listen: str = ""
    """The address to listen on; empty: all."""

    def host_of(self, number: int) -> str:
        """Return the host of the pod with this number."""
        own = number == self.own
        return (self.listen or OWN_HOST) if own else self.pods.host_of(number)


def peers_from_environment(environment: Mapping[str, str] = os.environ) -> PeerHosts | None:
    """Return the pods that restore with this one; None where it is alone, or the job does not want it.

    Raises ValueError for an invalid variable.
    """
    switch = _SWITCH.get(text := environment.get(contract.ENV_RESTORE_PEERS, ""))
    if switch is None:
        raise ValueError(f"{contract.ENV_RESTORE_PEERS} must be true or false, not {text!r}")
    if not switch or not (pod := environment.get(contract.ENV_POD)):
        return None
    info = contract.PodInfo.from_json(pod)
    own = info.peers.number_of(info.role, info.index) if info.peers else None
    return None if info.peers is None or own is None or info.peers.count < 2 else PeerHosts(info.peers, own)

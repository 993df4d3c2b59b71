"""The addresses of the pods that restore the same checkpoint. Few imports: `launch.settings` imports this module."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dtj_trainer import contract

if TYPE_CHECKING:
    from collections.abc import Mapping


OWN_HOST = "localhost"
"""A pod reaches itself by this name even before DNS resolves the pod's own name."""
_SWITCH = {"": True, "true": True, "false": False}
_LOOPBACK = re.compile(r"loopback:([0-9]{1,5})")
_FIRST_ADDRESS = 2
"""The pod with number 0 has the address 127.0.0.2. Other servers of this machine listen on 127.0.0.1."""


@dataclass(frozen=True)
class PeerHosts:
    """The pods that exchange checkpoint files, and the index of this pod among them."""

    pods: contract.Peers
    own: int
    """The index of this pod among the pods."""
    port: int = contract.PEERS_PORT
    listen: str = ""
    """The address to listen on; empty: all."""
    loopback: bool = False
    """Whether the pods are processes of this machine. Such pods exchange files in rounds only, not at a restore."""

    def host_of(self, number: int) -> str:
        """Return the host of the pod with this number."""
        if self.loopback:
            return _address(number)
        own = number == self.own
        return (self.listen or OWN_HOST) if own else self.pods.host_of(number)


def _address(number: int) -> str:
    last = number + _FIRST_ADDRESS
    return f"127.{last >> 16 & 255}.{last >> 8 & 255}.{last & 255}"


def peers_from_environment(environment: Mapping[str, str] = os.environ) -> PeerHosts | None:
    """Return the pods that restore the same checkpoint; None if there is one pod, or the job turns the exchange off.

    Raises ValueError for an invalid variable.
    """
    text = environment.get(contract.ENV_RESTORE_PEERS, "")
    on_loopback = _LOOPBACK.fullmatch(text)
    switch = True if on_loopback else _SWITCH.get(text)
    if switch is None:
        raise ValueError(f"{contract.ENV_RESTORE_PEERS} must be true or false, not {text!r}")
    if not switch or not (pod := environment.get(contract.ENV_POD)):
        return None
    info = contract.PodInfo.from_json(pod)
    own = info.peers.number_of(info.role, info.index) if info.peers else None
    if info.peers is None or own is None or info.peers.count < 2:
        return None
    if on_loopback:
        return PeerHosts(info.peers, own, int(on_loopback[1]), _address(own), loopback=True)
    return PeerHosts(info.peers, own)

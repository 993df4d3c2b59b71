"""The Lease by which replicas of the operator agree on the one that works, after client-go's leaderelection. Pure.

`kubernetes.aio.leaderelection` is not used: it judges expiry by the wall clock, lets one request that hangs outlast
the lease, and does not release it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dtj.api.job import Manifest

API_VERSION, KIND = "coordination.k8s.io/v1", "Lease"


@dataclass(frozen=True)
class Timing:
    """Seconds, named as the flags of kube-scheduler are.

    A lost leader is replaced after retry_period (its last renewal may be seen that late) and lease_duration, so
    after 12 s and the time to fill the caches. client-go's 15, 10 and 2 s would leave little of 20 s for that.
    """

    lease_duration: float = 10.0
    """A lease that nobody renewed for so long may be taken by another."""
    renew_deadline: float = 7.0
    """A leader that could not renew for so long stops."""
    retry_period: float = 2.0
    """From one look at the lease, or renewal of it, to the next."""

    def __post_init__(self) -> None:
        if not self.lease_duration > self.renew_deadline > self.retry_period > 0:
            raise ValueError(
                "the lease's duration must be longer than the deadline of its renewal, and that longer than the "
                f"retry period: {self.lease_duration:g}, {self.renew_deadline:g} and {self.retry_period:g} s are not"
            )

    @property
    def request_timeout(self) -> float:
        """One request that hangs leaves time for another."""
        return self.renew_deadline / 2


class Observed:
    """The lease as one candidate has seen it, in seconds of its own clock.

    Clocks of two machines are never compared: a lease has expired when it has not *changed* for its duration.
    """

    def __init__(self) -> None:
        self._spec: Manifest = {}
        self._since = 0.0

    @property
    def holder(self) -> str:
        """Who holds it; empty when nobody does."""
        return self._spec.get("holderIdentity") or ""

    def see(self, lease: Manifest | None, now: float) -> None:
        """Note what the API server answered; None: there is no such lease."""
        spec = (lease or {}).get("spec") or {}
        if spec != self._spec:
            self._spec, self._since = spec, now

    def free_at(self, timing: Timing) -> float:
        """When another than the holder may take it."""
        if not self.holder:
            return self._since
        return self._since + (self._spec.get("leaseDurationSeconds") or timing.lease_duration)


def claimed(
    lease: Manifest | None, place: Manifest, identity: str, now: datetime, timing: Timing
) -> Manifest:
    """The lease as this candidate takes it, or renews it.

    place: metadata of a lease that is not there yet. One that is there keeps its resourceVersion: of two who claim
    it at once, the API server refuses one.
    """
    if lease is None:
        return _lease(place, identity, timing.lease_duration, _written(now), _written(now), 0)
    spec = lease.get("spec") or {}
    mine = spec.get("holderIdentity") == identity
    acquired = spec["acquireTime"] if mine and spec.get("acquireTime") else _written(now)
    transitions = (spec.get("leaseTransitions") or 0) + (not mine)
    return _lease(lease["metadata"], identity, timing.lease_duration, acquired, _written(now), transitions)


def released(lease: Manifest, now: datetime) -> Manifest:
    """The lease as its holder leaves it: the next look of another takes it."""
    time = _written(now)
    return _lease(lease["metadata"], "", 1, time, time, lease["spec"].get("leaseTransitions") or 0)


def _lease(
    metadata: Manifest, holder: str, seconds: float, acquired: str, renewed: str, transitions: int
) -> Manifest:
    spec: dict[str, Any] = {
        "holderIdentity": holder,
        "leaseDurationSeconds": math.ceil(seconds),
        "acquireTime": acquired,
        "renewTime": renewed,
        "leaseTransitions": transitions,
    }
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def _written(time: datetime) -> str:
    """As Kubernetes writes a MicroTime; for people, nobody decides by it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

"""The Lease by which replicas of the operator agree on the one that works, after client-go's leaderelection. Pure.

The operator does not use `kubernetes.aio.leaderelection`: that module judges expiry by the wall clock, lets one
request that hangs outlast the lease, and does not release the lease.
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
    """Times of an election in seconds. The names are those of kube-scheduler's flags.

    Another candidate replaces a lost leader after retry_period and lease_duration: the candidate may see the last
    renewal retry_period late. The replacement takes 12 s and the time to fill the caches. With client-go's 15, 10 and
    2 s, little time of 20 s would remain for the caches.
    """

    lease_duration: float = 10.0
    """Another candidate may take a lease that nobody has renewed for this time."""
    renew_deadline: float = 7.0
    """A leader that could not renew the lease for this time stops."""
    retry_period: float = 2.0
    """The time between two reads or renewals of the lease."""

    def __post_init__(self) -> None:
        if not self.lease_duration > self.renew_deadline > self.retry_period > 0:
            raise ValueError(
                "the lease's duration must be longer than the deadline of its renewal, and that longer than the "
                f"retry period: {self.lease_duration:g}, {self.renew_deadline:g} and {self.retry_period:g} s are not"
            )

    @property
    def request_timeout(self) -> float:
        """The timeout of one request in seconds. After a request that hangs, time remains for another request."""
        return self.renew_deadline / 2


class Observed:
    """The lease as one candidate has seen the lease, in seconds of the candidate's own clock.

    A candidate never compares clocks of two machines: a lease expires when it has not *changed* for its duration.
    """

    def __init__(self) -> None:
        self._spec: Manifest = {}
        self._since = 0.0

    @property
    def holder(self) -> str:
        """The identity of the lease's holder; empty when nobody holds the lease."""
        return self._spec.get("holderIdentity") or ""

    def see(self, lease: Manifest | None, now: float) -> None:
        """Note the lease that the API server returned. lease: None when the lease does not exist. now: seconds."""
        spec = (lease or {}).get("spec") or {}
        if spec != self._spec:
            self._spec, self._since = spec, now

    def free_at(self, timing: Timing) -> float:
        """Return when a candidate that is not the holder may take the lease, in seconds of the candidate's clock."""
        if not self.holder:
            return self._since
        return self._since + (self._spec.get("leaseDurationSeconds") or timing.lease_duration)


def claimed(
    lease: Manifest | None, place: Manifest, identity: str, now: datetime, timing: Timing
) -> Manifest:
    """Return the lease as this candidate takes or renews the lease.

    lease: the stored lease; None when the lease does not exist. The result has the resourceVersion of a stored lease,
    so of two candidates that claim the lease at once, the API server refuses one.
    place: metadata for a lease that does not exist.
    """
    if lease is None:
        return _lease(place, identity, timing.lease_duration, _written(now), _written(now), 0)
    spec = lease.get("spec") or {}
    held = spec.get("holderIdentity") == identity
    acquired = spec["acquireTime"] if held and spec.get("acquireTime") else _written(now)
    transitions = (spec.get("leaseTransitions") or 0) + (not held)
    return _lease(lease["metadata"], identity, timing.lease_duration, acquired, _written(now), transitions)


def released(lease: Manifest, now: datetime) -> Manifest:
    """Return the lease without a holder. Another candidate takes the lease when it next reads the lease."""
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
    """Format a time as a MicroTime of Kubernetes. This time is for people: no candidate decides by this time."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

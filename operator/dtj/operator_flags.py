"""The flags of `dtj-operator`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from dtj.cluster.api import own_namespace
from dtj.reconcile.lease import Timing

_LEASE = "dtj-operator"
_WORKERS = 16


def read_flags(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags, with `timing` made of those of the lease. Ends the process where they are wrong."""
    parser = argparse.ArgumentParser(
        prog="dtj-operator", description="The operator of DistributedTrainingJobs."
    )
    parser.add_argument(
        "--namespace", action="append", default=[], help="serve this namespace only; may be repeated"
    )
    parser.add_argument(
        "--workers", type=int, default=_WORKERS, help="passes at a time (default: %(default)s)"
    )
    parser.add_argument("--health-port", type=int, default=8080, help="GET /healthz (default: %(default)s)")
    parser.add_argument("--metrics-port", type=int, default=8081, help="GET /metrics (default: %(default)s)")
    parser.add_argument(
        "--progress-interval", type=float, default=5.0, help="seconds between two looks at a job's progress"
    )
    parser.add_argument(
        "--look-for-ghosts",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how often objects are looked for that went while the API server could not be watched "
        "(default: %(default)s)",
    )
    parser.add_argument("--log-level", default=os.environ.get("DTJ_LOG_LEVEL", "INFO"))
    _add_lease(parser)
    flags = parser.parse_args(words)
    if flags.leader_elect and not flags.lease_namespace:
        parser.error("--leader-elect outside a cluster needs --lease-namespace")
    try:
        flags.timing = Timing(flags.lease_duration, flags.renew_deadline, flags.retry_period)
    except ValueError as error:
        parser.error(str(error))
    return flags


def _add_lease(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("leader election")
    group.add_argument(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="work only while holding a Lease; needed wherever two operators may run (default: off)",
    )
    group.add_argument("--lease-namespace", default=own_namespace(), help="default: the pod's own")
    group.add_argument("--lease-name", default=_LEASE, help="default: %(default)s")
    group.add_argument(
        "--lease-duration",
        type=float,
        default=Timing.lease_duration,
        help="seconds without a renewal after which another operator leads (default: %(default)s)",
    )
    group.add_argument(
        "--renew-deadline",
        type=float,
        default=Timing.renew_deadline,
        help="seconds without a renewal after which the leader ends (default: %(default)s)",
    )
    group.add_argument(
        "--retry-period",
        type=float,
        default=Timing.retry_period,
        help="seconds between two looks at the Lease, or renewals of it (default: %(default)s)",
    )

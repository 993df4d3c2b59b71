"""The flags of `dtj-operator`."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from dtj.admission.certificates import VALIDITY
from dtj.admission.service import Webhook
from dtj.api.job import POD_USER
from dtj.api.schema_errors import MEANINGS
from dtj.api.spec import NODE_FOLDER
from dtj.cluster.api import own_namespace
from dtj.plan.tensorboard import DEFAULT_IMAGE
from dtj.reconcile.budget import NAMESPACE_BYTES
from dtj.reconcile.election import Timing

_LEASE = "dtj-operator"
_WORKERS = 16
NO_RECORDS = "none"
"""The value of --record-image with which the operator makes no record pods."""
_LONGEST_VALIDITY = timedelta(days=3653).total_seconds()


@dataclass(frozen=True)
class Options:
    """The operator's flags. `timing` has the flags of the lease, and `webhook` has the flags of the webhook."""

    namespaces: Sequence[str]
    """Namespaces to serve; empty: all namespaces."""
    workers: int
    health_port: int
    metrics_port: int
    progress_interval: float
    progress_rate: float
    tensorboard_image: str
    record_image: str | None
    """The image of record pods; NO_RECORDS: the operator makes none; None: `tensorboard_image`."""
    job_user: int | None
    job_network_policies: bool
    data_cache_host_paths: Sequence[str]
    """Folders of nodes below which jobs may cache data; empty: none."""
    namespace_memory: float
    """Megabytes that the jobs of one namespace may take."""
    log_level: str
    leader_elect: bool
    lease_namespace: str | None
    lease_name: str
    timing: Timing
    webhook: Webhook | None
    """The settings of the admission webhook; None: the webhook is off."""


def read_flags(words: Sequence[str] | None = None) -> Options:
    """The options of a command line. Ends the process where a flag is wrong."""
    parser = argparse.ArgumentParser(
        prog="dtj-operator", description="The operator of DistributedTrainingJobs."
    )
    parser.add_argument(
        "--namespace",
        dest="namespaces",
        action="append",
        default=[],
        metavar="NAMESPACE",
        help="serve this namespace only; may be repeated",
    )
    parser.add_argument(
        "--workers", type=int, default=_WORKERS, help="passes at a time (default: %(default)s)"
    )
    parser.add_argument("--health-port", type=int, default=8080, help="GET /healthz (default: %(default)s)")
    parser.add_argument("--metrics-port", type=int, default=8081, help="GET /metrics (default: %(default)s)")
    parser.add_argument(
        "--progress-interval",
        type=_positive,
        default=5.0,
        metavar="SECONDS",
        help="seconds between two requests for a job's progress (default: %(default)s)",
    )
    parser.add_argument(
        "--progress-rate",
        type=_positive,
        default=3.0,
        metavar="LOOKS",
        help="limit of requests for the progress of jobs per second, over all jobs: with many running jobs, the "
        "operator asks each job less often, except jobs with runPolicy.stallTimeoutSeconds (default: %(default)s)",
    )
    parser.add_argument(
        "--tensorboard-image",
        default=DEFAULT_IMAGE,
        metavar="IMAGE",
        help="image of a job's TensorBoard if spec.tensorboard names none (default: %(default)s)",
    )
    parser.add_argument(
        "--record-image",
        metavar="IMAGE",
        help="image of the pods that record the ends of jobs in the bucket; none: the operator makes no such pods "
        "(default: the image of --tensorboard-image)",
    )
    parser.add_argument(
        "--job-user",
        type=_user,
        default=POD_USER,
        metavar="UID",
        help="user and group of pods of jobs and of TensorBoards, unless a template sets them; none: the operator "
        "sets no user, and the cluster chooses one, as OpenShift does (default: %(default)s)",
    )
    parser.add_argument(
        "--job-network-policies",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="make a NetworkPolicy for each job: only the job's own pods, and the operator for the progress, can "
        "connect to its pods (default: off)",
    )
    parser.add_argument(
        "--data-cache-host-path",
        dest="data_cache_host_paths",
        type=_node_folder,
        action="append",
        default=[],
        metavar="FOLDER",
        help="allow jobs to cache data in this folder of their nodes, and in folders below (data.cache.hostPath); "
        "may be repeated (default: no folder is allowed)",
    )
    parser.add_argument(
        "--namespace-memory",
        type=_positive,
        default=NAMESPACE_BYTES / 1e6,
        metavar="MEGABYTES",
        help="limit of the operator's memory for the jobs of one namespace; jobs beyond the limit wait "
        "(default: %(default)g)",
    )
    parser.add_argument("--log-level", default=os.environ.get("DTJ_LOG_LEVEL", "INFO"))
    _add_lease(parser)
    _add_webhook(parser)
    flags = parser.parse_args(words)
    if flags.leader_elect and not flags.lease_namespace:
        parser.error("--leader-elect outside a cluster needs --lease-namespace")
    if flags.job_network_policies and not flags.lease_namespace:
        parser.error(
            "--job-network-policies outside a cluster needs --lease-namespace: the policies admit the pods of the "
            "operator in this namespace"
        )
    try:
        given = vars(flags)
        timing = Timing(*[given.pop(name) for name in ("lease_duration", "renew_deadline", "retry_period")])
        webhook = _webhook(flags)
    except ValueError as error:
        parser.error(str(error))
    own = {name: value for name, value in given.items() if not name.startswith("webhook_")}
    return Options(**own, timing=timing, webhook=webhook)


def _user(word: str) -> int | None:
    if word == "none":
        return None
    user = int(word) if word.isascii() and word.isdigit() else 0
    if not 1 <= user < 2**31:
        raise argparse.ArgumentTypeError(f"must be a uid of at least 1, or none, got {word}")
    return user


def _node_folder(word: str) -> str:
    if not re.fullmatch(NODE_FOLDER, word):
        raise argparse.ArgumentTypeError(f"must be {MEANINGS[NODE_FOLDER]}, got {word}")
    return word


def _positive(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {word}")
    return value


def _webhook(flags: argparse.Namespace) -> Webhook | None:
    if flags.webhook_port is None:
        return None
    if not 1 <= flags.webhook_port <= 65535:
        raise ValueError(f"--webhook-port: must be from 1 to 65535, got {flags.webhook_port}")
    if not 1 <= flags.webhook_cert_validity <= _LONGEST_VALIDITY:
        raise ValueError(
            f"--webhook-cert-validity: must be from 1 s to ten years ({_LONGEST_VALIDITY:.0f} s), "
            f"got {flags.webhook_cert_validity:g}"
        )
    if not flags.webhook_cert_dir and not flags.webhook_namespace:
        raise ValueError("--webhook-port outside a cluster needs --webhook-namespace or --webhook-cert-dir")
    return Webhook(
        flags.webhook_port,
        flags.webhook_name,
        flags.webhook_namespace or "",
        timedelta(seconds=flags.webhook_cert_validity),
        flags.webhook_cert_dir,
        flags.data_cache_host_paths,
    )


def _add_lease(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("leader election")
    group.add_argument(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="work only while holding a Lease; required if two operators may run at a time (default: off)",
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
        help="seconds without a renewal after which the leader stops (default: %(default)s)",
    )
    group.add_argument(
        "--retry-period",
        type=float,
        default=Timing.retry_period,
        help="seconds between two reads or renewals of the Lease (default: %(default)s)",
    )


def _add_webhook(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("admission webhook")
    group.add_argument(
        "--webhook-port",
        type=int,
        metavar="PORT",
        help="serve the validating webhook for jobs on this port (default: off)",
    )
    group.add_argument(
        "--webhook-name",
        default=f"{_LEASE}-webhook",
        metavar="NAME",
        help="name of the Service, of the Secret with the certificate, and of the ValidatingWebhookConfiguration "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--webhook-namespace",
        default=own_namespace(),
        metavar="NAMESPACE",
        help="namespace of the webhook's Service and Secret (default: the pod's own)",
    )
    group.add_argument(
        "--webhook-cert-dir",
        type=Path,
        metavar="FOLDER",
        help="serve tls.crt and tls.key of this folder, and reload them on a change (default: the operator issues "
        "its own certificate)",
    )
    group.add_argument(
        "--webhook-cert-validity",
        type=float,
        default=VALIDITY.total_seconds(),
        metavar="SECONDS",
        help="validity of certificates that the operator issues; it renews them after half of this time "
        "(default: %(default)g, 90 days)",
    )

"""Find ConfigMaps with code that no job uses: `dtj submit` ended between the ConfigMap and the job."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from dtj.api.code import config_maps_of
from dtj.api.job import Manifest
from dtj.doctor.check import Check, warning
from dtj.doctor.findings import ClusterFindings, Unread
from dtj.status.times import seconds_since

_YOUNG_SECONDS = 300.0
"""A ConfigMap that is younger may be of a submit under way."""
_SHOWN = 10


def left_code_checks(findings: ClusterFindings) -> list[Check]:
    """Return a warning that names what is left; none if nothing is left, or if the user may not list ConfigMaps."""
    if isinstance(findings.left_code, Unread) or not findings.left_code:
        return []
    count, shown = len(findings.left_code), findings.left_code[:_SHOWN]
    more = f" and {count - _SHOWN} more" if count > _SHOWN else ""
    what = "1 ConfigMap has" if count == 1 else f"{count} ConfigMaps have"
    return [
        warning(
            "code",
            f"{what} code of no job: {', '.join(shown)}{more}",
            f"kubectl -n {findings.namespace} delete configmap {' '.join(shown)}",
        )
    ]


def left_over(config_maps: Iterable[Manifest], jobs: Iterable[Manifest], now: datetime) -> list[str]:
    """Return the names of ConfigMaps without an owner that no job uses.

    config_maps: those with LABEL_CODE. Kubernetes deletes the ones with an owner.
    """
    used = {name for job in jobs for name in config_maps_of(job)}
    return sorted(
        metadata["name"]
        for metadata in (each["metadata"] for each in config_maps)
        if not metadata.get("ownerReferences")
        and metadata["name"] not in used
        and seconds_since(metadata["creationTimestamp"], now) > _YOUNG_SECONDS
    )

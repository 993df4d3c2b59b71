"""Validation of manifests by the schemas of the oldest and the newest supported Kubernetes."""

from __future__ import annotations

from typing import Any

import kubernetes_validate

from dtj.api.crd import custom_resource_definition
from dtj.api.identity import KIND
from tests.chart.foreign import FOREIGN, validate_foreign
from tests.unit.support.structural import schema_faults

Manifest = dict[str, Any]
OLDEST, NEWEST = "1.25", kubernetes_validate.latest_version()
SCHEMA = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def check(made: Manifest, version: str) -> None:
    """Raises where a Kubernetes of that version, or the maker of another kind, would refuse an object."""
    if made["kind"] == KIND:
        assert list(schema_faults(SCHEMA, made)) == []
    elif made["kind"] in FOREIGN:
        validate_foreign(made)
    else:
        kubernetes_validate.validate(made, version, strict=True)

"""Who carries a job out: `spec.runPolicy.managedBy`, as batch/v1 Job's `spec.managedBy`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dtj.api.identity import GROUP

OPERATOR = f"{GROUP}/operator"
"""This operator."""
MAX_LENGTH = 63
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DOMAIN_PATH = rf"^{_LABEL}(\.{_LABEL})*/[-A-Za-z0-9/._~%!$&'()*+,;=:]+$"
"""As the API server checks a Job's: a DNS name, a slash, characters of a URL's path."""


def is_domain_path(text: str) -> bool:
    """Whether a text is a domain-prefixed path such as kueue.x-k8s.io/multikueue."""
    return re.fullmatch(DOMAIN_PATH, text) is not None


def other_manager(value: Any) -> str | None:
    """The controller that `managedBy` names where that is not this operator; None also for what is no name."""
    named = isinstance(value, str) and len(value) <= MAX_LENGTH and is_domain_path(value)
    return value if named and value != OPERATOR else None


def other_manager_of(manifest: Mapping[str, Any]) -> str | None:
    """The same of a job's manifest, whatever else is wrong with it."""
    policy = (manifest.get("spec") or {}).get("runPolicy")
    return other_manager(policy.get("managedBy")) if isinstance(policy, Mapping) else None

"""Kubernetes quantities such as 500m and 4Gi, and what a pod asks for.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from dtj.api.job import Manifest

Amounts = dict[str, Decimal]
"""Amounts by the name of the resource, in cores, bytes or pieces."""

_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([KMGTPE]i)|[eE]([+-]?\d+)|([numkMGTPE]?))")


def amount(quantity: str | int | float) -> Decimal:
    """Return the number that a quantity stands for. Raises ValueError if the text is not a quantity."""
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None:
        raise ValueError(f"{quantity!r} is not a quantity")
    number, binary, exponent, decimal = match.groups()
    if binary:
        return Decimal(number) * (1 << 10 * _BINARY[binary])
    return Decimal(number).scaleb(int(exponent) if exponent else _DECIMAL[decimal])


def amounts(quantities: Mapping[str, Any] | None) -> Amounts:
    """Return the amounts of a map of resources, such as the requests of a container."""
    return {name: amount(value) for name, value in (quantities or {}).items()}


def shown(resource: str, value: Decimal) -> str:
    """A number as a person reads it, with its resource: cpu 500m, memory 1.5Gi, nvidia.com/gpu 2."""
    name = resource.removeprefix("requests.").removeprefix("limits.")
    if name in ("memory", "ephemeral-storage", "storage") or name.startswith("hugepages-"):
        for unit, power in reversed(_BINARY.items()):
            if abs(value) >= 1024**power:
                return f"{resource} {_plain(round(value / 1024**power, 1))}{unit}"
    if value != int(value):
        return f"{resource} {_plain(round(value * 1000))}m"
    return f"{resource} {_plain(value)}"


def all_shown(amounts: Amounts) -> str:
    """Return several amounts in one phrase: `cpu 500m, memory 1.5Gi`."""
    return ", ".join(shown(name, value) for name, value in amounts.items())


def pod_requests(pod: Manifest) -> Amounts:
    """Return the requests of a pod as the scheduler counts them: the sum of its containers, or the request of an init
    container if that is larger.
    """
    return {"pods": Decimal(1), **_pod_amounts(pod, "requests")}


def pod_limits(pod: Manifest) -> Amounts:
    """The limits of a pod."""
    return _pod_amounts(pod, "limits")


def total(parts: Iterable[Mapping[str, Decimal]]) -> Amounts:
    """The sum of amounts."""
    result: Amounts = {}
    for part in parts:
        for name, value in part.items():
            result[name] = result.get(name, Decimal(0)) + value
    return result


def _pod_amounts(pod: Manifest, kind: str) -> Amounts:
    spec = pod["spec"]
    result = total(_container_amounts(container, kind) for container in spec["containers"])
    for container in spec.get("initContainers") or []:
        for name, value in _container_amounts(container, kind).items():
            result[name] = max(result.get(name, Decimal(0)), value)
    return total([result, amounts(spec.get("overhead"))])


def _container_amounts(container: Manifest, kind: str) -> Amounts:
    resources = container.get("resources") or {}
    # As in Kubernetes, a limit without a request stands for a request of the same amount.
    own = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return amounts(own if kind == "requests" else resources.get("limits"))


def _plain(value: Decimal | int) -> str:
    return f"{Decimal(value).normalize():f}"

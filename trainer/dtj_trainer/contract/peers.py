"""The pods of a job that restore the same checkpoint, in a form whose size does not grow with their number."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Peers:
    """The pods of some roles, numbered from 0 in the order of the roles and of the pods' indexes."""

    POD: ClassVar = "{}"
    """Stands for `<role>-<index>` in `host`."""

    host: str
    """The host name of each of the pods, with POD in it."""
    pods: Mapping[str, int]
    """The number of pods by role."""

    @property
    def count(self) -> int:
        """The number of pods."""
        return sum(self.pods.values())

    def number_of(self, role: str, index: int) -> int | None:
        """Return the number of a pod; None if it is not one of the pods."""
        before = 0
        for name, count in self.pods.items():
            if name == role:
                return before + index if index < count else None
            before += count
        return None

    def host_of(self, number: int) -> str:
        """Return the host name of the pod with this number, which must be below `count`."""
        left = number
        for role, count in self.pods.items():
            if left < count:
                return self.host.replace(self.POD, f"{role}-{left}")
            left -= count
        raise IndexError(number)

    def to_dict(self) -> dict[str, Any]:
        """Return the form in the JSON of a PodInfo."""
        return {"host": self.host, "pods": dict(self.pods)}

    @classmethod
    def from_dict(cls, content: object) -> Peers:
        """Read the form in the JSON of a PodInfo. Raises ValueError, which names the invalid field."""
        if not isinstance(content, dict):
            raise ValueError(f"peers must be an object, not {json.dumps(content)}")
        host, pods = content.get("host"), content.get("pods")
        if not isinstance(host, str) or cls.POD not in host:
            raise ValueError(
                f"peers.host must be a host name with {cls.POD} for the pod, not {json.dumps(host)}"
            )
        if not isinstance(pods, dict) or any(type(count) is not int or count < 0 for count in pods.values()):
            raise ValueError(f"peers.pods must be a number of pods by role, not {json.dumps(pods)}")
        return cls(host, pods)

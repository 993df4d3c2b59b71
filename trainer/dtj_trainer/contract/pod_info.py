"""What a pod is in its job: the value that the operator gives to each pod as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, TypeVar, get_args

# Peers lists the pods of a job that restore the same checkpoint. Its size does not grow with the number of pods.


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
            raise ValueError(
                f"peers.pods must be an object with the number of pods of each role, not {json.dumps(pods)}"
            )
        return cls(host, pods)


@dataclass(frozen=True)
class Rounds:
    """The pod may restart its ranks in place. `before`: the program's restarts when the pods were made, in place and
    by new pods. `limit`: the job's backoffLimit at that time.
    """

    before: int
    limit: int
    spare: bool = True
    """Whether a waiting interpreter is kept for each rank (`warmSpare: Auto`)."""

    @classmethod
    def from_dict(cls, content: object) -> Rounds:
        """Read the form in the JSON of a PodInfo. Raises ValueError, which names the invalid field."""
        if not isinstance(content, dict):
            raise ValueError(f"rounds must be an object, not {json.dumps(content)}")
        try:
            return cls(
                before=_field(content, "before", int),
                limit=_field(content, "limit", int),
                spare=_field(content, "spare", bool, True),
            )
        except ValueError as error:
            raise ValueError(f"rounds.{error}") from None


Part = Literal["primary", "evaluator", "other"]
"""A pod's part in the uploads. `primary`: checkpoints, model, TensorBoard and metrics. `evaluator`: TensorBoard and
metrics of the checkpoints that the pod mirrors from the bucket. All pods upload logs; `other` pods with ranks also
upload checkpoint files that no other pod has."""


@dataclass(frozen=True, kw_only=True)
class PodInfo:
    """What a pod is in its job. The operator's plan passes it to the pod in ENV_POD."""

    role: str
    index: int
    slots: int = 0
    """The number of ranks in each pod of the role; 0: none."""
    part: Part = "other"
    """In a role whose pods run ranks, only the pod with rank 0 has this part: see `uploads`."""
    restores: bool = False
    """Whether the pod restores the newest checkpoint, and the metrics of its part, before its program starts."""
    reads_data: bool = False
    """Whether the pod's program reads the data of ENV_DATA_URI."""
    peers: Peers | None = None
    """The pods that restore the same checkpoint, this one included; None: this pod alone."""
    rounds: Rounds | None = None
    """None: every failure ends the pod (`restartStrategy: Recreate`)."""

    @property
    def name(self) -> str:
        """The pod's name within its job, as in the name of its log."""
        return f"{self.role}-{self.index}"

    @property
    def ranks(self) -> range:
        """The ranks of this pod."""
        return range(self.index * self.slots, (self.index + 1) * self.slots)

    @property
    def uploads(self) -> Part:
        """The pod's own part: a pod that runs ranks, but not rank 0, is one of the other pods."""
        return "other" if self.slots and 0 not in self.ranks else self.part

    def to_json(self) -> str:
        """Return these fields as JSON, the value of the variable ENV_POD."""
        return json.dumps(
            {
                "role": self.role,
                "index": self.index,
                "slots": self.slots,
                "part": self.part,
                "restores": self.restores,
                "readsData": self.reads_data,
                **({"peers": self.peers.to_dict()} if self.peers else {}),
                **({"rounds": asdict(self.rounds)} if self.rounds else {}),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> PodInfo:
        """Read the value of ENV_POD; raises ValueError, which names the invalid field.

        Fields of a later release are ignored: the operator may be newer than the image.
        """
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
        if (part := content.get("part", "other")) not in get_args(Part):
            raise ValueError(f"part must be one of {', '.join(get_args(Part))}, not {json.dumps(part)}")
        return cls(
            role=_field(content, "role", str),
            index=_field(content, "index", int),
            slots=_field(content, "slots", int, 0),
            part=part,
            restores=_field(content, "restores", bool, False),
            reads_data=_field(content, "readsData", bool, False),
            peers=None if content.get("peers") is None else Peers.from_dict(content["peers"]),
            rounds=None if content.get("rounds") is None else Rounds.from_dict(content["rounds"]),
        )


_Value = TypeVar("_Value", str, int, bool)


def _field(
    content: Mapping[str, Any], name: str, kind: type[_Value], default: _Value | None = None
) -> _Value:
    value: _Value | None = content.get(name, default)
    if value is None:
        raise ValueError(f"{name} is missing")
    if type(value) is not kind or (kind is int and value < 0):
        raise ValueError(f"{name} must be {_KINDS[kind]}, not {json.dumps(value)}")
    return value


_KINDS: Mapping[type, str] = {str: "a string", int: "a whole number of at least 0", bool: "true or false"}

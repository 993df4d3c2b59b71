"""The notes of a conversion: fields that the conversion left out, changed or refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from dtj.api.job import Manifest


@dataclass(frozen=True)
class Note:
    """A field of the input, and the result of its conversion."""

    field: str
    """The path of the field in the input, e.g. spec.runPolicy.suspend."""
    was: Any
    """The value in the input; None if the input does not have the field."""
    now: str
    """What dtj does instead, or what the user must do."""
    refused: bool = False
    """Whether the field makes the conversion impossible."""

    def __str__(self) -> str:
        value = "" if self.was is None else f": {_whole(self.was)}"
        # A note becomes a YAML comment. Join lines, because keys of the input may contain line breaks.
        return " ".join(f"{self.field}{value}: {self.now}".split())


@dataclass
class Notes:
    """The notes of one conversion, in the order in which they are added."""

    all: list[Note] = field(default_factory=list)

    def add(self, field: str, was: Any, now: str) -> None:
        """Note a field that was left out or changed."""
        self.all.append(Note(field, was, now))

    def refuse(self, field: str, was: Any, why: str) -> None:
        """Note a field that makes the conversion impossible."""
        self.all.append(Note(field, was, why, refused=True))

    @property
    def refused(self) -> bool:
        """Whether a field makes the conversion impossible."""
        return any(note.refused for note in self.all)


@dataclass(frozen=True)
class Conversion:
    """The result for one job of the input."""

    kind: str
    name: str
    manifest: Manifest | None
    """A valid DistributedTrainingJob; None if a note refuses the conversion."""
    notes: tuple[Note, ...]


def _whole(value: Any) -> str:
    """Return the whole value, however long, because the value may not appear elsewhere in the output."""
    return value if isinstance(value, str) else json.dumps(value, default=str)

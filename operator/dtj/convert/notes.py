"""What a conversion tells of the fields it could not take over as they are."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from dtj.api.job import Manifest


@dataclass(frozen=True)
class Note:
    """One field of the input, and what becomes of it."""

    field: str
    """Its path in the input, e.g. spec.runPolicy.suspend."""
    was: Any
    """Its value there; None where the input does not have it."""
    now: str
    """What happens now, or what is to be done."""
    refused: bool = False
    """Whether the job can't be converted because of it."""

    def __str__(self) -> str:
        value = "" if self.was is None else f": {_whole(self.was)}"
        # On one line, whatever the input's keys are: notes become YAML comments.
        return " ".join(f"{self.field}{value}: {self.now}".split())


@dataclass
class Notes:
    """The notes of one conversion, in the order in which they come up."""

    all: list[Note] = field(default_factory=list)

    def tell(self, field: str, was: Any, now: str) -> None:
        """A field that was left out or changed."""
        self.all.append(Note(field, was, now))

    def refuse(self, field: str, was: Any, why: str) -> None:
        """A field for which no valid job can be made."""
        self.all.append(Note(field, was, why, refused=True))

    @property
    def refused(self) -> bool:
        """Whether there is a reason against the conversion."""
        return any(note.refused for note in self.all)


@dataclass(frozen=True)
class Conversion:
    """What came out for one job of the input."""

    kind: str
    name: str
    manifest: Manifest | None
    """A valid DistributedTrainingJob; None where the notes have a reason against it."""
    notes: tuple[Note, ...]


def _whole(value: Any) -> str:
    """All of it, however long: what is cut would be lost without a word."""
    return value if isinstance(value, str) else json.dumps(value, default=str)

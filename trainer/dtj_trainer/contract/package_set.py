"""What an archive of `spec.code.packages` says of its wheels, in a file beside the wheels. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

FILE = "dtj-packages.json"


@dataclass(frozen=True)
class PackageSet:
    """The Python version and the packages of the image for which the wheels of an archive were chosen."""

    python: str
    """The version of Python without its last part, such as `3.11`."""
    image: Mapping[str, str] = field(default_factory=dict)
    """Packages of the image that the wheels or the requirements need: version by name. The archive has no wheels of
    these packages.
    """

    def to_json(self) -> str:
        """Return the text of the file: equal sets have equal texts."""
        return json.dumps({"python": self.python, "image": dict(sorted(self.image.items()))}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read the text of the file. Raises ValueError for anything else."""
        value = json.loads(text)
        if not isinstance(value, dict) or not isinstance(value.get("python"), str):
            raise ValueError("it names no version of Python")
        image = value.get("image", {})
        if not isinstance(image, dict) or not all(isinstance(version, str) for version in image.values()):
            raise ValueError("`image` does not name versions")
        return cls(value["python"], image)

"""The file beside the wheels in an archive of `spec.code.packages`, which names the image that the wheels are for.

Standard library only.
"""

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
            raise ValueError("the field `python` must be a version of Python such as 3.11")
        image = value.get("image", {})
        if not isinstance(image, dict) or not all(isinstance(version, str) for version in image.values()):
            raise ValueError("the field `image` must be an object with the version of each package")
        return cls(value["python"], image)

"""What a job left in its bucket."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtj_trainer.artifacts.store import StoredObject


@dataclass(frozen=True)
class StoredCheckpoint:
    """A complete checkpoint in the bucket."""

    step: int
    time: datetime
    size: int
    """Bytes of its files."""
    uri: str


class Artifacts:
    """The objects below a job's prefix. Synchronous. Raises NotFound for what is not there, Unreachable for a bucket
    that does not answer or refuses.
    """

    def __init__(self, uri: str, environment: Mapping[str, str]) -> None:
        """uri: s3://bucket/prefix. environment: AWS variables, as for every AWS program."""
        self.uri = uri
        self.environment = environment

    def ls(self, prefix: str = "") -> list[StoredObject]:
        """Objects (key, size in bytes, etag) below a folder; of the whole job by default."""
        raise NotImplementedError

    def get(self, key_or_prefix: str, folder: str | Path) -> list[Path]:
        """Copy an object, or all below a prefix (`checkpoints/938`, `model`, `""`: all), into a folder, which keeps
        their keys as paths. Returns the files.
        """
        raise NotImplementedError

    def cp(self, key: str, path: str | Path) -> Path:
        """Copy one object to a file, or under its own name into a folder that is there."""
        raise NotImplementedError

    def read(self, key: str) -> bytes:
        """The content of one object."""
        raise NotImplementedError

    def checkpoints(self) -> list[StoredCheckpoint]:
        """The complete checkpoints, oldest first."""
        raise NotImplementedError

    def metrics(self, kind: str = "metrics.jsonl") -> list[dict[str, Any]]:
        """The rows of a metrics file; `metrics-evaluator.jsonl` has those of the evaluator."""
        return [json.loads(line) for line in self.read(kind).splitlines() if line.strip()]

    def job(self) -> dict[str, Any]:
        """The job as it was written (job.yaml)."""
        raise NotImplementedError

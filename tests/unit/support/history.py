"""The fake cluster with the history of its objects, from which lists of an old version and watches are served."""

from __future__ import annotations

from dataclasses import dataclass, field

from dtj.api.job import Manifest
from tests.unit.support.copies import copied
from tests.unit.support.fake_cluster import FakeCluster, Name


@dataclass
class History(FakeCluster):
    """Remembers every change with its version and the object after the change, as watches deliver them."""

    history: list[tuple[int, str, Name, Manifest]] = field(default_factory=list)
    oldest: int = 0
    """The API server answers 410 to watches from an older version."""

    @property
    def version(self) -> int:
        """The newest version."""
        return self._counter

    def forget(self) -> None:
        """Forget the changes up to now, as an API server does after some minutes."""
        self._number("")
        self.oldest = self.version

    def at(self, version: int) -> dict[Name, Manifest]:
        """The objects as of a version."""
        objects: dict[Name, Manifest] = {}
        for number, kind, name, manifest in self.history:
            if number > version:
                break
            objects[name] = manifest
            if kind == "DELETED":
                del objects[name]
        return objects

    def remove(self, name: Name) -> None:
        removed = self.objects.get(name)
        super().remove(name)
        if removed is not None and name not in self.objects:
            removed["metadata"]["resourceVersion"] = self._number("")
            self._remember("DELETED", name, removed)

    def _store(self, name: Name, manifest: Manifest) -> Manifest:
        kind = "MODIFIED" if name in self.objects else "ADDED"
        stored = super()._store(name, manifest)
        self._remember(kind, name, stored)
        return stored

    def _remember(self, kind: str, name: Name, manifest: Manifest) -> None:
        version = int(manifest["metadata"]["resourceVersion"])
        self.history.append((version, kind, name, copied(manifest)))

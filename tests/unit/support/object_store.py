"""The API server as far as some objects go: strict about versions, and refusing on demand."""

from __future__ import annotations

from collections.abc import Callable

from dtj.api.job import Manifest
from dtj.cluster.port import ApiError
from tests.unit.support.copies import copied


class ObjectStore:
    """Objects by kind and name."""

    def __init__(self, *objects: Manifest) -> None:
        self.objects: dict[tuple[str, str], Manifest] = {}
        self.writes: list[str] = []
        """Verb and kind of each that was carried out."""
        self.refuse: Callable[[str, str], ApiError | None] = lambda verb, kind: None
        """Why a request, told by verb and kind, is not carried out."""
        self._version = 0
        for manifest in objects:
            self._store(manifest)

    async def get(self, manifest: Manifest) -> Manifest | None:
        self._ask("get", manifest)
        return copied(self.objects.get(_place(manifest)))

    async def create(self, manifest: Manifest) -> Manifest:
        self._ask("create", manifest)
        if _place(manifest) in self.objects:
            raise ApiError(409, "AlreadyExists", "it is there")
        return self._write("create", manifest)

    async def replace(self, manifest: Manifest) -> Manifest:
        self._ask("replace", manifest)
        there = self.objects.get(_place(manifest))
        if there is None:
            raise ApiError(404, "NotFound", "it is not there")
        if manifest["metadata"]["resourceVersion"] != there["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        return self._write("replace", manifest)

    def _ask(self, verb: str, manifest: Manifest) -> None:
        if error := self.refuse(verb, manifest["kind"]):
            raise error

    def _write(self, verb: str, manifest: Manifest) -> Manifest:
        self.writes.append(f"{verb} {manifest['kind']}")
        return copied(self._store(manifest))

    def _store(self, manifest: Manifest) -> Manifest:
        self._version += 1
        metadata = manifest["metadata"] | {"resourceVersion": str(self._version)}
        self.objects[_place(manifest)] = stored = copied(manifest | {"metadata": metadata})
        return stored


def _place(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]

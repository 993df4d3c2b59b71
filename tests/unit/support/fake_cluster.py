"""An API server in memory, as strict as the operator has to expect, with a garbage collector."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

from dtj.api.crd import custom_resource_definition
from dtj.api.identity import KIND, LABEL_ATTEMPT, LABEL_JOB
from dtj.api.job import Manifest
from dtj.api.mpijob import MPIJOB_KIND
from dtj.cluster.interface import ApiError
from dtj.status.times import written_time
from tests.unit.support.copies import copied
from tests.unit.support.mpijob_crd import MPIJOB_SCHEMA
from tests.unit.support.structural import schema_faults, with_defaults

T = TypeVar("T")
Name = tuple[str, str, str]
"""Kind, namespace and name."""
SCHEMA = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
WATCHED = (KIND, "Pod", "Service", "ConfigMap", "Deployment")
WRITES = ("create", "replace", "patch", "delete")
# Of a request to etcd, and of the values of a ConfigMap, in bytes.
_LARGEST_OBJECT, _LARGEST_CONFIG = 1_572_864, 1_048_576


class OperatorDied(BaseException):
    """The operator's process dies, so that no handler in it may catch this exception."""


@dataclass(frozen=True)
class Call:
    """One request of the operator."""

    verb: str
    kind: str
    name: str


def apply_merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, Mapping):
        return copied(patch)
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = apply_merge_patch(result.get(key), value)
    return result


@dataclass
class FakeCluster:
    """The API server. `die_at` lets the operator die before or after its n-th request from now; with another
    `fault` that request fails by it, and the operator lives on.
    """

    now: datetime = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
    objects: dict[Name, Manifest] = field(default_factory=dict)
    log: list[tuple[Name, Manifest | None]] = field(default_factory=list)
    """Every change, as watches deliver it."""
    calls: list[Call] = field(default_factory=list)
    created_pods: list[tuple[str, str]] = field(default_factory=list)
    """Name and attempt of every pod that was ever created."""
    served: set[tuple[str, str]] = field(default_factory=set)
    """API versions and plurals of foreign kinds that the server knows."""
    refuse: Callable[[Manifest], ApiError | None] = lambda manifest: None
    die_at: int | None = None
    die_when: Literal["before", "after"] = "before"
    fault: BaseException | None = None
    meanwhile: Callable[[Call, Manifest], None] = lambda call, manifest: None
    """Called before each request, to simulate other clients."""
    _counter: int = 0

    # --- what the operator asks -------------------------------------------------------------------

    async def create(self, manifest: Manifest) -> Manifest:
        return self._carry_out("create", manifest, lambda: self.add(manifest))

    async def get(self, manifest: Manifest) -> Manifest | None:
        return self._carry_out("get", manifest, lambda: copied(self.objects.get(name_of(manifest))))

    async def pods_of(self, namespace: str, job: str) -> list[Manifest]:
        def found() -> list[Manifest]:
            return [
                {"metadata": copied(there["metadata"])}
                for name, there in self.objects.items()
                if name[:2] == ("Pod", namespace)
                and there["metadata"].get("labels", {}).get(LABEL_JOB) == job
            ]

        asked = {"kind": "Pod", "metadata": {"name": job}}
        return list(self._carry_out("list", asked, found))

    async def replace(self, manifest: Manifest) -> Manifest:
        def update(there: Manifest) -> None:
            if there["metadata"]["resourceVersion"] != manifest["metadata"]["resourceVersion"]:
                raise ApiError(409, "Conflict", "the object has been modified")
            there.update(copied(manifest))

        return self._carry_out("replace", manifest, lambda: self.change(name_of(manifest), update))

    async def replace_data(self, manifest: Manifest) -> Manifest:
        def replace() -> Manifest:
            return self.change(name_of(manifest), lambda there: there.update(data=copied(manifest["data"])))

        return self._carry_out("patch", manifest, replace)

    async def delete(self, manifest: Manifest, uid: str) -> None:
        def delete() -> None:
            there = self.objects.get(name_of(manifest))
            if there is not None and there["metadata"]["uid"] == uid:
                self.remove(name_of(manifest))

        self._carry_out("delete", manifest, delete)

    async def update_deployment(self, manifest: Manifest) -> Manifest:
        def update(there: Manifest) -> None:
            there["metadata"]["annotations"] |= manifest["metadata"]["annotations"]
            there["spec"] |= {
                field: copied(value)
                for field, value in manifest["spec"].items()
                if field in ("replicas", "template")
            }

        def patch() -> Manifest:
            refusal = self.refuse(manifest)
            if refusal is not None:
                raise refusal
            return self.change(name_of(manifest), update)

        return self._carry_out("patch", manifest, patch)

    async def delete_pod(self, namespace: str, name: str, uid: str, *, force: bool = False) -> None:
        def delete() -> None:
            there = self.objects.get(("Pod", namespace, name))
            if there is not None and there["metadata"]["uid"] == uid:
                self.remove(("Pod", namespace, name)) if force else self.end_pod(there)

        self._carry_out("delete", {"kind": "Pod", "metadata": {"name": name, "uid": uid}}, delete)

    async def serves_kind(self, api_version: str, plural: str) -> bool:
        return (api_version, plural) in self.served

    async def delete_tree(self, manifest: Manifest) -> None:
        def delete() -> None:
            there = self.objects.get(name_of(manifest))
            if there is not None and there["metadata"]["uid"] == manifest["metadata"]["uid"]:
                self._end_after_dependents(name_of(manifest))

        self._carry_out("delete", manifest, delete)

    async def expire_job(self, namespace: str, name: str, uid: str, resource_version: str) -> None:
        def delete() -> None:
            there = self.objects.get((KIND, namespace, name))
            if there is None:
                return
            metadata = there["metadata"]
            if (metadata["uid"], metadata["resourceVersion"]) != (uid, resource_version):
                raise ApiError(409, "Conflict", "the precondition does not hold")
            self.remove((KIND, namespace, name))

        self._carry_out("delete", {"kind": KIND, "metadata": {"name": name}}, delete)

    async def patch_status(
        self, namespace: str, name: str, resource_version: str, patch: Manifest
    ) -> Manifest:
        def write() -> Manifest:
            there = self.objects.get((KIND, namespace, name))
            if there is None:
                raise ApiError(404, "NotFound", f'distributedtrainingjobs.dtj.dev "{name}" not found')
            if there["metadata"]["resourceVersion"] != resource_version:
                raise ApiError(409, "Conflict", "the object has been modified")
            status = apply_merge_patch(there.get("status"), json.loads(json.dumps(patch, allow_nan=False)))
            wrong = list(schema_faults(SCHEMA["properties"]["status"], status, "status"))
            if wrong:
                raise ApiError(422, "Invalid", "; ".join(wrong))
            if status == there.get("status"):
                return copied(there)
            return self.change((KIND, namespace, name), lambda job: job.update(status=status))

        asked = {"kind": KIND, "metadata": {"name": name}, "status": patch}
        return self._carry_out("patch", asked, write)

    def _carry_out(self, verb: str, manifest: Manifest, do: Callable[[], T]) -> T:
        if self.die_at is not None:
            self.die_at -= 1
        call = Call(verb, manifest["kind"], manifest["metadata"]["name"])
        self.calls.append(call)
        self.meanwhile(call, manifest)
        if self.die_at == 0 and self.die_when == "before":
            raise self.fault or OperatorDied
        try:
            return do()
        finally:
            if self.die_at == 0:
                raise self.fault or OperatorDied

    # --- what others do -----------------------------------------------------------------------------

    def add(self, manifest: Manifest) -> Manifest:
        """Create an object, as any client."""
        name = name_of(manifest)
        refusal = self.refuse(manifest)
        if refusal is not None:
            raise refusal
        if name in self.objects:
            raise ApiError(409, "AlreadyExists", f'{name[0].lower()}s "{name[2]}" already exists')
        stored = json.loads(json.dumps(manifest, allow_nan=False))
        if name[0] == KIND:
            stored = with_defaults(SCHEMA, stored)
        if name[0] == "ConfigMap" and sum(map(len, (stored.get("data") or {}).values())) > _LARGEST_CONFIG:
            too_long = f"data: Too long: must have at most {_LARGEST_CONFIG} bytes"
            raise ApiError(422, "Invalid", f'ConfigMap "{name[2]}" is invalid: {too_long}')
        if name[0] == MPIJOB_KIND:
            wrong = list(schema_faults(MPIJOB_SCHEMA, stored))
            if wrong:
                raise ApiError(400, "BadRequest", "; ".join(wrong))
            stored = with_defaults(MPIJOB_SCHEMA, stored)
        stored["metadata"] |= {"uid": self._number("uid"), "creationTimestamp": written_time(self.now)}
        stored["metadata"].setdefault("generation", 1)
        if name[0] == "Pod":
            stored["status"] = {"phase": "Pending"}
            self.created_pods.append((name[2], stored["metadata"].get("labels", {}).get(LABEL_ATTEMPT, "")))
        return self._store(name, stored)

    def put(self, manifest: Manifest) -> Manifest:
        """Create or replace an object of any form, without the checks of `add`; the object may have a uid."""
        metadata = {"namespace": "ml", "uid": self._number("uid"), "generation": 1} | manifest["metadata"]
        return self._store(name_of(manifest), copied(manifest | {"metadata": metadata}))

    def change(self, name: Name, do: Callable[[Manifest], Any]) -> Manifest:
        """Change an object, as any client."""
        if name not in self.objects:
            raise ApiError(404, "NotFound", f'"{name[2]}" not found')
        there = self.objects[name]
        changed = copied(there)
        do(changed)
        if changed == there:
            return changed
        if name[0] == KIND and changed["spec"] != there["spec"]:
            changed["metadata"]["generation"] += 1
        return self._store(name, changed)

    def remove(self, name: Name) -> None:
        """Remove an object at once. A pod with a finalizer ends, but stays."""
        there = self.objects.get(name)
        if there is not None and there["metadata"].get("finalizers"):
            told = {"deletionTimestamp": written_time(self.now), "deletionGracePeriodSeconds": 0}
            self.change(name, lambda pod: pod["metadata"].update({**told, **pod["metadata"]}))
            if there["spec"].get("nodeName") and there["status"]["phase"] not in ("Succeeded", "Failed"):
                self.change(name, lambda pod: pod["status"].update(phase="Failed"))
        elif self.objects.pop(name, None) is not None:
            self.log.append((name, None))

    def end_pod(self, pod: Manifest) -> None:
        """Delete a pod gracefully. The API server itself removes a pod without a node, or one that has ended."""
        name = name_of(pod)
        if not pod["spec"].get("nodeName") or pod["status"]["phase"] in ("Succeeded", "Failed"):
            self.remove(name)
        elif "deletionTimestamp" not in pod["metadata"]:
            grace = pod["spec"].get("terminationGracePeriodSeconds", 30)
            by = written_time(self.now + timedelta(seconds=grace))
            told = {"deletionTimestamp": by, "deletionGracePeriodSeconds": grace}
            self.change(name, lambda p: p["metadata"].update(told))

    def collect_garbage(self) -> None:
        """Delete objects whose owner no longer exists."""
        for name, there in list(self.objects.items()):
            if there["metadata"].get("foreground") and not self._dependents(there):
                self.remove(name)
        uids = {
            there["metadata"]["uid"]
            for there in self.objects.values()
            if not there["metadata"].get("foreground")
        }
        for name, there in list(self.objects.items()):
            owner = controlled_by(there)
            if owner and owner not in uids:
                if name[0] == "Pod":
                    self.end_pod(there)
                elif self._dependents(there):
                    self._end_after_dependents(name)
                else:
                    self.remove(name)

    def _end_after_dependents(self, name: Name) -> None:
        when = {"deletionTimestamp": written_time(self.now), "foreground": True}
        if "foreground" not in self.objects[name]["metadata"]:
            self.change(name, lambda there: there["metadata"].update(when))

    def _dependents(self, owner: Manifest) -> list[Manifest]:
        return [o for o in self.objects.values() if controlled_by(o) == owner["metadata"]["uid"]]

    def _store(self, name: Name, manifest: Manifest) -> Manifest:
        if len(json.dumps(manifest)) > _LARGEST_OBJECT:
            raise ApiError(500, "InternalError", "etcdserver: request is too large")
        manifest["metadata"]["resourceVersion"] = self._number("")
        self.objects[name] = manifest
        self.log.append((name, copied(manifest)))
        return copied(manifest)

    def _number(self, prefix: str) -> str:
        self._counter += 1
        return f"{prefix}{self._counter:06}" + ("-0000" if prefix else "")

    # --- what tests ask -----------------------------------------------------------------------------

    def job(self, name: str = "mnist", namespace: str = "ml") -> Manifest:
        return self.objects[KIND, namespace, name]

    def of_kind(self, kind: str) -> list[Manifest]:
        return [there for name, there in self.objects.items() if name[0] == kind]

    def pod(self, name: str) -> Manifest:
        return self.objects["Pod", "ml", name]

    @property
    def writes(self) -> list[Call]:
        return [call for call in self.calls if call.verb in WRITES]


def name_of(manifest: Manifest) -> Name:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace", "ml"), metadata["name"]


def controlled_by(manifest: Manifest) -> str:
    """The uid of the object of any kind that controls this one, or an empty string."""
    owners = manifest["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), "")

"""A cluster of one machine: the part of the API server that the operator uses, and a kubelet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from dtj.api.identity import LABEL_INDEX, LABEL_ROLE
from dtj.api.job import Manifest, read_status
from dtj.api.status import JobStatus
from dtj.cluster.interface import ApiError
from dtj.local.pod import LocalPod
from dtj.local.processes import Adopted
from dtj.local.runs import Run
from dtj.reconcile.patch import patched
from dtj.reconcile.view import Key, Owned, OwnedDeployment, OwnedPod, OwnedRecord, controller_uid, data_digest

_LOOK_SECONDS = 0.2
Changed = Callable[[Key], None]


class LocalCluster:
    """The operator's `Cluster` and `View` for the one job of a run."""

    def __init__(
        self,
        run: Run,
        adopted: Adopted,
        manifest: Manifest,
        environment: Mapping[str, str],
        clock: Callable[[], datetime],
        on_event: Callable[[Manifest], None],
    ) -> None:
        """Store the job on disk.

        adopted: processes that outlive their pods. environment: variables of this machine for all processes.
        on_event: called with each Event object.
        """
        self.changed: Changed = lambda _: None
        """Called with the key of the job after each change."""
        self.fault: OSError | None = None
        """The error that prevented a write to the disk, if any."""
        self._run = run
        self._adopted = adopted
        self._manifest = manifest
        self._environment = environment
        self._clock = clock
        self._on_event = on_event
        self._pods: dict[str, LocalPod] = {}
        self._deleted: set[str] = set()
        """The uids of pods to remove after they end."""
        self._services: dict[str, Manifest] = {}
        self._configs: dict[str, Manifest] = {}
        with self._disk():
            run.write(manifest)

    @property
    def key(self) -> Key:
        """Return the namespace and the name of the job."""
        return self._run.namespace, self._run.name

    @property
    def status(self) -> JobStatus:
        """Return the stored status of the job."""
        return read_status(self._manifest.get("status") or {})

    @property
    def alive(self) -> list[str]:
        """Return the names of the pods that have not ended."""
        return sorted(pod.name for pod in self._pods.values() if not pod.ended)

    @property
    def failures(self) -> list[str]:
        """Return the failures that the pods have reported, also those of pods that have not ended."""
        return [failure for pod in self._pods.values() if (failure := pod.failure)]

    def store_again(self) -> None:
        """Store the job after the disk was full."""
        self.fault = None
        with self._disk():
            self._run.write(self._manifest)

    def suspend(self) -> None:
        """Set runPolicy.suspend. The operator then ends the pods, whose programs save checkpoints."""
        spec = self._manifest["spec"]
        policy = {**(spec.get("runPolicy") or {}), "suspend": True}
        self._store({"spec": {**spec, "runPolicy": policy}}, generation=1)
        self.changed(self.key)

    def stop_pods(self) -> None:
        """Send SIGTERM to every pod."""
        for pod in self._pods.values():
            pod.stop()

    async def look_after(self) -> None:
        """Watch the pods until cancelled, as a kubelet does."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            # Check in a thread: to kill the remaining processes of a pod may block for a moment.
            changed = await asyncio.to_thread(_changed, list(self._pods.values()))
            if not self.alive:
                # Kill in the event loop, not in a thread: the operator could otherwise create a pod at the same time.
                self._adopted.kill()
            for pod in changed:
                self._forget_if_gone(pod)
            if changed:
                self.changed(self.key)

    # --- Cluster ------------------------------------------------------------------------------------

    async def create(self, manifest: Manifest) -> Manifest:
        with self._disk():
            await self._create(manifest)
        return manifest

    async def _create(self, manifest: Manifest) -> None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if kind == "Event":
            self._run.add_event(manifest)
            self._on_event(manifest)
            return
        if await self.get(manifest) is not None:
            raise ApiError(409, "AlreadyExists", f'{kind} "{name}" already exists')
        if kind == "Pod":
            labels = manifest["metadata"]["labels"]
            folder = self._run.folder / f"{labels[LABEL_ROLE]}-{labels[LABEL_INDEX]}"
            self._pods[name] = LocalPod(manifest, folder, self._environment, self._clock)
        elif kind == "ConfigMap":
            self._write_config(manifest)
        else:
            self._services[name] = manifest
        self.changed(self.key)

    async def get(self, manifest: Manifest) -> Manifest | None:
        name = manifest["metadata"]["name"]
        if manifest["kind"] == "Pod":
            return self._pods[name].manifest if name in self._pods else None
        return (self._configs if manifest["kind"] == "ConfigMap" else self._services).get(name)

    async def pods_of(self, namespace: str, job: str) -> list[Manifest]:
        return [pod.manifest for pod in self._pods.values()]

    async def replace_data(self, manifest: Manifest) -> Manifest:
        with self._disk():
            self._write_config(manifest)
        self.changed(self.key)
        return manifest

    async def delete(self, manifest: Manifest, uid: str) -> None:
        raise NotImplementedError  # The plan for this machine has no object that the operator deletes by this method.

    async def update_deployment(self, manifest: Manifest) -> Manifest:
        return manifest

    async def delete_pod(self, namespace: str, name: str, uid: str, *, force: bool = False) -> None:
        # `force` has no effect: LocalPod kills each process at the end of its grace period.
        pod = self._pods.get(name)
        if pod is not None and pod.uid == uid:
            self._deleted.add(uid)
            pod.stop()
            self._forget_if_gone(pod)
            self.changed(self.key)

    async def serves_kind(self, api_version: str, plural: str) -> bool:
        """Return False: no other controllers run on this machine."""
        return False

    async def delete_tree(self, manifest: Manifest) -> None:
        """Delete nothing: no object belongs to another controller."""

    async def expire_job(self, namespace: str, name: str, uid: str, resource_version: str) -> None:
        """Ignore the TTL: a local run is kept until a new run has the same name."""

    async def patch_status(
        self, namespace: str, name: str, resource_version: str, patch: Manifest
    ) -> Manifest:
        if resource_version != self._manifest["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        self._store({"status": patched(self._manifest.get("status"), patch)})
        return self._manifest

    # --- View ---------------------------------------------------------------------------------------

    def job(self, key: Key) -> Mapping[str, Any] | None:
        return self._manifest if key == self.key else None

    def pods(self, key: Key) -> Sequence[OwnedPod]:
        return [pod.owned for pod in self._pods.values()]

    def services(self, key: Key) -> Sequence[Owned]:
        return [Owned(name, controller_uid(service)) for name, service in self._services.items()]

    def configs(self, key: Key) -> Sequence[Owned]:
        return [
            Owned(name, controller_uid(config), data_digest(config["data"]))
            for name, config in self._configs.items()
        ]

    def deployments(self, key: Key) -> Sequence[OwnedDeployment]:
        return []

    def records(self, key: Key) -> Sequence[OwnedRecord]:
        return []

    def active(self) -> Sequence[Key]:
        return [] if self.status.finished else [self.key]

    # ------------------------------------------------------------------------------------------------

    def _store(self, change: Manifest, generation: int = 0) -> None:
        old = self._manifest["metadata"]
        metadata = {
            **old,
            "resourceVersion": str(int(old["resourceVersion"]) + 1),
            "generation": old["generation"] + generation,
        }
        self._manifest = {**self._manifest, **change, "metadata": metadata}
        with self._disk():
            self._run.write(self._manifest)

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # Do not raise the error: the operator would retry, but `dtj run` must end with this error.
            self.fault = error

    def _write_config(self, manifest: Manifest) -> None:
        folder = self._run.folder / "config"
        folder.mkdir(exist_ok=True)
        for name, text in manifest["data"].items():
            (folder / name).write_text(text)
        self._configs[manifest["metadata"]["name"]] = manifest

    def _forget_if_gone(self, pod: LocalPod) -> None:
        if pod.ended and pod.uid in self._deleted:
            self._deleted.discard(pod.uid)
            with contextlib.suppress(KeyError):
                del self._pods[pod.name]


def _changed(pods: Sequence[LocalPod]) -> list[LocalPod]:
    """Check every pod, and return the pods whose state changed."""
    return [pod for pod in pods if pod.check()]

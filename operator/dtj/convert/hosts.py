"""Names by which the replicas of a Kubeflow job reach each other, as dtj's pods have them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dtj.api.job import Manifest
from dtj.api.names import pod_name, service_name
from dtj.convert.notes import Notes

_ROLES = {
    "mpiReplicaSpecs": ("launcher", "worker"),
    "tfReplicaSpecs": ("chief", "master", "worker", "ps", "evaluator"),
}
# Releases of mpi-operator call the Service of a job's pods <job>, <job>-worker or <job>-launcher.
_SERVICES = ("worker", "launcher")


class _Unknown(Exception):
    """A host name without an exact equivalent in dtj."""


def with_dtjs_hosts(manifest: Manifest, field: str, notes: Notes) -> Manifest:
    """The job with the host names of its replicas rewritten in commands, args and env.

    field: `mpiReplicaSpecs` or `tfReplicaSpecs`. Each rewritten name gets a note. A name that can't be rewritten
    refuses the conversion.
    """
    spec, metadata = _object(manifest.get("spec")), _object(manifest.get("metadata"))
    job, replicas = metadata.get("name"), _object(spec.get(field))
    if not isinstance(job, str) or not job or not replicas:
        return manifest
    names = _Names(job, metadata.get("namespace"), field, replicas, bool(spec.get("runLauncherAsWorker")))
    written = {
        key: _with_containers(replica, names, f"spec.{field}.{key}.template.spec", notes)
        for key, replica in replicas.items()
    }
    return {**manifest, "spec": {**spec, field: written}}


class _Names:
    """The host names of one job's replicas."""

    def __init__(
        self, job: str, namespace: object, field: str, replicas: Manifest, launcher_works: bool
    ) -> None:
        self._job, self._field, self._launcher_works = job, field, launcher_works
        self._namespace = namespace
        self._counts = {
            str(key).lower(): _object(replica).get("replicas", 1) for key, replica in replicas.items()
        }
        roles = "|".join(_ROLES[field])
        # Job, role, index, domain, and what a shell or a template would expand to an index.
        self._pattern = re.compile(
            rf"(?<![\w.-]){re.escape(job)}-({roles})(-[0-9]+)?((?:\.[a-zA-Z0-9][-a-zA-Z0-9]*)*)"
            r"(-?[$`{*\[<%]\S*)?(?![\w-])"
        )

    def renamed(self, text: str) -> tuple[str, dict[str, str]]:
        """The text with dtj's names, and the new name of each old one. Raises _Unknown."""
        changed: dict[str, str] = {}

        def new(found: re.Match[str]) -> str:
            if text[: found.start()].endswith("/") and not text[: found.start()].endswith("//"):
                return found[0]  # A part of a path: pods have the same name as in Kubeflow.
            if (host := self._host(found)) != found[0]:
                changed[found[0]] = host
            return host

        return self._pattern.sub(new, text), changed

    def _host(self, found: re.Match[str]) -> str:
        role, index, rest = found[1], found[2], found[3].split(".")[1:]
        if found[4]:
            raise _Unknown(f"the program puts {found[0]} together when it runs")
        if (index is None) != (role == "launcher"):
            return found[0]
        if self._launcher_works:
            raise _Unknown(
                f"{found[0]} may be another replica: with runLauncherAsWorker rank 0 runs in the launcher, "
                "and with dtj in worker 0"
            )
        number = int((index or "-0")[1:])
        count = self._counts.get(role, 0)
        if not isinstance(count, int) or number >= count:
            raise _Unknown(f"the job has no replica {found[0]}")
        if self._field == "mpiReplicaSpecs" and rest:
            service, *rest = rest
            if service not in (self._job, *(f"{self._job}-{name}" for name in _SERVICES)):
                raise _Unknown(f"mpi-operator creates no Service for {found[0]}")
        if rest and rest[1:2] != ["svc"] and (len(rest) > 1 or rest[0] != self._namespace):
            raise _Unknown(f"{found[0]} is not the host name of a replica")
        return ".".join([pod_name(self._job, role, number), service_name(self._job), *rest])


def _with_containers(replica: Any, names: _Names, path: str, notes: Notes) -> Any:
    template = _object(_object(replica).get("template"))
    pod = _object(template.get("spec"))
    written = {
        kind: [
            _with_texts(container, names, f"{path}.{kind}[{index}]", notes)
            for index, container in enumerate(pod[kind])
        ]
        for kind in ("initContainers", "containers")
        if isinstance(pod.get(kind), list)
    }
    return {**replica, "template": {**template, "spec": {**pod, **written}}} if written else replica


def _with_texts(container: Any, names: _Names, path: str, notes: Notes) -> Any:
    if not isinstance(container, dict):
        return container
    texts = dict(_texts(container))
    written: dict[tuple[str, int], str] = {}
    for (key, index), text in texts.items():
        where = f"{path}.{key}[{index}]"
        try:
            written[key, index], changed = names.renamed(text)
        except _Unknown as unknown:
            notes.refuse(
                where, text, f"{unknown}; write dtj's name of the replica, <job>-<role>-<index>.<job>"
            )
            continue
        for before, now in changed.items():
            notes.add(where, before, f"now {now}, the host's name in dtj")
    return container | {
        key: [_written(key, entry, written.get((key, index))) for index, entry in enumerate(container[key])]
        for key in {key for key, _ in texts}
    }


def _texts(container: Mapping[str, Any]) -> Iterator[tuple[tuple[str, int], str]]:
    for key in ("command", "args", "env"):
        entries = container.get(key)
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            text = _object(entry).get("value") if key == "env" else entry
            if isinstance(text, str):
                yield (key, index), text


def _written(key: str, entry: Any, text: str | None) -> Any:
    if text is None:
        return entry
    return {**entry, "value": text} if key == "env" else text


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

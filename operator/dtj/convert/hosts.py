"""Host names of the replicas of a Kubeflow job, rewritten to the host names of dtj's pods."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dtj.api.job import Manifest
from dtj.api.names import pod_name
from dtj.convert.notes import Notes
from dtj.convert.tensorflow import is_lone_leader

_ROLES = {
    "mpiReplicaSpecs": ("launcher", "worker"),
    "tfReplicaSpecs": ("chief", "master", "worker", "ps", "evaluator"),
    "pytorchReplicaSpecs": ("master", "worker"),
}
# Depending on the release, mpi-operator names the Service of a job <job>, <job>-worker or <job>-launcher.
_SERVICES = ("worker", "launcher")


class _Unknown(Exception):
    """A host name without an exact equivalent in dtj."""


def with_dtjs_hosts(manifest: Manifest, field: str, notes: Notes) -> Manifest:
    """Return the job with the host names of its replicas rewritten in commands, args and env.

    field: `mpiReplicaSpecs`, `tfReplicaSpecs` or `pytorchReplicaSpecs`. Each rewritten name gets a note. A name
    without an equivalent refuses the conversion.
    """
    spec, metadata = _object(manifest.get("spec")), _object(manifest.get("metadata"))
    job, replicas = metadata.get("name"), _object(spec.get(field))
    if not isinstance(job, str) or not job or not replicas:
        return manifest
    names = _Names(job, metadata.get("namespace"), field, replicas, bool(spec.get("runLauncherAsWorker")))
    rewritten = {
        key: _with_containers(replica, names, f"spec.{field}.{key}.template.spec", notes)
        for key, replica in replicas.items()
    }
    return {**manifest, "spec": {**spec, field: rewritten}}


class _Names:
    """The host names of one job's replicas."""

    def __init__(
        self, job: str, namespace: object, field: str, replicas: Manifest, launcher_is_worker: bool
    ) -> None:
        self._job, self._field, self._launcher_is_worker = job, field, launcher_is_worker
        self._namespace = namespace
        self._counts = {
            str(key).lower(): _object(replica).get("replicas", 1) for key, replica in replicas.items()
        }
        with_replicas = {role for role, count in self._counts.items() if count}
        self._lone_leader = field == "tfReplicaSpecs" and is_lone_leader(with_replicas)
        roles = "|".join(_ROLES[field])
        # Groups: role, index, domain, and an expression that a shell or a template expands to an index.
        self._pattern = re.compile(
            rf"(?<![\w.-]){re.escape(job)}-({roles})(-[0-9]+)?((?:\.[a-zA-Z0-9][-a-zA-Z0-9]*)*)"
            r"(-?[$`{*\[<%]\S*)?(?![\w-])"
        )

    def renamed(self, text: str) -> tuple[str, dict[str, str]]:
        """Return the text with dtj's host names, and the new names by old name. Raises _Unknown."""
        changed: dict[str, str] = {}

        def replacement(match: re.Match[str]) -> str:
            if text[: match.start()].endswith("/") and not text[: match.start()].endswith("//"):
                # The name is part of a path, not a host name.
                return match[0]
            if (host := self._host(match)) != match[0]:
                changed[match[0]] = host
            return host

        return self._pattern.sub(replacement, text), changed

    def _host(self, match: re.Match[str]) -> str:
        role, index, domain = match[1], match[2], match[3].split(".")[1:]
        if match[4]:
            raise _Unknown(f"{match[0]} is not a complete name: the program completes the name when it runs")
        # Only the launcher has a host name without an index.
        if (index is None) != (role == "launcher"):
            return match[0]
        if self._launcher_is_worker:
            raise _Unknown(
                f"{match[0]} may name another replica: with runLauncherAsWorker, rank 0 runs in the launcher, "
                "and in dtj, rank 0 runs in worker 0"
            )
        number = int((index or "-0")[1:])
        count = self._counts.get(role, 0)
        if not isinstance(count, int) or number >= count:
            raise _Unknown(f"the job has no replica {match[0]}")
        if self._field == "mpiReplicaSpecs" and domain:
            service, *domain = domain
            if service not in (self._job, *(f"{self._job}-{name}" for name in _SERVICES)):
                raise _Unknown(f"mpi-operator creates no Service for {match[0]}")
        if domain and domain[1:2] != ["svc"] and (len(domain) > 1 or domain[0] != self._namespace):
            raise _Unknown(f"{match[0]} is not the host name of a replica")
        if self._field == "pytorchReplicaSpecs" and role == "worker" and self._counts.get("master"):
            number += 1  # The master becomes worker 0 in dtj, and worker 0 becomes worker 1.
        if self._lone_leader or self._field == "pytorchReplicaSpecs":
            role = "worker"
        return ".".join([pod_name(self._job, role, number), self._job, *domain])


def _with_containers(replica: Any, names: _Names, path: str, notes: Notes) -> Any:
    template = _object(_object(replica).get("template"))
    pod = _object(template.get("spec"))
    rewritten = {
        kind: [
            _with_texts(container, names, f"{path}.{kind}[{index}]", notes)
            for index, container in enumerate(pod[kind])
        ]
        for kind in ("initContainers", "containers")
        if isinstance(pod.get(kind), list)
    }
    return {**replica, "template": {**template, "spec": {**pod, **rewritten}}} if rewritten else replica


def _with_texts(container: Any, names: _Names, path: str, notes: Notes) -> Any:
    if not isinstance(container, dict):
        return container
    texts = dict(_texts(container))
    rewritten: dict[tuple[str, int], str] = {}
    for (key, index), text in texts.items():
        where = f"{path}.{key}[{index}]"
        try:
            rewritten[key, index], changed = names.renamed(text)
        except _Unknown as unknown:
            notes.refuse(
                where,
                text,
                f"{unknown}; write the host name of the replica in dtj, <job>-<role>-<index>.<job>",
            )
            continue
        for old_name, new_name in changed.items():
            notes.add(where, old_name, f"now {new_name}, the host name in dtj")
    return container | {
        key: [
            _with_text(key, entry, rewritten.get((key, index))) for index, entry in enumerate(container[key])
        ]
        for key in {key for key, _ in texts}
    }


def _texts(container: Mapping[str, Any]) -> Iterator[tuple[tuple[str, int], str]]:
    for key in ("command", "args", "env"):
        entries = container.get(key)
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            text = _object(entry).get("value") if key == "env" else entry
            if isinstance(text, str):
                yield (key, index), text


def _with_text(key: str, entry: Any, text: str | None) -> Any:
    if text is None:
        return entry
    return {**entry, "value": text} if key == "env" else text


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

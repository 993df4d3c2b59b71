"""Strategic merge of a partial pod template over the operator's own.

The merge keys are those of the Kubernetes API (`x-kubernetes-patch-merge-key` of PodSpec and Container). A list
without a merge key is replaced as a whole. A null removes a field. Of fields that exclude each other, such as the
handlers of a probe, that of the template stays (`retainKeys` of the Kubernetes API).
"""

from __future__ import annotations

from typing import Any

from dtj.api.pod_template_rules import one_of

# Objects of which some fields exclude each other. Such a field of the patch replaces the other field of the base.
_KINDS = {
    "env[]": "EnvVar",
    "volumes[]": "Volume",
    "valueFrom": "EnvVarSource",
    "livenessProbe": "Probe",
    "readinessProbe": "Probe",
    "startupProbe": "Probe",
    "postStart": "LifecycleHandler",
    "preStop": "LifecycleHandler",
}
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}


def merged(base: Any, patch: Any, field: str = "") -> Any:
    """Return `patch` merged over `base`. Neither argument is changed."""
    if isinstance(base, dict) and isinstance(patch, dict):
        replaced = _replaced(patch, field)
        result = {
            key: value
            for key, value in base.items()
            if patch.get(key, value) is not None and key not in replaced
        }
        for key, value in patch.items():
            if value is not None:
                result[key] = merged(base.get(key), value, key)
        return result
    key = _MERGE_KEYS.get(field)
    if key is not None and _has_keys(base, key) and _has_keys(patch, key):
        return _merged_list(base, patch, key, f"{field}[]")
    return patch


def _replaced(patch: dict[str, Any], field: str) -> frozenset[str]:
    """Return the fields that can't stay in the base beside those of the patch."""
    fields = one_of(_KINDS[field]) if field in _KINDS else ()
    chosen = [name for name in fields if patch.get(name) is not None]
    return frozenset(fields).difference(chosen) if chosen else frozenset()


def _has_keys(entries: Any, key: str) -> bool:
    """Return whether a list can be merged by the key. The API server refuses values of another form later."""
    return isinstance(entries, list) and all(
        isinstance(entry, dict) and isinstance(entry.get(key), (str, int)) for entry in entries
    )


def _merged_list(
    base: list[dict[str, Any]], patch: list[dict[str, Any]], key: str, field: str
) -> list[dict[str, Any]]:
    patches = {entry.get(key): entry for entry in patch}
    known = {entry.get(key) for entry in base}
    result = [
        merged(entry, patches[entry.get(key)], field) if entry.get(key) in patches else entry
        for entry in base
    ]
    return result + [entry for entry in patch if entry.get(key) not in known]

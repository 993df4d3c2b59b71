"""`make pod-schema`: Kubernetes' schema of pod templates, as the operator ships it.

It is made of the package kubernetes-validate, and has the fields of the oldest and of the newest version together.
What only one of them knows is for the API server to judge. The package has enumerations in its prose alone. VALUES
has those that people write.
"""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

OLDEST = "1.25"
FILE = Path(__file__).parents[1] / "operator/dtj/api/pod_schema.json"
ROOTS = ("PodSpec", "Toleration", "EnvVarSource")
# Fields whose values the API server checks against a list. Each value has to be in the field's description.
VALUES = {
    "AppArmorProfile.type": "Localhost RuntimeDefault Unconfined",
    "Container.imagePullPolicy": "Always Never IfNotPresent",
    "ContainerPort.protocol": "UDP TCP SCTP",
    "LabelSelectorRequirement.operator": "In NotIn Exists DoesNotExist",
    "NodeSelectorRequirement.operator": "In NotIn Exists DoesNotExist Gt Lt",
    "PodSecurityContext.fsGroupChangePolicy": "OnRootMismatch Always",
    "PodSecurityContext.supplementalGroupsPolicy": "Merge Strict",
    "PodSpec.dnsPolicy": "ClusterFirstWithHostNet ClusterFirst Default None",
    "PodSpec.preemptionPolicy": "Never PreemptLowerPriority",
    "SeccompProfile.type": "Localhost RuntimeDefault Unconfined",
    "Toleration.effect": "NoSchedule PreferNoSchedule NoExecute",
    "Toleration.operator": "Exists Equal Lt Gt",
    "TopologySpreadConstraint.nodeAffinityPolicy": "Honor Ignore",
    "TopologySpreadConstraint.nodeTaintsPolicy": "Honor Ignore",
    "TopologySpreadConstraint.whenUnsatisfiable": "DoNotSchedule ScheduleAnyway",
    "VolumeMount.recursiveReadOnly": "Disabled IfPossible Enabled",
}
_LEAVES = {"Quantity": "quantity", "IntOrString": "int-or-string", "Time": "string", "FieldsV1": "object"}


def pod_schema() -> dict[str, Any]:
    """What the file has to contain."""
    newest = _newest()
    definitions: dict[str, dict[str, str]] = {}
    # The newest comes first: where the two differ, it is right.
    for version in (newest, OLDEST):
        _add(definitions, _definitions(version))
    for field, values in VALUES.items():
        name, key = field.split(".")
        definitions[name] = {
            known: "|".join(values.split()) if known.rstrip("!") == key else kind
            for known, kind in definitions[name].items()
        }
    return {
        "kubernetes": [OLDEST, newest],
        "definitions": {name: dict(sorted(definitions[name].items())) for name in sorted(definitions)},
    }


def written() -> str:
    """The file's text: one line a definition."""
    schema = pod_schema()
    lines = (
        f"    {json.dumps(name)}: {json.dumps(fields)}" for name, fields in schema["definitions"].items()
    )
    versions = json.dumps(schema["kubernetes"])
    return f'{{\n  "kubernetes": {versions},\n  "definitions": {{\n' + ",\n".join(lines) + "\n  }\n}\n"


def descriptions() -> dict[str, str]:
    """What the newest version says of each field of VALUES."""
    known = _definitions(_newest())
    return {
        field: known[_full(known, field.split(".")[0])]["properties"][field.split(".")[1]]["description"]
        for field in VALUES
    }


def _folder() -> Path:
    # The package is not imported: that takes seconds.
    spec = find_spec("kubernetes_validate")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "kubernetes-json-schema"


def _newest() -> str:
    versions = (re.fullmatch(r"v(\d+)\.(\d+)\.\d+-local", entry.name) for entry in _folder().iterdir())
    return "{}.{}".format(*max((int(found[1]), int(found[2])) for found in versions if found))


def _definitions(version: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_folder() / f"v{version}.0-local/_definitions.json").read_text())[
        "$defs"
    ]
    return found


def _full(known: dict[str, Any], name: str) -> str:
    for package in ("io.k8s.api.core.v1", "io.k8s.apimachinery.pkg.apis.meta.v1"):
        if f"{package}.{name}" in known:
            return f"{package}.{name}"
    raise KeyError(name)


def _add(definitions: dict[str, dict[str, str]], known: dict[str, Any]) -> None:
    waiting = [_full(known, name) for name in ROOTS]
    seen = set(waiting)
    while waiting:
        full = waiting.pop()
        schema = known[full]
        fields = definitions.setdefault(_short(full), {})
        there = {name.rstrip("!") for name in fields}
        for name, field in schema.get("properties", {}).items():
            kind, refers = _kind(field, known)
            if name not in there:
                fields[name + ("!" if name in schema.get("required", ()) else "")] = kind
            if refers and refers not in seen:
                seen.add(refers)
                waiting.append(refers)


def _kind(field: dict[str, Any], known: dict[str, Any]) -> tuple[str, str]:
    """How the file writes a type, and the definition that it refers to."""
    if "$ref" in field:
        full = field["$ref"].rsplit("/", 1)[-1]
        leaf = _LEAVES.get(_short(full))
        return (leaf, "") if leaf else (_short(full), full)
    kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
    (kind,) = (kind for kind in kinds if kind != "null")
    if kind == "array":
        inner, refers = _kind(field["items"], known)
        return f"[{inner}]", refers
    if kind == "object" and "additionalProperties" in field:
        inner, refers = _kind(field["additionalProperties"], known)
        return f"{{{inner}}}", refers
    return {"integer": field.get("format", "int64")}.get(kind, kind), ""


def _short(full: str) -> str:
    return full.rsplit(".", 1)[-1]


if __name__ == "__main__":
    FILE.write_text(written())

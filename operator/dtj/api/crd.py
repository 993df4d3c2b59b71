"""The CustomResourceDefinition, made from the models.

Rules of a structural schema: https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from dtj.api import immutable
from dtj.api.base import ApiModel, model_of
from dtj.api.identity import CATEGORIES, GROUP, KIND, PLURAL, SHORT_NAME, SINGULAR, VERSION
from dtj.api.job import Manifest
from dtj.api.schema_errors import MEANINGS
from dtj.api.spec import JobSpec
from dtj.api.status import JobStatus

_COLUMNS = (
    ("State", "string", ".status.state", "The phase, or in its place the condition that a person must know"),
    ("Progress", "number", ".status.progress.percent", "Steps done, in percent"),
    ("Ex/s", "number", ".status.progress.examplesPerSecond", "Examples a second over all ranks"),
    ("GPUs", "integer", ".status.gpus", "Accelerators that the job asks for, over all replicas"),
    ("Age", "date", ".metadata.creationTimestamp", "Time since the job was made"),
)
_WIDE_COLUMNS = (
    ("Strategy", "string", ".spec.strategy", "How its ranks work together"),
    ("Workers", "integer", ".spec.replicaSpecs.worker.replicas", "Workers"),
    ("Attempt", "integer", ".status.attempt", "Which attempt this is, from 1"),
    ("App-Restarts", "integer", ".status.restarts.application", "Restarts after failures of the program"),
    ("In-Place", "integer", ".status.restarts.inPlace", "How many of these were in place"),
    ("Infra-Restarts", "integer", ".status.restarts.infrastructure", "Restarts after lost pods or nodes"),
    ("Reason", "string", ".status.message", "Why the job is in its state, in one line"),
)
"""The columns of `kubectl get -o wide`."""
# Keywords that pydantic writes into a JSON schema. A CRD does not allow these keywords, or ignores them.
_DROPPED = ("title", "additionalProperties", "$defs", "const", "examples", "discriminator")
# A CEL expression for the value of runPolicy.managedBy; '' if the field is missing. {0} is self or oldSelf.
_MANAGED_BY = "has({0}.runPolicy) && has({0}.runPolicy.managedBy) ? {0}.runPolicy.managedBy : ''"
# A CEL expression for field {1} of schedulingPolicy; the default {2} if the field is missing. A user may therefore
# add or remove an immutable field that has the default value.
_GANG = (
    "has({0}.runPolicy) && has({0}.runPolicy.schedulingPolicy) && has({0}.runPolicy.schedulingPolicy.{1})"
    " ? {0}.runPolicy.schedulingPolicy.{1} : '{2}'"
)
# A CEL expression for horovod.launcher. Within horovod, the schema fills in the default of launcher.
_LAUNCHER = "has({0}.horovod) ? {0}.horovod.launcher : 'Native'"
# A CEL expression for a field {1} of artifacts, such as artifacts.uri; '' if the field is missing.
_PLACE = "has({0}.artifacts) && has({0}.{1}) ? {0}.{1} : ''"
_SUSPENDED = "has(oldSelf.runPolicy) && has(oldSelf.runPolicy.suspend) && oldSelf.runPolicy.suspend"
_DESCRIPTION = "Distributed training: the pods of a strategy, wired together, with its artifacts in S3."


def custom_resource_definition() -> Manifest:
    """The CRD as it is committed in manifests/crd."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": SINGULAR,
                "shortNames": [SHORT_NAME],
                "categories": list(CATEGORIES),
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path, "description": text, **priority}
                        for columns, priority in ((_COLUMNS, {}), (_WIDE_COLUMNS, {"priority": 1}))
                        for name, kind, path, text in columns
                    ],
                    "schema": {"openAPIV3Schema": _root()},
                }
            ],
        },
    }


def fields_lacking(published: Mapping[str, Any]) -> list[str]:
    """Return the fields of spec and status that a published schema lacks. The API server drops such fields.

    published: the schema of the installed CRD, which may stem from another version of dtj.
    """
    own = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    parts = ("spec", "status")
    return [name for part in parts for name in _lacking(own, published, part, part)]


def _lacking(own: Mapping[str, Any], published: Mapping[str, Any], name: str, path: str) -> Iterator[str]:
    ours, theirs = own["properties"][name], (published.get("properties") or {}).get(name)
    if theirs is None:
        yield path
        return
    while "items" in ours and "items" in theirs:
        ours, theirs = ours["items"], theirs["items"]
    # A published schema without properties is a reference, or preserves unknown fields: report no field as missing.
    if "properties" in theirs:
        for inner in ours.get("properties", {}):
            yield from _lacking(ours, theirs, inner, f"{path}.{inner}")


def _root() -> Manifest:
    spec = _schema(JobSpec)
    _set_defaults(spec, JobSpec)
    _explain_patterns(spec)
    spec["x-kubernetes-validations"] = [
        {"rule": "self.strategy == oldSelf.strategy", "message": immutable.fixed("strategy")},
        *({"rule": _size_rule(role), "message": message} for role, message in immutable.SIZES.items()),
        *(
            {
                "rule": f"({_PLACE.format('self', field)}) == ({_PLACE.format('oldSelf', field)}) || ({_SUSPENDED})",
                "message": message,
            }
            for field, message in immutable.PLACES.items()
        ),
        {
            "rule": f"({_MANAGED_BY.format('self')}) == ({_MANAGED_BY.format('oldSelf')})",
            "message": immutable.fixed("runPolicy.managedBy"),
        },
        *(
            {
                "rule": f"({_GANG.format('self', field, default)}) == ({_GANG.format('oldSelf', field, default)})",
                "message": immutable.fixed(f"runPolicy.schedulingPolicy.{field}"),
            }
            for field, default in (("gang", "None"), ("queue", ""))
        ),
        {
            "rule": f"({_LAUNCHER.format('self')}) == ({_LAUNCHER.format('oldSelf')})",
            "message": immutable.fixed("horovod.launcher"),
        },
    ]
    status = _schema(JobStatus)
    # Lists of type map: several users of server-side apply may each own entries, such as variables of env, as in a
    # pod of Kubernetes.
    for entries, key in ((spec["properties"]["env"], "name"), (status["properties"]["conditions"], "type")):
        entries["x-kubernetes-list-type"] = "map"
        entries["x-kubernetes-list-map-keys"] = [key]
    return {
        "description": _DESCRIPTION,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }


def _size_rule(role: str) -> str:
    """Return a CEL rule: the number of replicas of a role may change only while the job is suspended."""
    entry = f"replicaSpecs.{role}"
    if role in immutable.IMPLIED_SIZES:
        size = f"has({{0}}.{entry}) ? {{0}}.{entry}.replicas : {immutable.IMPLIED_SIZES[role]}"
        return f"({size.format('self')}) == ({size.format('oldSelf')}) || ({_SUSPENDED})"
    # Nobody may remove an entry: a later update could add the entry again with another number of replicas.
    return (
        f"has(self.{entry}) == has(oldSelf.{entry})"
        f" && (!has(self.{entry}) || self.{entry}.replicas == oldSelf.{entry}.replicas)"
        f" || ({_SUSPENDED})"
    )


def _schema(model: type[ApiModel]) -> Manifest:
    """Return the structural schema of a model, as a CRD requires it."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return _structural(schema, schema.get("$defs", {}))


def _set_defaults(schema: Manifest, model: type[ApiModel]) -> None:
    """Write the defaults of a model into its schema. The API server then stores the defaults in every object.

    An optional block gets the default {}: the API server then fills in the defaults of the block's fields. Empty
    lists and maps are not written as defaults: they would add no information to a stored object.
    """
    for field in model.model_fields.values():
        child = schema["properties"][field.alias]
        default = field.get_default()
        if isinstance(default, ApiModel):
            child["default"] = {}
            _set_defaults(child, type(default))
        elif isinstance(default, Enum):
            child["default"] = default.value
        elif isinstance(default, (int, str)):
            child["default"] = default
        nested = model_of(field.annotation)
        if nested is not None and "properties" in child and not isinstance(default, ApiModel):
            _set_defaults(child, nested)


def _explain_patterns(schema: Manifest) -> None:
    """Replace each pattern by a CEL rule with a message in words. With both, the API server reports a fault twice."""
    if "pattern" in schema:
        pattern = schema.pop("pattern")
        schema["x-kubernetes-validations"] = [
            {"rule": f'self.matches(r"{pattern}")', "message": f"must be {MEANINGS[pattern]}"}
        ]
    for child in schema.get("properties", {}).values():
        _explain_patterns(child)


def _structural(node: Manifest, definitions: dict[str, Manifest]) -> Manifest:
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[-1]]
        # The description and default beside a $ref belong to the field. They win over those of the referenced model.
        return _structural({**target, **{k: v for k, v in node.items() if k != "$ref"}}, definitions)
    if "anyOf" in node:
        # The schema of Optional[X] is that of X. The field is not required, and the API server stores no null.
        (value,) = (option for option in node["anyOf"] if option.get("type") != "null")
        return _structural({**value, **{k: v for k, v in node.items() if k != "anyOf"}}, definitions)
    result: Manifest = {}
    for key, value in node.items():
        if key == "properties":
            result[key] = {name: _structural(child, definitions) for name, child in value.items()}
        elif key == "items" or (key == "additionalProperties" and isinstance(value, dict)):
            result[key] = _structural(value, definitions)
        elif key == "default":
            continue
        elif key == "description":
            result[key] = " ".join(str(value).split())
        elif key not in _DROPPED:
            result[key] = value
    return result

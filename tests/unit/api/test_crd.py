"""The CustomResourceDefinition: equal to the committed file, and acceptable to an API server.

* the committed file is generated from the models
* the schema is structural, and small enough for the annotation of `kubectl apply`
* defaults, required fields, immutable fields and patterns
* printer columns, short names and descriptions
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.api.crd import custom_resource_definition
from dtj.api.job import read_job
from dtj.api.schema_errors import MEANINGS
from dtj.api.validation import faults
from dtj.cli.job_table import COLUMNS, WIDE_COLUMNS
from tests.unit.support.jobs import manifest
from tests.unit.support.structural import matched, schema_faults, structural_faults, with_defaults

ROOT = Path(__file__).parents[3]
CRD = ROOT / "manifests/crd/distributedtrainingjobs.yaml"
EXAMPLES = sorted((ROOT / "manifests/examples").glob("*.yaml"))
VERSION = custom_resource_definition()["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
SPEC = SCHEMA["properties"]["spec"]["properties"]
STATUS = SCHEMA["properties"]["status"]["properties"]


def test_committed_file_is_what_the_models_say() -> None:
    committed = yaml.safe_load(CRD.read_text())

    assert committed == custom_resource_definition(), "the models have changed: run `make crd` and commit it"


def test_api_server_would_take_the_schema() -> None:
    assert list(structural_faults(SCHEMA)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"$ref": "#/definitions/X", "type": "object"},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"type": ["string", "null"]},
        {"type": "string", "default": None},
        {"type": "integer", "default": "one"},
        {"type": "string", "const": "x"},
        {"type": "integer", "exclusiveMinimum": 0},
        {"type": "object", "additionalProperties": False},
        {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}},
        {"type": "object", "properties": {}, "required": ["x"]},
        {"type": "array"},
        {"type": "array", "items": {"type": "object", "properties": {"x": {}}}},
    ],
)
def test_checker_refuses_what_an_api_server_refuses(wrong: dict[str, Any]) -> None:
    assert list(structural_faults(wrong))


def test_size_leaves_room_for_the_annotation_of_kubectl_apply() -> None:
    assert len(json.dumps(custom_resource_definition())) < 262144 / 4


def test_defaults_are_those_of_the_models() -> None:
    stored = with_defaults(SCHEMA, manifest())

    assert stored["spec"]["runPolicy"] == {
        "suspend": False,
        "backoffLimit": 3,
        "avoidNodeAfterFailures": 2,
        "cleanPodPolicy": "Running",
        "stallPolicy": "Report",
        "schedulingPolicy": {"gang": "None"},
    }
    assert stored["spec"]["replicaSpecs"]["worker"] == {"replicas": 2, "gpus": 0, "resources": {}}
    assert stored["spec"]["accelerator"] == {"resourceName": "nvidia.com/gpu"}
    assert read_job(stored).spec == read_job(manifest()).spec


def test_optional_blocks_have_no_default_but_their_fields_have() -> None:
    assert "default" not in SPEC["artifacts"]
    assert SPEC["artifacts"]["properties"]["resume"]["default"] == "Auto"
    assert SPEC["horovod"]["properties"]["launcher"]["default"] == "Native"


def test_required_fields() -> None:
    assert SCHEMA["required"] == ["spec"]
    assert set(SCHEMA["properties"]["spec"]["required"]) == {"strategy", "image", "replicaSpecs"}


def test_conditions_are_a_map_by_type() -> None:
    assert STATUS["conditions"]["x-kubernetes-list-type"] == "map"
    assert STATUS["conditions"]["x-kubernetes-list-map-keys"] == ["type"]


def test_printer_columns_point_at_fields_that_there_are() -> None:
    columns = {column["name"]: column["jsonPath"] for column in VERSION["additionalPrinterColumns"]}

    wide = [column["name"] for column in VERSION["additionalPrinterColumns"] if column.get("priority")]
    assert ["NAME", *(name.upper() for name in columns if name not in wide)] == [*COLUMNS]
    assert [name.upper() for name in wide] == [*WIDE_COLUMNS]
    for path in columns.values():
        node = SCHEMA
        for part in path.removeprefix(".").split("."):
            if node is SCHEMA["properties"]["metadata"]:
                break
            node = node.get("properties", {}).get(part) or node["additionalProperties"]


def test_strategy_size_and_who_carries_it_out_are_immutable() -> None:
    rules = SCHEMA["properties"]["spec"]["x-kubernetes-validations"]
    assert rules[0] == {"rule": "self.strategy == oldSelf.strategy", "message": "strategy is immutable"}
    assert rules[1]["rule"].startswith(
        "has(self.replicaSpecs.worker) == has(oldSelf.replicaSpecs.worker) && (!has(self.replicaSpecs.worker)"
        " || self.replicaSpecs.worker.replicas == oldSelf.replicaSpecs.worker.replicas) || ("
    )
    assert rules[-1] == {
        "rule": "(has(self.horovod) ? self.horovod.launcher : 'Native') == "
        "(has(oldSelf.horovod) ? oldSelf.horovod.launcher : 'Native')",
        "message": "horovod.launcher is immutable",
    }
    assert [rule["message"] for rule in rules[-3:-1]] == [
        "runPolicy.schedulingPolicy.gang is immutable",
        "runPolicy.schedulingPolicy.queue is immutable",
    ]
    assert rules[-4] == {
        "rule": "(has(self.runPolicy) && has(self.runPolicy.managedBy) ? self.runPolicy.managedBy : '') == "
        "(has(oldSelf.runPolicy) && has(oldSelf.runPolicy.managedBy) ? oldSelf.runPolicy.managedBy : '')",
        "message": "runPolicy.managedBy is immutable",
    }


def texts_with_rules(node: dict[str, Any], path: str = "spec") -> Iterator[tuple[str, dict[str, Any]]]:
    assert "pattern" not in node, f"{path}: an API server would tell the pattern beside the words"
    if node.get("type") == "string" and "x-kubernetes-validations" in node:
        yield path, node
    for name, child in node.get("properties", {}).items():
        yield from texts_with_rules(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from texts_with_rules(node[key], f"{path}.{key}")


def test_what_a_pattern_asks_for_is_said_in_words_alone() -> None:
    found = dict(texts_with_rules(SCHEMA["properties"]["spec"]))

    assert {
        matched(rule["rule"]) for node in found.values() for rule in node["x-kubernetes-validations"]
    } == {*MEANINGS}
    for path, node in found.items():
        (rule,) = node["x-kubernetes-validations"]
        assert rule["message"] == f"must be {MEANINGS[matched(rule['rule'])]}", path
        # Without it, the API server takes the rule for too expensive, and refuses the whole CRD.
        assert node["maxLength"] <= 1024, path
    assert list(schema_faults(found["spec.artifacts.uri"], "http://x", "spec.artifacts.uri")) == [
        "spec.artifacts.uri: Invalid value: must be an address s3://bucket/prefix"
    ]


def test_the_examples_of_the_words_keep_to_the_patterns() -> None:
    for pattern, meaning in MEANINGS.items():
        for example in re.findall(r"\S*(?:://|\.com|x-k8s)[^\s,]*", meaning):
            assert re.fullmatch(pattern, example), example


def test_every_field_is_explained() -> None:
    def bare(node: dict[str, Any], path: str) -> list[str]:
        own = [] if node.get("description") else [path]
        children = node.get("properties", {})
        return own + [p for name, child in children.items() for p in bare(child, f"{path}.{name}")]

    assert bare(SCHEMA["properties"]["spec"], "spec") == []
    assert [path for path in bare(SCHEMA["properties"]["status"], "status") if path != "status"] == []


def test_names_that_people_type() -> None:
    names = custom_resource_definition()["spec"]["names"]

    assert names["shortNames"] == ["dtj"]
    assert "all" in names["categories"]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_valid(file: Path) -> None:
    example = yaml.safe_load(file.read_text())

    assert list(schema_faults(SCHEMA, example)) == []
    assert faults(read_job(example)) == []

"""The values of the chart: described, validated, and refused with a message that names the wrong value."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.chart.generated import CASES
from tests.chart.helm import CHART, ROOT, HelmError, call, objects, template
from tests.chart.values import VALUES, values

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
GLOBAL = "global"
"""Helm gives it to every chart that is a part of another."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_lint_has_nothing_to_say(case: Any) -> None:
    said = call("lint", "--strict", CHART, "--values", case / "values.yaml")

    assert "1 chart(s) linted, 0 chart(s) failed" in said
    assert [line for line in said.splitlines() if line.startswith("[") and "icon" not in line] == []


def test_chart_and_operator_have_the_projects_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert chart["version"] == chart["appVersion"] == project["version"]
    assert chart["description"]


def test_every_value_has_a_comment_and_a_place_in_the_schema() -> None:
    """And the other way round: the schema knows no value that is not there."""
    described = {value.path for value in values()}
    assert len(described) > 50
    assert {*_paths(SCHEMA)} == described


def _paths(node: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, child in node["properties"].items():
        if "description" not in child and "properties" in child:
            yield from _paths(child, (*above, name))
        else:
            yield (*above, name)


def test_no_group_of_values_takes_a_name_that_it_does_not_know() -> None:
    open_groups = [
        ".".join(above)
        for above, node in _groups(SCHEMA, ())
        if node.get("additionalProperties") is not False
    ]
    assert open_groups == [GLOBAL], "charts above this one have values of their own there"


def _groups(node: dict[str, Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    if "properties" in node:
        yield above, node
        for name, child in node["properties"].items():
            yield from _groups(child, (*above, name))


def test_every_value_is_used() -> None:
    templates = "".join(
        path.read_text()
        for pattern in ("*.yaml", "*.tpl", "*.txt")
        for path in (CHART / "templates").rglob(pattern)
    )
    unused = [
        value.name for value in values() if not re.search(rf"\.{re.escape(value.path[-1])}\b", templates)
    ]
    assert unused == []


def test_the_defaults_are_the_chart_without_values() -> None:
    defaults = yaml.safe_load(VALUES.read_text())
    assert objects(template(defaults)) == objects(template())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a name that is not known": (
        {"replicaCount": 3},
        "at '': additional properties 'replicaCount' not allowed",
    ),
    "a name that is not known, in a group": (
        {"image": {"tagg": "v1"}},
        "at '/image': additional properties 'tagg' not allowed",
    ),
    "defaults for no namespace": (
        {"userDefaults": {"config": {"artifacts": {"uri": "s3://training/jobs"}}}},
        "userDefaults.namespaces: name the namespaces that get the ConfigMap dtj-defaults",
    ),
    "a default that is not known": (
        {"userDefaults": {"config": {"workers": 2}, "namespaces": ["ml"]}},
        "at '/userDefaults/config': additional properties 'workers' not allowed",
    ),
    "a text for a number": ({"replicas": "two"}, "at '/replicas': got string, want integer"),
    "no replica": ({"replicas": 0}, "at '/replicas': minimum: got 0, want 1"),
    "a text for yes or no": (
        {"crds": {"install": "yes"}},
        "at '/crds/install': got string, want boolean",
    ),
    "one namespace not in a list": (
        {"watchNamespaces": "team-a"},
        "at '/watchNamespaces': got string, want array",
    ),
    "a namespace that can not be": (
        {"watchNamespaces": ["Team_A"]},
        "at '/watchNamespaces/0': 'Team_A' does not match pattern",
    ),
    "a namespace twice": (
        {"watchNamespaces": ["team-a", "team-a"]},
        "at '/watchNamespaces': items at 0 and 1 are equal",
    ),
    "a digest without its algorithm": (
        {"image": {"digest": "0123456789abcdef"}},
        "at '/image/digest': '0123456789abcdef' does not match pattern '^(sha256:[0-9a-f]{64})?$'",
    ),
    "a tag in the repository's place": (
        {"image": {"repository": "registry.example.com/dtj-operator@v1"}},
        "at '/image/repository': 'registry.example.com/dtj-operator@v1' does not match pattern",
    ),
    "a pull policy that Kubernetes does not have": (
        {"image": {"pullPolicy": "Sometimes"}},
        "at '/image/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'",
    ),
    "the name of a pull secret alone": (
        {"imagePullSecrets": ["registry"]},
        "at '/imagePullSecrets/0': got string, want object",
    ),
    "a log level that there is not": (
        {"logLevel": "verbose"},
        "at '/logLevel': value must be one of 'DEBUG', 'INFO', 'WARNING', 'ERROR'",
    ),
    "a quantity of memory that is none": (
        {"resources": {"limits": {"memory": "512MB"}}},
        "at '/resources/limits/memory': '512MB' does not match pattern",
    ),
    "a number as a node's label": (
        {"nodeSelector": {"gpu": 1}},
        "at '/nodeSelector/gpu': got number, want string",
    ),
    "an effect that taints do not have": (
        {"tolerations": [{"key": "gpu", "effect": "NoRun"}]},
        "at '/tolerations/0/effect': value must be one of 'NoSchedule', 'PreferNoSchedule', 'NoExecute'",
    ),
    "an affinity at the wrong level": (
        {"affinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}},
        "at '/affinity': additional properties 'requiredDuringSchedulingIgnoredDuringExecution' not allowed",
    ),
    "a port that can not be": (
        {"networkPolicy": {"apiServerPorts": [70000]}},
        "at '/networkPolicy/apiServerPorts/0': maximum: got 70,000, want 65,535",
    ),
    "a time without its unit": (
        {"metrics": {"serviceMonitor": {"interval": "30"}}},
        "at '/metrics/serviceMonitor/interval': '30' does not match pattern",
    ),
    "an alert that there is not": (
        {"metrics": {"prometheusRule": {"disabled": ["DtjTypo"]}}},
        "at '/metrics/prometheusRule/disabled/0': value must be one of 'DtjOperatorDown'",
    ),
    "an issuer without its name": (
        {"webhook": {"certManager": {"issuerRef": {"kind": "ClusterIssuer"}}}},
        "at '/webhook/certManager/issuerRef': missing property 'name'",
    ),
    "a failure policy that Kubernetes does not have": (
        {"webhook": {"failurePolicy": "ignore"}},
        "at '/webhook/failurePolicy': value must be one of 'Ignore', 'Fail'",
    ),
    "longer than the API server waits": (
        {"webhook": {"timeoutSeconds": 60}},
        "at '/webhook/timeoutSeconds': maximum: got 60, want 30",
    ),
    "a port that only root may open": (
        {"webhook": {"port": 443}},
        "at '/webhook/port': minimum: got 443, want 1,024",
    ),
    "another name for the webhook": (
        {"extraArgs": ["--webhook-name=mine"]},
        "extraArgs: --webhook-name=mine is set by the value webhook",
    ),
    "several operators without leader election": (
        {"leaderElection": {"enabled": False}},
        "replicas: 2 operators would all work on the same jobs without leaderElection.enabled",
    ),
    "a lease that expires before its renewal is late": (
        {"leaderElection": {"renewDeadline": 20}},
        "leaseDuration must be longer than renewDeadline, and that longer than retryPeriod; 10, 20 and 2 s",
    ),
    "no service account": (
        {"serviceAccount": {"create": False}},
        "serviceAccount.name: name the ServiceAccount to use, since serviceAccount.create is false",
    ),
    "a flag that a value sets": (
        {"extraArgs": ["--namespace=ml"]},
        "extraArgs: --namespace=ml is set by the value watchNamespaces",
    ),
    "a folder of nodes that is none": (
        {"dataCache": {"hostPathPrefixes": ["/var/../etc"]}},
        "at '/dataCache/hostPathPrefixes/0': '/var/../etc' does not match pattern",
    ),
    "folders of nodes by a flag": (
        {"extraArgs": ["--data-cache-host-path=/mnt"]},
        "extraArgs: --data-cache-host-path=/mnt is set by the value dataCache.hostPathPrefixes",
    ),
    "a port that the probes do not know": (
        {"extraArgs": ["--metrics-port=9090"]},
        "extraArgs: --metrics-port=9090 would leave the chart's probes and Service at the wrong port",
    ),
    "a test where nobody runs jobs": (
        {"watchNamespaces": ["team-a"], "test": {"namespace": "team-b"}},
        "test.namespace: team-b is none of watchNamespaces, so nobody would run the job",
    ),
    "a monitor of a Service that is not there": (
        {"metrics": {"serviceMonitor": {"enabled": True}, "service": {"enabled": False}}},
        "metrics.serviceMonitor.enabled needs metrics.service.enabled",
    ),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_refused_with_the_values_name(wrong: str) -> None:
    given, says = REFUSED[wrong]
    with pytest.raises(HelmError) as refusal:
        template(given)
    assert says in str(refusal.value)


def test_a_server_that_is_too_old_is_refused() -> None:
    with pytest.raises(HelmError, match=r"incompatible with Kubernetes v1\.24\.17"):
        template(None, "--kube-version=1.24.17")

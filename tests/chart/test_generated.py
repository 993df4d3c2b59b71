"""Generated files of the chart: the committed files equal what the generator writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.api.crd import custom_resource_definition
from tests.chart.generated import CASES, PLAIN, generated, stale_manifests
from tests.chart.helm import CHART, ROOT, objects, rendered, template

FILES = generated()
KUSTOMIZATION = "kustomization.yaml"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_committed_file_is_what_make_chart_writes(path: Path) -> None:
    assert path.exists(), "run `make chart` and commit what it writes"
    # Helm's versions differ in empty lines.
    there, made = ([line for line in text.splitlines() if line] for text in (path.read_text(), FILES[path]))
    assert there == made, "run `make chart`, and read the difference"


def test_there_are_eight_sets_of_values() -> None:
    assert {case.name for case in CASES} == {
        "default", "two-namespaces", "eks", "monitored", "openshift", "bare", "webhook", "webhook-cert-manager",
    }  # fmt: skip


def test_no_manifest_is_left_that_the_chart_does_not_make() -> None:
    assert stale_manifests() == set()


@pytest.mark.parametrize("folder", PLAIN)
def test_kubectl_applies_every_manifest(folder: str) -> None:
    there = {path.name for path in (ROOT / "manifests" / folder).glob("*.yaml")} - {KUSTOMIZATION}
    listed = yaml.safe_load((ROOT / "manifests" / folder / KUSTOMIZATION).read_text())["resources"]
    assert {name for name in listed if name.endswith(".yaml")} == there


def test_the_plain_manifests_are_the_chart_with_its_defaults() -> None:
    by_helm = {
        (made["kind"], made["metadata"]["name"]): _plain(made)
        for made in objects(template(None, "--skip-tests"))
        if made["kind"] != "CustomResourceDefinition"
    }
    by_hand = {
        (made["kind"], made["metadata"]["name"]): made
        for folder in PLAIN
        for path in (ROOT / "manifests" / folder).glob("*.yaml")
        if path.name not in (KUSTOMIZATION, "namespace.yaml")
        for made in objects(path.read_text())
    }
    assert by_hand == by_helm


def _plain(made: dict[str, Any]) -> dict[str, Any]:
    for label in ("helm.sh/chart", "app.kubernetes.io/managed-by"):
        del made["metadata"]["labels"][label]
    return made


@pytest.mark.parametrize("keep", [True, False])
def test_the_chart_brings_the_crd_of_the_models(keep: bool) -> None:
    made = rendered({"crds": {"keep": keep, "annotations": {"example.com/by": "us"}}})
    crd = made["CustomResourceDefinition/distributedtrainingjobs.dtj.dev"]

    annotations = crd["metadata"].pop("annotations")
    assert crd["metadata"].pop("labels")["helm.sh/chart"]
    assert crd == custom_resource_definition()
    assert annotations == {"example.com/by": "us"} | ({"helm.sh/resource-policy": "keep"} if keep else {})


def test_large_numbers_of_the_crd_are_written_as_integers() -> None:
    assert "e+" not in (CHART / "files/crd.yaml").read_text()
    text = template()
    assert "\n    maximum: 2.147" not in text
    assert "e+09" not in text

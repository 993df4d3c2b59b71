"""The plain manifests, their overlays as `kubectl kustomize` renders them, and every manifest of the repository."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.chart.foreign import validate_foreign
from tests.chart.generated import OVERLAYS, overlay_text
from tests.chart.helm import ROOT, objects
from tests.chart.validation import NEWEST, OLDEST, Manifest, check
from tests.patience import PATIENCE

MANIFESTS = ROOT / "manifests"
FILES = sorted(
    path
    for path in MANIFESTS.rglob("*.yaml")
    if path.name != "kustomization.yaml" and not path.name.endswith("values.yaml")
)


@cache
def kustomized(folder: Path) -> list[Manifest]:
    kubectl = shutil.which("kubectl")
    assert kubectl, "kubectl is missing: the tests need one on the PATH"
    done = subprocess.run(
        [kubectl, "kustomize", folder], capture_output=True, text=True, timeout=30 * PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def by_name(made: list[Manifest]) -> dict[tuple[str, str, str | None], Manifest]:
    found = {(m["kind"], m["metadata"]["name"], m["metadata"].get("namespace")): m for m in made}
    assert len(found) == len(made)
    return found


def test_there_are_overlays_for_what_people_ask_first() -> None:
    assert [overlay.name for overlay in OVERLAYS] == ["eks", "monitoring", "one-namespace"]


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_an_overlay_is_the_chart_with_its_values(overlay: Path) -> None:
    made = by_name(kustomized(overlay))
    crd = by_name(objects((MANIFESTS / "crd/distributedtrainingjobs.yaml").read_text()))
    namespace = by_name(objects((MANIFESTS / "operator/namespace.yaml").read_text()))

    assert made == by_name(objects(overlay_text(overlay))) | crd | namespace


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize(
    "folder", [MANIFESTS, *OVERLAYS], ids=lambda path: path.name if isinstance(path, Path) else ""
)
def test_what_kustomize_makes_is_taken(folder: Path, version: str) -> None:
    made = kustomized(folder)
    assert len(made) > 8
    for each in made:
        check(each, version)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(MANIFESTS)))
def test_every_manifest_is_taken(file: Path, version: str) -> None:
    made = objects(file.read_text())
    assert made
    for each in made:
        check(each, version)


def test_one_namespace_leaves_out_no_other_cluster_role_than_those_known() -> None:
    """Its patch deletes by kind: one more would go in silence."""
    plain = {
        made["metadata"]["name"] for made in kustomized(MANIFESTS) if made["kind"].startswith("ClusterRole")
    }
    assert plain == {"dtj-operator", "dtj-user", "dtj-viewer"}


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("ServiceMonitor", {"endpoints": [{"prot": "metrics"}], "selector": {"matchLabels": {"a": "b"}}}),
        ("NodePool", {"template": {"spec": {"nodeClassRef": {"name": "gpu"}, "requirements": []}}}),
        ("ClusterConfig", None),
    ],
)
def test_the_check_of_other_kinds_refuses_what_their_makers_refuse(kind: str, wrong: Any) -> None:
    right = next(made for path in FILES for made in objects(path.read_text()) if made["kind"] == kind)
    validate_foreign(right)
    with pytest.raises(jsonschema.ValidationError):
        validate_foreign(right | {"spec": wrong})


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(MANIFESTS)))
def test_no_manifest_names_a_moving_image(file: Path) -> None:
    for image in images(objects(file.read_text())):
        assert "@sha256:" in image or (":" in image and not image.endswith(":latest")), image


def images(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["image"]] if isinstance(node.get("image"), str) else []
        return own + [image for value in node.values() for image in images(value)]
    return [image for value in node for image in images(value)] if isinstance(node, list) else []

"""One registry for all images of the chart and the manifests: in objects, arguments and the job of `helm test`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.generated import CASES, OVERLAYS
from tests.chart.helm import ROOT, template
from tests.chart.test_docs import VALUES
from tests.chart.test_kustomize import kustomized

REGISTRY = "registry.example.com/dtj"
IMAGE = re.compile(r"([\w.:/-]*/)?(dtj-[a-z-]+):[\w.]+")
OF_THE_CHART = {"dtj-operator", "dtj-tensorboard", "dtj-trainer-horovod"}
DOCUMENTED = {
    **{f"page {n}": yaml.safe_load(block) for n, block in enumerate(VALUES)},
    **{path.name: yaml.safe_load((path / "values.yaml").read_text()) or {} for path in (*CASES, *OVERLAYS)},
}


def registries(text: str) -> dict[str, set[str]]:
    """The registries of each image in a text."""
    found: dict[str, set[str]] = {}
    for registry, name in IMAGE.findall(text):
        found.setdefault(name, set()).add(registry.rstrip("/"))
    return found


@pytest.mark.parametrize("values", DOCUMENTED.values(), ids=DOCUMENTED.keys())
def test_documented_values_name_one_registry(values: dict[str, Any]) -> None:
    own = (values.get("image") or {}).get("registry")
    assert "repository" not in (values.get("image") or {})
    tested = (values.get("test") or {}).get("enabled", True)
    made = template(values if own else values | {"global": {"imageRegistry": REGISTRY}})

    names = OF_THE_CHART if tested else OF_THE_CHART - {"dtj-trainer-horovod"}
    assert registries(made) == {name: {own or REGISTRY} for name in names}


@pytest.mark.parametrize("folder", [ROOT / "manifests", *OVERLAYS], ids=lambda path: path.name)
def test_the_component_gives_plain_manifests_a_registry(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "manifests", tmp_path / "manifests")
    component = tmp_path / "manifests/components/registry/kustomization.yaml"
    (placeholder,) = set(re.findall(r"[\w.-]+/dtj(?=/dtj-)", component.read_text()))
    component.write_text(component.read_text().replace(placeholder, REGISTRY))
    page = (ROOT / "docs/install.md").read_text()
    (documented,) = re.findall(r"```yaml\n# kustomization.yaml\n(.*?)```", page, re.DOTALL)
    copy = tmp_path / folder.relative_to(ROOT)
    if "components" not in yaml.safe_load((copy / "kustomization.yaml").read_text()):
        resources = f"[{copy.relative_to(tmp_path)}]"
        copy = tmp_path
        (copy / "kustomization.yaml").write_text(documented.replace("[manifests]", resources))

    assert registries(yaml.safe_dump_all(kustomized(copy))) == {
        "dtj-operator": {REGISTRY},
        "dtj-tensorboard": {REGISTRY},
    }


def test_the_global_registry_wins_and_a_repository_with_a_registry_keeps_it() -> None:
    made = registries(
        template(
            {
                "global": {"imageRegistry": "global.example.com:5000/"},
                "image": {"registry": REGISTRY},
                "tensorboard": {"image": {"repository": "ghcr.io/acme/dtj-tensorboard"}},
                "test": {"image": {"repository": "localhost/dtj-trainer-horovod"}},
            }
        )
    )

    assert made == {
        "dtj-operator": {"global.example.com:5000"},
        "dtj-tensorboard": {"ghcr.io/acme"},
        "dtj-trainer-horovod": {"localhost"},
    }


def test_without_a_registry_the_images_are_those_of_the_nodes() -> None:
    assert registries(template({})) == {name: {""} for name in OF_THE_CHART}

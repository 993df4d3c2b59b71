"""`make chart`: files that are generated from the chart, and files of the chart that are generated.

The chart's templates and values.yaml are the source of manifests/operator, manifests/rbac, of what manifests/overlays
add to them, the README's table, the schema's descriptions and the goldens. The source of the chart's CRD is the
models, as for manifests/crd.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.chart.helm import CHART, RELEASE, ROOT, template
from tests.chart.values import described, table

GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(path.parent for path in GOLDEN.glob("*/values.yaml"))
PLAIN = ("operator", "rbac")
"""Folders of templates that are folders of manifests/, too."""
OVERLAYS = sorted(path.parent for path in (ROOT / "manifests/overlays").glob("*/values.yaml"))
"""Each says in values.yaml with which values the chart makes the same."""
BY_HAND = {"kustomization.yaml", "namespace.yaml", "values.yaml"}
_TABLE = re.compile(r"(?<=<!-- values -->\n).*?(?=<!-- end of values -->)", re.DOTALL)
_BETWEEN = re.compile(r"^---\n", re.MULTILINE)
_HELMS = re.compile(r"^ *(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*\n", re.MULTILINE)
CRD = ROOT / "manifests/crd/distributedtrainingjobs.yaml"


def generated() -> dict[Path, str]:
    """Every file and what it has to be."""
    schema = CHART / "values.schema.json"
    readme = CHART / "README.md"
    files = {
        CHART / "files/crd.yaml": CRD.read_text(),
        schema: json.dumps(described(json.loads(schema.read_text())), indent=2, ensure_ascii=False) + "\n",
        readme: _TABLE.sub(lambda _: f"\n{table()}\n", readme.read_text()),
    }
    files |= _manifests()
    for overlay in OVERLAYS:
        files |= _added(overlay)
    files |= {case / "expected.yaml": golden(case) for case in CASES}
    return files


def golden(case: Path) -> str:
    """What the chart makes of a case's values, without the texts of files that have tests of their own."""
    documents = template(yaml.safe_load((case / "values.yaml").read_text()) or {}).split("\n---\n")
    return "\n---\n".join(_shortened(document).strip("\n") for document in documents) + "\n"


def _shortened(document: str) -> str:
    if "kind: CustomResourceDefinition" in document:
        return document[: document.index("\nspec:")] + "\nspec: {}  # files/crd.yaml"
    if "\n  dtj-operator.json: |" in document:
        return document[: document.index("\n  dtj-operator.json: |")] + " {}  # files/dashboard.json"
    return document


def overlay_text(overlay: Path) -> str:
    """The chart with the values of an overlay, without the CRD and what only Helm needs."""
    values = yaml.safe_load((overlay / "values.yaml").read_text())
    return without_helm(template(values | {"crds": {"install": False}}, "--skip-tests"))


def without_helm(text: str) -> str:
    """Without the labels that say that Helm made it."""
    return _HELMS.sub("", text)


def _manifests() -> dict[Path, str]:
    """The plain manifests: the chart with its defaults, without what only Helm needs."""
    files: dict[Path, str] = {}
    for source, body in _documents(without_helm(template({"crds": {"install": False}}, "--skip-tests"))):
        path = ROOT / "manifests" / source
        assert path.parent.name in PLAIN, f"the defaults make {source}, which has no place in manifests/"
        _append(files, path, body)
    return files


def _added(overlay: Path) -> dict[Path, str]:
    """The objects of an overlay that the plain manifests have not; its kustomization.yaml says what else differs."""
    plain = {_identity(body) for _, text in _manifests().items() for body in re.split(_BETWEEN, text)}
    files: dict[Path, str] = {}
    for source, body in _documents(overlay_text(overlay)):
        if _identity(body) not in plain:
            _append(files, overlay / Path(source).name, body)
    return files


def _documents(text: str) -> Iterator[tuple[str, str]]:
    """Each object of a rendered chart, with the template that it comes from."""
    for document in re.split(_BETWEEN, text):
        if source := re.match(rf"# Source: {RELEASE}/templates/(.+)\n", document):
            yield source[1], document[source.end() :].strip("\n") + "\n"


def _append(files: dict[Path, str], path: Path, body: str) -> None:
    files[path] = f"{files[path]}---\n{body}" if path in files else f"# Made by `make chart`.\n{body}"


def _identity(document: str) -> tuple[str, str, str | None]:
    made = yaml.safe_load(document)
    return made["kind"], made["metadata"]["name"], made["metadata"].get("namespace")


def main() -> None:
    """Write them."""
    for path, text in generated().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for stale in stale_manifests():
        stale.unlink()


def stale_manifests() -> set[Path]:
    """Files that the chart does not make any more."""
    folders = [*(ROOT / "manifests" / folder for folder in PLAIN), *OVERLAYS]
    there = {path for folder in folders for path in folder.glob("*.yaml") if path.name not in BY_HAND}
    return there - generated().keys()


if __name__ == "__main__":
    main()

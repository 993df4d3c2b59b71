"""The documentation: blocks, links and names in the pages match the repository.

* examples, fields, variables, metrics and make targets of the pages
* the length of pages
* links and anchors
* tests and decisions that pages name
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.api.identity import KIND
from dtj.api.job import read_job
from dtj.api.reasons import FAILURE_CLASSES, Reason
from dtj.api.validation import faults
from dtj_trainer import contract
from tests.cluster.docs_blocks import outputs, with_files
from tests.field_reference import PAGE as REFERENCE
from tests.field_reference import reference
from tests.metrics_table import with_table

ROOT = Path(__file__).parents[3]
PAGES = [
    *(
        ROOT / name
        for name in (
            "README.md",
            "CONTRIBUTING.md",
            "RELEASE.md",
            "SECURITY.md",
            "charts/dtj-operator/README.md",
        )
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
]


OTHERS = r"<!-- (?:values|rights|kustomization).*?-->\n *"
"""What stands above a block that is not of a job."""


def yaml_blocks() -> list[tuple[str, Any]]:
    """Jobs and parts of them; values, rights and objects of other kinds are tested with the chart."""
    blocks = [
        (f"{page.name}:{number}", yaml.safe_load(block))
        for page in PAGES
        for number, (other, block) in enumerate(
            re.findall(
                rf"({OTHERS})?```yaml\n(.*?)```",
                page.read_text(),
                re.DOTALL,
            )
        )
        if not other
    ]
    return [(where, block) for where, block in blocks if block.get("kind", KIND) == KIND]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_shown_are_the_files(page: Path) -> None:
    assert with_files(page.read_text()) == page.read_text(), "make docs copies them"


@pytest.mark.parametrize(
    ("where", "block"), yaml_blocks(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_job_shown_is_valid(where: str, block: dict[str, Any]) -> None:
    if "kind" not in block:
        whole = yaml.safe_load((ROOT / "manifests/examples/own-script/job.yaml").read_text())
        whole["spec"] |= block
        block = whole
    assert faults(read_job(block)) == [], where


def test_no_job_asks_for_gpus_with_an_image_for_cpus() -> None:
    examples = sorted((ROOT / "manifests/examples").rglob("*.yaml"))
    jobs = [*yaml_blocks(), *((each.name, yaml.safe_load(each.read_text())) for each in examples)]
    asked = {}
    for where, block in jobs:
        spec = block.get("spec", block)
        gpus = [role for role in spec.get("replicaSpecs", {}).values() if role and role.get("gpus")]
        if gpus and re.search(r"\bdtj-(trainer|horovod|tensorflow)", spec.get("image", "")):
            asked[where] = spec["image"]
    assert asked
    assert {where: image for where, image in asked.items() if not image.endswith("-cuda")} == {}


def test_every_field_of_the_resource_is_described() -> None:
    assert reference() == REFERENCE.read_text(), "make crd writes the page"


def test_every_variable_of_the_contract_is_described() -> None:
    text = (ROOT / "docs/contract.md").read_text()
    internal = {
        contract.ENV_ROOT,
        contract.ENV_CONFIG_DIR,
        contract.ENV_TERMINATION_LOG,
        contract.ENV_SSH_PORT,
    }
    names = {value for name, value in vars(contract).items() if name.startswith("ENV_")} - internal
    assert {name for name in names if f"`{name}`" not in text} == set()


def first_column(table: str) -> set[str]:
    """The names in the first cell of each row."""
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_the_table_of_failure_classes_has_all_of_them() -> None:
    _, _, after = (ROOT / "docs/troubleshooting.md").read_text().partition("\n## Failure classes\n")
    assert first_column(after.partition("\n## ")[0]) == {*FAILURE_CLASSES}


def test_every_reason_that_the_docs_name_exists() -> None:
    named = {
        name
        for page in PAGES
        for names in re.findall(
            r"(?<!pods with )\breasons? ((?:`[A-Z]\w+`(?:, | and | or )?)+)", page.read_text()
        )
        for name in re.findall(r"\w+", names)
        if name not in ("and", "or")
    }
    _, _, after = (ROOT / "docs/troubleshooting.md").read_text().partition("| reason of `Running` |")
    named |= first_column(after.partition("\n\n")[0])
    assert len(named) > 20
    assert named - {*Reason} == set()


def test_every_output_is_filled_in() -> None:
    shown = outputs()
    assert len(shown) >= 5
    assert [command for command, output in shown.items() if not output.strip()] == [], "make docs fills them"


def test_every_metric_is_described() -> None:
    page = ROOT / "docs/monitoring.md"
    assert with_table(page.read_text()) == page.read_text(), "make chart writes the table"


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for target in re.findall(r"(?:`|\$ |\()make(?: --silent)? ([a-z-]+)", page.read_text()):
            assert target in targets, f"{page.name}: make {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_short(page: Path) -> None:
    longest = {ROOT / "README.md": 150}.get(page, 200)
    generated = page == REFERENCE or page.parent.name == "dtj-operator"
    assert generated or len(page.read_text().splitlines()) <= longest


def test_every_link_leads_to_a_file() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_anchor_is_a_heading() -> None:
    headings = {page.resolve(): _anchors(page.read_text()) for page in PAGES}
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
            file = (page.parent / target).resolve() if target else page.resolve()
            assert anchor in headings[file], f"{page.name}: {target}#{anchor}"


def _anchors(text: str) -> set[str]:
    """What GitHub makes of the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_test_that_a_page_for_maintainers_names_exists() -> None:
    pages = [ROOT / "docs/architecture.md", *sorted((ROOT / "docs/decisions").glob("*.md"))]
    named = [
        pair for page in pages for pair in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page.read_text())
    ]
    assert len(named) > 50
    for path, name in named:
        text = (ROOT / path).read_text()
        assert not name or re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), f"{path}::{name}"


def test_a_decision_is_a_page_of_the_index_with_four_parts() -> None:
    index = (ROOT / "docs/decisions/README.md").read_text()
    for page in sorted((ROOT / "docs/decisions").glob("*.md")):
        if page.name == "README.md":
            continue
        text = page.read_text()
        assert f"({page.name})" in index
        assert re.findall(r"^## (.*)", text, re.MULTILINE) == [
            "Context", "Decision", "Consequences", "What holds it",
        ], page.name  # fmt: skip
        assert len(text.splitlines()) <= 60

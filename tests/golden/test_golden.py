"""The objects of example jobs equal the committed objects in every field.

After a change that is meant: `pytest tests/golden --update-golden`, then read the difference.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from dtj.api.crd import custom_resource_definition
from dtj.api.job import read_job
from dtj.api.validation import faults
from dtj.plan.job import plan_job
from tests.golden import difference
from tests.unit.support.mpijob_crd import MPIJOB_SCHEMA
from tests.unit.support.pod_security import restricted_faults
from tests.unit.support.structural import schema_faults, with_defaults

CASES = sorted(path.parent for path in Path(__file__).parent.glob("*/job.yaml"))
SCHEMA = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


class Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks; no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


Dumper.add_representer(str, _text)


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_plan_is_the_committed_one(case: Path, request: pytest.FixtureRequest) -> None:
    manifest = yaml.safe_load((case / "job.yaml").read_text())
    assert list(schema_faults(SCHEMA, manifest)) == []
    job = read_job(with_defaults(SCHEMA, manifest))
    assert faults(job) == []
    plan = plan_job(job)
    objects = json.loads(json.dumps(plan.objects))
    text = yaml.dump_all(objects, Dumper=Dumper, width=110)

    if request.config.getoption("--update-golden"):
        difference.write(case, text)

    assert text == difference.whole_text(case), (
        "the plan has changed: `pytest tests/golden --update-golden`, and read the difference"
    )
    templates = [there["spec"]["template"] for there in plan.objects if there["kind"] == "Deployment"]
    for pod in [*plan.pods, *templates]:
        assert list(restricted_faults(pod)) == []
    if plan.mpijob:
        assert list(schema_faults(MPIJOB_SCHEMA, plan.mpijob)) == []


def test_every_folder_is_a_case() -> None:
    folders = {p for p in Path(__file__).parent.iterdir() if p.is_dir() and p.name != "__pycache__"}

    assert folders == set(CASES)
    assert {case.name for case in CASES if (case / "expected.yaml").exists()} == set(difference.WHOLE)
    assert {case.name for case in CASES if not (case / "expected.diff").exists()} == set(difference.WHOLE)


def test_a_difference_gives_the_whole_objects_back(tmp_path: Path) -> None:
    case = tmp_path / "case"
    case.mkdir()
    job = Path(__file__).parent / "torch-ranks/job.yaml"
    (case / "job.yaml").write_text(job.read_text())
    lines = difference.whole_text(job.parent).splitlines(True)
    assert len(lines) > 100
    for text in ("".join(lines), "".join(lines[:-7]), "".join([*lines[:9], "  more: 1\n", *lines[11:]])):
        difference.write(case, text)
        assert difference.whole_text(case) == text

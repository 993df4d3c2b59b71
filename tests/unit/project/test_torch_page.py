"""The tables of docs/torch-distributed.md say what the operator does.

* commands, and who starts the ranks
* options that are refused
* variables
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from dtj.api.job import Manifest, read_job
from dtj.api.torch_distributed import ranks_start
from dtj.api.validation import faults
from dtj.plan.job import plan_job
from dtj.plan.pods import trainer_container
from tests.unit.support.jobs import job, manifest

PAGE = (Path(__file__).parents[3] / "docs/torch-distributed.md").read_text()


def table(heading: str) -> list[list[str]]:
    """The rows of the first table below a heading."""
    _, _, part = PAGE.partition(f"\n## {heading}\n")
    lines = re.findall(r"(?:^\|.*\n)+", part, re.MULTILINE)[0].splitlines()
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines[2:]]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def torch_job(**spec: object) -> Manifest:
    return manifest(strategy="TorchDistributed", **spec)


@pytest.mark.parametrize(("command", "who"), [row[:2] for row in table("Who starts the ranks")])
def test_the_ranks_of_each_command_are_started_as_the_page_says(command: str, who: str) -> None:
    started_by = {"dtj": "Ranks", "the command": "Command"}[who.partition(",")[0]]

    for text in quoted(command):
        words = yaml.safe_load(text)
        assert ranks_start(read_job(torch_job(command=words)).spec).by == started_by, text


@pytest.mark.parametrize("row", table("Options that are refused"), ids=lambda row: row[0])
def test_the_options_of_the_table_are_refused_by_name(row: list[str]) -> None:
    for option in quoted(row[0]):
        (fault,) = faults(read_job(torch_job(command=["torchrun", option, "train.py"])))
        assert option in fault.message
    for right in [text for text in quoted(row[1]) if text.startswith("--")]:
        assert faults(read_job(torch_job(command=["torchrun", right, "train.py"]))) == []


@pytest.mark.parametrize(("column", "command"), [(1, "python"), (2, "torchrun")])
def test_the_variables_of_the_table_are_those_of_the_pods(column: int, command: str) -> None:
    spec = {"command": [command, "train.py"], "torch": {"procsPerWorker": 2}}

    def variables(**spec: object) -> set[str]:
        pods = plan_job(job(**spec)).pods
        return {each["name"] for pod in pods for each in trainer_container(pod)["env"]}

    of_any_strategy = {name for name in variables() if not name.startswith(("OMPI_", "PRTE_"))}
    own = variables(strategy="TorchDistributed", **spec) - of_any_strategy
    of_table = {
        name
        for row in table("Variables")
        if row[column] not in ("", "from torchrun")
        for name in quoted(row[0])
    }
    assert {name for name in own if not name.startswith("DTJ_")} == of_table

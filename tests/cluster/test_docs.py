"""The pages of docs/ as a person follows them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.cluster.jobs import ROOT, Namespace, until
from tests.cluster.write_docs import BLOCK, PAGE, write

pytestmark = pytest.mark.cluster


def test_the_commands_of_using_md_print_what_the_page_shows(namespace: Namespace, tmp_path: Path) -> None:
    page = tmp_path / "using.md"
    shutil.copy(PAGE, page)
    write(page, namespace)
    committed = {command: output for _, _, command, output, _ in BLOCK.findall(PAGE.read_text())}
    for _, _, command, output, _ in BLOCK.findall(page.read_text()):
        if command.startswith("kubectl explain"):
            assert output == committed[command], "make docs"
        else:
            # Times, names and figures differ; what is said of what does not.
            assert _labels(output) >= _labels(committed[command]), command


def test_the_job_of_the_readme_waits_for_its_gpus_and_says_so(namespace: Namespace) -> None:
    (block,) = re.findall(r"```yaml\n(apiVersion.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    job = namespace.apply(yaml.safe_load(block))
    message = until(
        "what it waits for",
        lambda: (c := job.condition("Running")).get("reason") == "Unschedulable" and c["message"],
        60,
    )
    assert "nvidia.com/gpu" in message


def _labels(output: str) -> set[str]:
    """The headings of a table, or the words before the colons of a description."""
    first = output.splitlines()[0]
    if first == first.upper():
        return set(first.split())
    return set(re.findall(r"^\s*([A-Z][A-Za-z ]+):", output, re.MULTILINE))

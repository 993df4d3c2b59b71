"""The pages of docs/, executed as a reader follows them."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.cluster.docs_blocks import outputs
from tests.cluster.jobs import ROOT, Namespace, until
from tests.cluster.trained import Trained

pytestmark = pytest.mark.cluster


def test_the_commands_of_the_pages_print_what_the_pages_show(trained: Trained) -> None:
    committed = outputs()
    assert trained.printed.keys() == committed.keys()
    for command, output in trained.printed.items():
        if command.startswith("kubectl explain"):
            assert output == committed[command], "make docs"
        else:
            # Times, names and figures differ; what is said of what does not.
            assert _labels(output) >= _labels(committed[command]), command


def test_the_job_of_the_readme_waits_for_gpus_and_says_so(namespace: Namespace) -> None:
    (block,) = re.findall(r"```yaml\n(apiVersion.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    manifest = yaml.safe_load(block)
    job = namespace.apply(manifest)
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

"""`make docs`: fill docs/using.md with what kubectl prints, on the cluster that KUBECONFIG names.

Copies the files that other pages show into them, too.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.cluster.jobs import ROOT, Job, Namespace, example, kubectl, until

PAGE = ROOT / "docs/using.md"
NAME = "fashion-mnist"
BLOCK = re.compile(
    r"(<!-- (while running|at the end) -->\n```console\n\$ (kubectl [^\n]+)\n)(.*?)(```\n)", re.DOTALL
)

FILE = re.compile(r"(<!-- file: (\S+) -->\n```\w+\n)(.*?)(```\n)", re.DOTALL)


def with_files(text: str) -> str:
    """The page with the files that it names, as they are in the repository."""
    return FILE.sub(lambda m: m[1] + (ROOT / m[2]).read_text() + m[4], text)


def commands(text: str, moment: str) -> list[str]:
    """The commands of a page whose output belongs to that moment."""
    return [command for _, when, command, _, _ in BLOCK.findall(text) if when == moment]


def filled(text: str, outputs: dict[str, str]) -> str:
    """The page with the outputs below their commands."""
    return BLOCK.sub(lambda m: m[1] + outputs.get(m[3], m[4]) + m[5], text)


def run(command: str, namespace: Namespace) -> str:
    """What a command of the page prints."""
    lines = namespace.kubectl(*command.split()[1:]).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def write(page: Path, namespace: Namespace) -> None:
    """Run the example in the namespace and fill the page."""
    text = page.read_text()
    job: Job = namespace.apply(example(NAME))
    until("half of the training", lambda: (job.status.get("progress") or {}).get("percent", 0) >= 30, 180)
    outputs = {command: run(command, namespace) for command in commands(text, "while running")}
    job.wait(180)
    outputs |= {command: run(command, namespace) for command in commands(text, "at the end")}
    page.write_text(filled(text, outputs))


def main() -> int:
    """Make a namespace as a person would call it, and delete it afterwards."""
    for page in (ROOT / "docs").glob("*.md"):
        page.write_text(with_files(page.read_text()))
    namespace = Namespace("ml")
    if "ml" in kubectl("get", "namespaces", "--output=jsonpath={.items[*].metadata.name}").split():
        sys.exit("the cluster has a namespace ml already: delete it first")
    namespace.make()
    try:
        write(PAGE, namespace)
    finally:
        namespace.delete()
    return 0


if __name__ == "__main__":
    sys.exit(main())

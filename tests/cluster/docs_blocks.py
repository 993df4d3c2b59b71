"""The generated blocks of docs/: outputs of commands in using.md and status.md, and files shown in pages."""

from __future__ import annotations

import re

from tests.cluster.jobs import ROOT, Namespace

PAGES = (ROOT / "docs/using.md", ROOT / "docs/status.md")
"""Pages with commands whose outputs a cluster test compares."""
BLOCK = re.compile(
    r"(<!-- (while running|at the end) -->\n```console\n\$ (kubectl [^\n]+)\n)(.*?)(```\n)", re.DOTALL
)

FILE = re.compile(r"(<!-- file: (\S+) -->\n```\w+\n)(.*?)(```\n)", re.DOTALL)


def with_files(text: str) -> str:
    """The page with the files that it names, as they are in the repository."""
    return FILE.sub(lambda m: m[1] + (ROOT / m[2]).read_text() + m[4], text)


def outputs() -> dict[str, str]:
    """The output that the pages show of each command."""
    return {command: output for page in PAGES for _, _, command, output, _ in BLOCK.findall(page.read_text())}


def commands(moment: str) -> list[str]:
    """The commands of the pages whose output belongs to that moment."""
    blocks = [block for page in PAGES for block in BLOCK.findall(page.read_text())]
    return [command for _, when, command, _, _ in blocks if when == moment]


def filled(text: str, printed: dict[str, str]) -> str:
    """The page with the outputs below their commands."""
    return BLOCK.sub(lambda m: m[1] + printed.get(m[3], m[4]) + m[5], text)


def run(command: str, namespace: Namespace) -> str:
    """What a command of the page prints."""
    lines = namespace.kubectl(*command.split()[1:]).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)

"""The blocks of docs/ that are made: commands of docs/using.md with what they print, and files shown in pages."""

from __future__ import annotations

import re

from tests.cluster.jobs import ROOT, Namespace

PAGE = ROOT / "docs/using.md"
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

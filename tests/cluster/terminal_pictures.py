"""`make pictures`: pictures of commands in a terminal for docs/cli.md, on the cluster of KUBECONFIG.

A real terminal (tmux) runs each command while the example job trains; what it shows becomes docs/pictures/<name>.svg.
A real browser shows the job's TensorBoard, for docs/tensorboard.md.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from dtj_trainer import contract
from tests.cluster.browser import forwarded, page, read
from tests.cluster.jobs import ROOT, Job, Namespace, example, kubectl, until
from tests.cluster.local.packages import install_missing

PICTURES = ROOT / "docs/pictures"
DTJ = Path(sys.executable).with_name("dtj")
COLUMNS, LINES = 110, 34
NAME = "fashion-mnist"


class Terminal:
    """A terminal with one command in it."""

    def __init__(self, socket: Path) -> None:
        self._tmux = ["tmux", "-S", str(socket), "-f", "/dev/null"]

    def start(self, command: str) -> None:
        """Run a command in it; when it ends, what it printed stays."""
        size = ["-x", str(COLUMNS), "-y", str(LINES)]
        self._run("new-session", "-d", *size, "bash", "--norc", "-c", f"{command}; echo; sleep infinity")

    def text(self) -> str:
        """What it shows, as plain text."""
        return self._run("capture-pane", "-p")

    def picture(self, title: str) -> str:
        """What it shows, as SVG."""
        shown = self._run("capture-pane", "-e", "-p").rstrip("\n")
        console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
        console.print(Text.from_ansi(shown))
        picture = console.export_svg(title=title, unique_id=re.sub(r"\W+", "-", title))
        # Its fonts would be fetched from the network.
        return re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)

    def end(self) -> None:
        """Close it, and what runs in it."""
        self._run("kill-server")

    def _run(self, *words: str) -> str:
        path = f"{DTJ.parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        command = [*self._tmux, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


@contextmanager
def running(command: str) -> Iterator[Terminal]:
    """A terminal that runs the command, until it is not needed any more."""
    with tempfile.TemporaryDirectory(prefix="dtj-tmux-") as folder:
        terminal = Terminal(Path(folder) / "socket")
        terminal.start(command)
        try:
            yield terminal
        finally:
            terminal.end()


def shoot(name: str, command: str, wanted: str) -> None:
    """Take a picture of a command once it shows what is wanted (a regular expression)."""
    with running(command) as terminal:
        until(f"{wanted!r} of `{command}`", lambda: re.search(wanted, terminal.text()), 120)
        picture = terminal.picture(f"$ {command}")
    (PICTURES / f"{name}.svg").write_text("\n".join(line.rstrip() for line in picture.splitlines()) + "\n")


def shoot_all(namespace: Namespace) -> None:
    """Run the example and take the pictures of docs/cli.md."""
    job: Job = namespace.apply(example(NAME, tensorboard={"enabled": True}))
    place = f"{NAME} --namespace {shlex.quote(namespace.name)}"
    until("a third of the training", lambda: (job.status.get("progress") or {}).get("percent", 0) >= 30, 180)
    shoot("status-watch", f"dtj status {place} --watch", r"\d+(\.\d+)? ?%")
    shoot("logs", f"dtj logs {place} --tail 40", r"step \d+/\d+")
    job.wait(180)
    shoot("report", f"dtj report {place}", r"accuracy %\s.*\d")
    with forwarded(namespace, f"{NAME}-tensorboard", contract.TENSORBOARD_PORT) as url:
        until("its last event", lambda: '"test/accuracy"' in read(f"{url}/data/plugin/scalars/tags"), 60)
        page(f"{url}/?smoothing=0", PICTURES / "tensorboard.png")


def main() -> int:
    """Make a namespace as a person would call it, and delete it afterwards."""
    install_missing({"tmux": "tmux"})
    PICTURES.mkdir(exist_ok=True)
    namespace = Namespace("ml")
    if "ml" in kubectl("get", "namespaces", "--output=jsonpath={.items[*].metadata.name}").split():
        sys.exit("the cluster has a namespace ml already: delete it first")
    namespace.make()
    try:
        shoot_all(namespace)
    finally:
        namespace.delete()
    return 0


if __name__ == "__main__":
    sys.exit(main())

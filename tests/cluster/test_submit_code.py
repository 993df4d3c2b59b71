"""`dtj submit FOLDER`, without credentials for the bucket in the environment of the command."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dtj.api.identity import LABEL_CODE
from tests import stub_training
from tests.cluster.code import Submission, environment, give_defaults, submitted
from tests.cluster.jobs import ROOT, Job, Namespace, until
from tests.cluster.said import DTJ
from tests.wheels import wheel

pytestmark = pytest.mark.cluster
MARKS = {
    "Horovod": "import horovod.torch",
    "TorchDistributed": "import torch.distributed",
    "ParameterServer": "import tensorflow\n    tensorflow.distribute.ParameterServerStrategy()",
}
PROGRAM = """\
import os
import stub

def never_called():
    {mark}

print("the second module", stub.__name__, "and", open("data/words.txt").read(), "in", os.getcwd(), flush=True)
stub.main()
"""


@dataclass
class Folder:
    """The code of a strategy."""

    path: Path
    namespace: Namespace
    variables: dict[str, str] = field(default_factory=dict)
    """Of the command."""

    def bring_package(self) -> None:
        """Let the job bring a package, from a registry of this test."""
        registry = self.path.parent / "registry"
        wheel(registry, "tiny", "0.4")
        (self.path / "requirements.txt").write_text("tiny\ntorch\n")
        self.variables |= {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(registry),
            "PIP_CONFIG_FILE": os.devnull,
        }
        script = self.path / "train.py"
        told = "import tiny\nprint('tiny', tiny.version, 'in', tiny.__file__, flush=True)\nstub.main()"
        script.write_text(script.read_text().replace("stub.main()", told))

    def write(self, strategy: str, words: str) -> None:
        (self.path / "data").mkdir(parents=True, exist_ok=True)
        (self.path / "train.py").write_text(PROGRAM.format(mark=MARKS[strategy]))
        module = Path(stub_training.__file__).read_text()
        (self.path / "stub.py").write_text(module.replace('if __name__ == "__main__":', "def main():"))
        (self.path / "data/words.txt").write_text(words)

    def submit(self, name: str, *options: str, steps: int = 20) -> Submission:
        program = ("stub-training", f"--steps={steps}", "--checkpoint-steps=10")
        words = (self.path, *options, "--", *program)
        return submitted(self.namespace, name, *words, home=self.path.parent, **self.variables)


def test_a_folder_becomes_ranks_of_each_strategy(namespace: Namespace, tmp_path: Path) -> None:
    give_defaults(namespace)
    folders = {strategy: Folder(tmp_path / strategy.lower(), namespace) for strategy in MARKS}
    for strategy, folder in folders.items():
        folder.write(strategy, "old data")
    folders["TorchDistributed"].bring_package()
    lasting = folders["Horovod"].submit("mpi", "--env=OMPI_MCA_mpi_yield_when_idle=1", steps=100_000)
    ddp = folders["TorchDistributed"].submit("ddp")
    ps = folders["ParameterServer"].submit("ps", "--workers=1")

    def told(data: str) -> str:
        return f"the second module stub and {data} in /dtj/code"

    until("the job of Horovod to exist", lambda: _exists(lasting.job), 60)
    lasting.job.wait_for_step(10)
    folders["Horovod"].write("Horovod", "new data")
    namespace.kubectl("delete", "pod", "mpi-worker-1", "--force", "--grace-period=0")
    until("the second attempt", lambda: lasting.job.status.get("attempt") == 2, 120)
    for submission, sources in ((ddp, ("worker-0", "worker-1")), (ps, ("chief-0", "worker-0", "ps-0"))):
        printed = submission.ended()
        for source in sources:
            assert f"[{source}] {told('old data')}" in printed
            if submission is ddp:
                assert f"[{source}] tiny 0.4 in /dtj/packages/tiny.py" in printed
    lasting.job.hurry_to_the_end()
    printed = lasting.ended()
    for rank in (0, 1):
        for attempt in (1, 2):
            assert told("old data") in lasting.log(f"rank-{rank}", attempt)

    assert told("new data") in folders["Horovod"].submit("mpi-again").ended()
    owned = {each["metadata"]["labels"][LABEL_CODE] for each in namespace.list("configmaps", LABEL_CODE)}
    assert owned == {"mpi", "ddp", "ps", "mpi-again"}
    namespace.kubectl("delete", "dtj", "--all", "--wait", timeout=120)
    until("the ConfigMaps to go with their jobs", lambda: not namespace.list("configmaps", LABEL_CODE), 60)


def test_the_script_of_the_readme_prints_what_the_readme_shows(namespace: Namespace, tmp_path: Path) -> None:
    give_defaults(namespace)
    readme = (ROOT / "README.md").read_text()
    (found,) = re.findall(r"^\$ dtj (submit .*train\.py .*)\n((?:[^$`].*\n)+)", readme, re.MULTILINE)
    words = found[0].replace(" --gpus 1", "").split()
    printed = subprocess.run(
        [DTJ, *words, "-n", namespace.name], cwd=ROOT, env=environment(tmp_path), check=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ).stdout  # fmt: skip

    def lines(text: str) -> set[str]:
        text = re.sub(r"train-\w{5}\b", "train-NAME", text.replace(namespace.name, "ml"))
        return {*re.sub(r"\d+\.\d+", "N", text).splitlines()}

    assert lines(found[1]) - {"…"} <= lines(printed), printed


def _exists(job: Job) -> bool:
    return any(each["metadata"]["name"] == job.name for each in job.namespace.list("dtj"))

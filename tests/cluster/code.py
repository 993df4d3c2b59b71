"""Code of cluster tests: in ConfigMaps, and by `dtj submit` of a user without credentials for the bucket."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dtj.client import code_folder
from dtj_trainer import contract
from tests.cluster.jobs import Job, Manifest, Namespace
from tests.cluster.said import DTJ
from tests.patience import PATIENCE

DEFAULTS = """\
image = {{Horovod = "dtj-trainer-horovod:0.1.0", TorchDistributed = "dtj-trainer-horovod:0.1.0", \
ParameterServer = "dtj-trainer-tensorflow:0.1.0"}}
[artifacts]
uri = "s3://training/jobs"
endpoint = "{endpoint}"
secretName = "s3-credentials"
"""


@dataclass
class Submission:
    """A running `dtj submit`."""

    job: Job
    process: subprocess.Popen[str]

    def ended(self) -> str:
        """What it printed, once the job has succeeded."""
        out, err = self.process.communicate(timeout=300 * PATIENCE)
        assert self.process.returncode == 0, f"{out}\n{err}\n{self.job.story()}"
        return out

    def log(self, name: str, attempt: int = 1) -> str:
        """What a rank or replica printed in an attempt."""
        return self.job.artifacts().read(f"logs/attempt-{attempt}/{name}.log").decode()


def submitted(
    namespace: Namespace, name: str, *words: str | Path, home: Path, **variables: str
) -> Submission:
    """Start `dtj submit` with these words, and `--name` before those of the program.

    home: has no file of defaults. variables: of the command.
    """
    cut = words.index("--") if "--" in words else len(words)
    command = [DTJ, "submit", *words[:cut], "-n", namespace.name, "--name", name, *words[cut:]]
    process = subprocess.Popen(
        command, env=environment(home) | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    return Submission(Job(namespace, name), process)


def environment(home: Path) -> dict[str, str]:
    """Variables of a command: no credentials for the bucket, no file of defaults."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    return {**own, "XDG_CONFIG_HOME": str(home)}


def give_defaults(namespace: Namespace) -> None:
    """Make the ConfigMap of the namespace's defaults."""
    defaults = DEFAULTS.format(endpoint=os.environ["DTJ_TEST_S3_ENDPOINT"])
    namespace.kubectl("create", "configmap", "dtj-defaults", f"--from-literal=config.toml={defaults}")


def stored_code(namespace: Namespace, name: str, files: Mapping[str, str], folder: Path) -> Manifest:
    """Make a ConfigMap of these files; return the fields of `spec.code` that name it. folder: for the archive."""
    source, archive = folder / name, folder / contract.CODE_FILE
    for path, text in files.items():
        file = source / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    with archive.open("wb") as opened:
        packed = code_folder.pack(code_folder.select(source), opened)
    namespace.kubectl("create", "configmap", name, f"--from-file={archive}")
    return {"configMap": name, "digest": packed.digest}

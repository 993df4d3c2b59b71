"""Containers of a job on this machine: the commands and environment of the plan, with stand-ins for MPI programs.

The stand-in of mpirun reads its options, the hostfile and the slots in it as Open MPI does, and starts each rank
with no more than ssh leaves to it. Paths of the container's file system are below a folder.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from dtj.api.job import Job, Manifest
from dtj.api.pod_template import TRAINER_CONTAINER
from dtj.plan.job import plan_job
from tests.patience import PATIENCE
from tests.unit.support.pods import kubelet_environment

_BORROWED = ("sh", "bash", "id", "date", "sleep", "cat", "mkdir", "echo", "true", "env", "printf")
_FOLDERS = re.compile(r"(?<![\w./])/(?:etc/dtj|etc/mpi|opt|usr/bin|dtj)(?![\w.-])")
_REFERENCE = re.compile(r"\$\(([^)]+)\)")

MPIRUN = """#!{python}
import json, os, subprocess, sys
ROOT, NAME = {root!r}, {name!r}
VALUES = dict.fromkeys("np n N npernode x hostfile bind-to map-by wdir output-filename rank-by".split(), 1)
VALUES |= dict.fromkeys(["mca"], 2)
VALUES |= dict.fromkeys("allow-run-as-root oversubscribe tag-output".split(), 0)
words, given, exported, index = sys.argv[1:], {{}}, {{}}, 0
while words[index].startswith("-"):
    name = words[index].lstrip("-")
    values = words[index + 1 : index + 1 + VALUES[name]]
    index += 1 + len(values)
    if name == "x":
        variable, equals, content = values[0].partition("=")
        exported[variable] = content if equals else os.environ[variable]
    given.setdefault(name, values)
program = words[index:]
hostfile = given.get("hostfile", [os.environ.get("OMPI_MCA_orte_default_hostfile")])[0]
slots = {{}}
for line in open(hostfile):
    host, count = line.split()
    slots[host] = int(count.removeprefix("slots="))
each = given.get("npernode") or given.get("N")
count = given.get("np") or given.get("n")
if each:
    slots = dict.fromkeys(slots, int(each[0]))
hosts = [host for host in slots for _ in range(slots[host])]
size = int(count[0]) if count else len(hosts)
if size > len(hosts):
    sys.exit("There are not enough slots available in the system")
hosts = hosts[:size]
root_allowed = "allow-run-as-root" in given or all(
    os.environ.get(name) == "1" for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
)
call = {{"mpirun": NAME, "argv": words, "env": dict(os.environ), "rootAllowed": root_allowed}}
with open(ROOT + "/calls", "a") as file:
    file.write(json.dumps(call) + "\\n")
for rank, host in enumerate(hosts):
    pod = host.split(".")[0]
    of_rank = {{
        "PATH": ROOT + "/usr/bin",
        "DTJ_ROOT": ROOT + "/pods/" + pod + "/dtj",
        "DTJ_CONFIG_DIR": ROOT + "/etc/dtj",
        "POD": pod,
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(hosts.count(host)),
    }}
    code = subprocess.run(program, env=of_rank | exported).returncode
    if code:
        sys.exit(code)
"""
PROGRAM = """#!{python}
import json, os, sys
with open({root!r} + "/ranks", "a") as file:
    file.write(json.dumps({{"argv": [{name!r}, *sys.argv[1:]], "env": dict(os.environ)}}) + "\\n")
"""


@dataclass(frozen=True)
class Run:
    """The recorded calls of a job's launcher."""

    code: int
    errors: str
    calls: list[Manifest]
    """Each mpirun: path, arguments, environment, and whether it would run as root."""
    ranks: list[Manifest]
    """The arguments and environment of each rank."""

    def pods_of_ranks(self) -> list[str]:
        """Return the pod of each rank."""
        return [rank["env"]["POD"] for rank in self.ranks]


class Image:
    """The file system of all containers of a job."""

    def __init__(self, root: Path, job: Job) -> None:
        self._root, self._plan = root, plan_job(job)
        self._bin = root / "usr/bin"
        self._bin.mkdir(parents=True)
        for folder in ("etc/dtj", "opt", "pods"):
            (root / folder).mkdir(parents=True)
        (root / "etc/mpi").symlink_to(root / "etc/dtj")
        for name in _BORROWED:
            (self._bin / name).symlink_to(shutil.which(name) or name)
        for name, text in self._plan.config["data"].items():
            (root / "etc/dtj" / name).write_text(self._here(text))
        self._write(self._bin / "sshd", "#!/bin/sh\n")
        self._write(self._bin / "ssh", "#!/bin/sh\n")
        self._write(self._bin / "hostname", '#!/bin/sh\necho "$POD"\n')

    def has_mpirun(self, path: str = "/usr/bin/mpirun") -> None:
        """Install the stand-in of Open MPI's mpirun at a path of the container."""
        text = MPIRUN.format(python=sys.executable, root=str(self._root), name=path)
        self._write(Path(self._here(path)), text)

    def has_program(self, path: str) -> None:
        """Install a program that records its calls, on the PATH or at a path of the container."""
        file = Path(self._here(path)) if "/" in path else self._bin / path
        self._write(file, PROGRAM.format(python=sys.executable, root=str(self._root), name=path))

    def run(self) -> Run:
        """Start every worker, then the launcher."""
        *workers, launcher = self._plan.pods
        for pod in workers:
            (self._root / "pods" / pod["metadata"]["name"] / "dtj/run").mkdir(parents=True)
            done = self._start(pod)
            assert done.returncode == 0, done.stderr
        (self._root / "dtj/run").mkdir(parents=True)
        done = self._start(launcher)
        return Run(done.returncode, done.stderr, self._noted("calls"), self._noted("ranks"))

    def _start(self, pod: Manifest) -> subprocess.CompletedProcess[str]:
        name = pod["metadata"]["name"]
        container = next(c for c in pod["spec"]["containers"] if c["name"] == TRAINER_CONTAINER)
        env = {
            key: self._here(value) for key, value in kubelet_environment(container, self._plan.config).items()
        }
        words = [
            _REFERENCE.sub(lambda found: env.get(found[1], found[0]), self._here(word))
            for word in (*container["command"], *container.get("args", []))
        ]
        own = self._root / "pods" / name / "dtj" if "-worker-" in name else self._root / "dtj"
        return subprocess.run(
            [shutil.which(words[0], path=str(self._bin)) or words[0], *words[1:]],
            env={"PATH": str(self._bin), "DTJ_ROOT": str(own), "DTJ_CONFIG_DIR": f"{self._root}/etc/dtj"}
            | env,
            capture_output=True,
            text=True,
            check=False,
            timeout=30 * PATIENCE,
        )

    def _here(self, text: str) -> str:
        """The text with the container's paths below the folder."""
        return _FOLDERS.sub(lambda found: f"{self._root}{found[0]}", text)

    def _noted(self, name: str) -> list[Manifest]:
        file = self._root / name
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(self._back(line)) for line in lines]

    def _back(self, text: str) -> str:
        return text.replace(str(self._root) + "/", "/")

    def _write(self, file: Path, text: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)

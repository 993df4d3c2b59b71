"""`python -m tests.bench.code`: what a job pays for code and packages that it brings, and what hostile archives cost.

Code is compared with the same program in the command of the job, in turn: by `dtj run` on this machine, and with
`--cluster` by `dtj submit`, from the start of the command to the success of the job. The stages are measured by
themselves. The package is one of a registry on this machine.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import yaml

import dtj
from dtj.client import packages
from dtj.client.code_folder import pack, select
from dtj.client.git_state import git_state
from dtj.client.image_python import python_of
from dtj_trainer.contract.code_archive import MOST_ENTRIES, unpack
from dtj_trainer.launch.code import bring_packages
from dtj_trainer.launch.settings import read_settings
from tests.bench.figures import table
from tests.bench.machine import machine
from tests.bench.targets import Target, verdicts
from tests.cluster import demo
from tests.cluster.jobs import Job, Namespace
from tests.wheels import wheel

ROUNDS = 5
_MIB = 1024**2
_DTJ = Path(sys.executable).with_name("dtj")
_IMAGE = f"dtj-trainer-horovod:{dtj.__version__}"
_PROGRAM = """\
import words

def never_called():
    import torch.distributed

print(words.TOLD)
"""
CODE, AGAIN, IMAGE = "code", "code with one changed line", "in the command"
PACKAGES = "code with a package"
ADDS = "code adds, s"
CHANGED = "code with one changed line, of the first"
SPREAD = 1.1
"""Equal jobs differ as much."""
NEEDS = "requirements.txt"
PACKING, UNPACKING = "peak memory of packing, MiB", "peak memory of unpacking, MiB"
TARGETS = (
    *(Target(f"code/added by {how}/1.5s", f"{how}, {ADDS}", 1.5) for how in ("dtj run", "dtj submit")),
    *(
        Target(f"code/changed line/{how}", f"{how}, {CHANGED}", SPREAD, of_a_ratio=True)
        for how in ("dtj run", "dtj submit")
    ),
    Target("code/packing/128MiB", PACKING, 128.0),
    Target("code/unpacking/128MiB", UNPACKING, 128.0),
)
_MEASURED = """
import pathlib, re, sys, time
from dtj_trainer.contract.code_archive import CodeError, digest_of, unpack
top, work, said = pathlib.Path(sys.argv[1]), sys.argv[2], ""
began = time.monotonic()
if work == "pack":
    from dtj.client.code_folder import pack, select
    with open(top / "archive", "wb") as file:
        pack(select(top / "in"), file)
else:
    try:
        unpack(top / "archive", digest_of(top / "archive"), top / "out")
    except CodeError as error:
        said = str(error)
seconds = time.monotonic() - began
# ru_maxrss would be at least that of the process that started this one.
peak = re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]
print(int(peak) / 1024, seconds, said, sep="\\t")
"""


def measured(top: Path, work: str) -> tuple[float, float, str]:
    """Peak memory of a process in MiB, the seconds of its work, and what it refused."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, top, work], capture_output=True, text=True, check=True
    )
    memory, seconds, said = done.stdout.rstrip("\n").split("\t")
    return float(memory), float(seconds), said


def stages(folder: Path, top: Path) -> dict[str, float]:
    """The seconds of each stage of code, as the median of several rounds."""
    archive = top / "stages.tar.gz"
    digest = ""
    installed: list[str] = []
    chosen = top / "chosen"
    requirements = top / NEEDS
    requirements.write_text("tiny\ntorch\n")
    python = python_of(_IMAGE)

    def packed() -> None:
        nonlocal digest
        with archive.open("wb") as file:
            digest = pack(select(folder), file).digest

    def brought() -> None:
        nonlocal digest
        shutil.rmtree(chosen, ignore_errors=True)
        chosen.mkdir()
        wheels = packages.choose(requirements, python, chosen)
        with archive.open("wb") as file:
            digest = packages.pack(wheels, file).digest

    def install() -> None:
        installed.append(str(top / f"pod-{len(installed)}"))
        variables = {"DTJ_ROOT": installed[-1], "DTJ_POD": '{"role": "worker", "index": 0}'}
        variables |= {"DTJ_PACKAGES_ARCHIVE": str(archive), "DTJ_PACKAGES_DIGEST": digest}
        bring_packages(read_settings(variables))

    works: dict[str, Callable[[], object]] = {
        "packing, s": packed,
        "asking Git, s": lambda: git_state(folder),
        "unpacking, s": lambda: unpack(archive, digest, top / "unpacked"),
        "packages, choosing and packing, s": brought,
        "packages, installing, s": install,
    }
    return {name: statistics.median(_seconds(work) for _ in range(ROUNDS)) for name, work in works.items()}


def registry(top: Path) -> None:
    """Let pip take packages from a folder, here and in the processes that this one starts."""
    wheel(top / "registry", "tiny", "0.4")
    given = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(top / "registry"), "PIP_CONFIG_FILE": os.devnull}
    os.environ.update(given)


def runs(folder: Path, top: Path) -> dict[str, float]:
    """Seconds of whole `dtj run`s."""
    environment = {**os.environ, "DTJ_HOME": str(top / "home"), "XDG_CONFIG_HOME": str(top / "config")}

    def run(*words: str | Path) -> str:
        command = [_DTJ, "run", *words, "--quiet"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{done.stdout}\n{done.stderr}")
        return done.stdout

    spec = json.loads(run(folder, "--workers=1", "--name=first", "-o", "json"))["spec"]
    del spec["code"]
    spec["command"] = ["python", str(folder / "train.py")]
    job = {"apiVersion": "dtj.dev/v1alpha1", "kind": "DistributedTrainingJob", "spec": spec}
    file = top / "job.yaml"
    file.write_text(yaml.safe_dump({**job, "metadata": {"name": "image"}}))
    used: dict[str, list[float]] = {IMAGE: [], CODE: [], PACKAGES: []}

    def seconds(kind: str, *words: str | Path) -> float:
        before = _processor_seconds()
        took = _seconds(lambda: run(*words))
        used[kind].append(_processor_seconds() - before)
        return took

    figures = in_turn(
        folder,
        "dtj run",
        lambda: seconds(IMAGE, file),
        lambda kind: seconds(kind, folder, "--workers=1", "--name=code"),
    )
    # Other programs of the machine change these little.
    added = statistics.median(used[CODE]) - statistics.median(used[IMAGE])
    return {**figures, "dtj run, code adds, processor s": added}


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def in_turn(
    folder: Path, how: str, in_image: Callable[[], float], with_code: Callable[[str], float]
) -> dict[str, float]:
    """The medians of the seconds of a job, and of what code adds in a round, and a package to the code."""
    seconds: dict[str, list[float]] = {IMAGE: [], CODE: [], AGAIN: [], PACKAGES: []}
    for number in range(ROUNDS):
        seconds[IMAGE].append(in_image())
        for kind in (CODE, AGAIN, PACKAGES):
            (folder / "words.py").write_text(f"TOLD = '{kind} {number}'\n")
            if kind == PACKAGES:
                (folder / NEEDS).write_text("tiny\n")
            seconds[kind].append(with_code(PACKAGES if kind == PACKAGES else CODE))
        (folder / NEEDS).unlink()
        told = ", ".join(f"{kind} {times[-1]:.1f} s" for kind, times in seconds.items())
        print(f"{how}, round {number + 1}: {told}", file=sys.stderr, flush=True)
    medians = {f"{how}, {kind}, s": statistics.median(times) for kind, times in seconds.items()}

    def added(kind: str, to: str) -> float:
        return statistics.median(more - less for more, less in zip(seconds[kind], seconds[to], strict=True))

    ratios = (again / first for again, first in zip(seconds[AGAIN], seconds[CODE], strict=True))
    return medians | {
        f"{how}, {ADDS}": added(CODE, IMAGE),
        f"{how}, a package adds, s": added(PACKAGES, AGAIN),
        f"{how}, {CHANGED}": statistics.median(ratios),
    }


def submissions(folder: Path, top: Path, cluster: str) -> dict[str, float]:
    """Seconds of jobs on a cluster, and of the commands that submit them."""
    demo.bring_up(cluster)
    namespace = Namespace(f"bench-code-{uuid.uuid4().hex[:6]}")
    namespace.make()
    commands: dict[str, list[float]] = {"a job file": [], CODE: [], PACKAGES: []}

    def submitted(kind: str, *words: str | Path) -> float:
        began, name = time.monotonic(), f"{kind.replace(' ', '-')}-{len(commands[kind])}"
        command = [_DTJ, "submit", *words, "--name", name, "--detach", "-n", namespace.name]
        subprocess.run(command, check=True, capture_output=True)
        commands[kind].append(time.monotonic() - began)
        Job(namespace, name).wait()
        return time.monotonic() - began

    spec = {
        "strategy": "TorchDistributed",
        "image": _IMAGE,
        "command": ["python", "-c", _PROGRAM.replace("import words", "").replace("words.TOLD", "1")],
        "replicaSpecs": {"worker": {"replicas": 1}},
    }
    file = top / "submitted.yaml"
    job = {"apiVersion": "dtj.dev/v1alpha1", "kind": "DistributedTrainingJob", "spec": spec}
    file.write_text(yaml.safe_dump({**job, "metadata": {"name": "image"}}))
    try:
        figures = in_turn(
            folder,
            "dtj submit",
            lambda: submitted("a job file", file),
            lambda kind: submitted(kind, folder, "--workers=1", f"--image={spec['image']}"),
        )
    finally:
        namespace.delete(wait=False)
    sent = {f"dtj submit itself, {kind}, s": statistics.median(times) for kind, times in commands.items()}
    return figures | sent


def limits(top: Path) -> tuple[dict[str, float], list[str]]:
    """Figures of the largest archive and of hostile ones, and their refusals."""
    (top / "in").mkdir()
    (top / "in/.dtjignore").write_text("!large\n")
    with (top / "in/large").open("wb") as file:
        for _ in range(255):
            file.write(os.urandom(_MIB))
    packing, unpacking = measured(top, "pack"), measured(top, "unpack")
    figures = {PACKING: packing[0], "packing 255 MiB, s": packing[1]}
    figures |= {UNPACKING: unpacking[0], "unpacking 255 MiB, s": unpacking[1]}
    (top / "in/large").unlink()
    refused = []
    for name, write in (("1 GiB of zeros", _zeros), ("1,000,000 entries", _entries)):
        with gzip.open(top / "archive", "wb", compresslevel=6) as archive:
            write(archive)
        memory, seconds, said = measured(top, "unpack")
        size = (top / "archive").stat().st_size / _MIB
        refused.append(f"{name} in {size:.1f} MiB: refused after {seconds:.1f} s, {memory:.0f} MiB: {said}")
    return figures, refused


def _zeros(archive: gzip.GzipFile) -> None:
    info = tarfile.TarInfo("zeros")
    info.size = 1024**3 + 1
    archive.write(info.tobuf(tarfile.GNU_FORMAT))
    for _ in range(1024):
        archive.write(bytes(_MIB))


def _entries(archive: gzip.GzipFile) -> None:
    headers = [tarfile.TarInfo(f"{number}").tobuf(tarfile.GNU_FORMAT) for number in range(MOST_ENTRIES + 1)]
    archive.write(b"".join(headers))
    rest = headers[0] * 1000
    for _ in range((1_000_000 - len(headers)) // 1000):
        archive.write(rest)


def _seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def main() -> int:
    """Print figures and verdicts; 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", choices=("local", "kind"), help="measure `dtj submit`, too")
    given = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as place:
        top = Path(place)
        folder = top / "my-training"
        (folder / "data").mkdir(parents=True)
        (folder / "train.py").write_text(_PROGRAM)
        (folder / "words.py").write_text("TOLD = ''\n")
        (folder / "data/words.txt").write_text("words\n" * 1000)
        registry(top)
        figures = stages(folder, top)
        if given.cluster:
            figures |= submissions(folder, top, given.cluster)
            # Both commands start, and create the job.
            both = "packing, s", "asking Git, s", "dtj submit itself, a job file, s"
            figures["sending, s"] = figures[f"dtj submit itself, {CODE}, s"] - sum(
                figures[each] for each in both
            )
            print(table({"median": figures}), flush=True)
        figures |= runs(folder, top)
        largest, refused = limits(top)
        figures |= largest
    print(table({"median": figures}), *refused, sep="\n")
    lines = verdicts(TARGETS, figures)
    print(*lines, sep="\n")
    return int(any(line.endswith("missed") for line in lines))


if __name__ == "__main__":
    sys.exit(main())

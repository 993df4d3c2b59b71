#!/usr/bin/env python3
"""Build the wheels that no registry has: Horovod for PyTorch and for TensorFlow, and the images' wheelhouses.

docker/wheels.py              build Horovod's two wheels if they aren't cached, and print their paths
docker/wheels.py --install    also install them for this Python: PyTorch's in its environment, TensorFlow's
                              in a separate folder (horovod-tensorflow), which must be first on PYTHONPATH
--framework torch             only this one
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from host import CACHE, REPOSITORY, BuildError, digest, need_packages, one_at_a_time, pins, run, say, watch

if TYPE_CHECKING:
    from collections.abc import Iterable

HOROVOD_VERSION = "0.28.1"
PATCHES = sorted((REPOSITORY / "docker" / "horovod").glob("*.patch"))
BUILD_OPTIONS = {
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITH_MPI": "1",
    "HOROVOD_WITHOUT_NVTX": "1",
}
RUNTIME_NEEDS = ("cloudpickle", "psutil", "pyyaml", "cffi", "packaging", "numpy")


class Framework(NamedTuple):
    """A framework that Horovod is compiled for. Each has a wheel, because a common wheel would need both
    frameworks.
    """

    package: str
    options: dict[str, str]

    @property
    def build_options(self) -> dict[str, str]:
        """The environment variables of Horovod's setup."""
        return {**BUILD_OPTIONS, **self.options}


FRAMEWORKS = {
    "torch": Framework("torch", {"HOROVOD_WITH_PYTORCH": "1", "HOROVOD_WITHOUT_TENSORFLOW": "1"}),
    "tensorflow": Framework(
        "tensorflow-cpu", {"HOROVOD_WITH_TENSORFLOW": "1", "HOROVOD_WITHOUT_PYTORCH": "1"}
    ),
}
SYSTEM_NEEDS = {
    "g++": "g++",
    "make": "make",
    "cmake": "cmake",
    "patch": "patch",
    "mpirun": "openmpi-bin",
    "mpicxx": "libopenmpi-dev",
    "ssh": "openssh-client",
}


def horovod_wheel(name: str) -> Path:
    """Return the wheel of one of FRAMEWORKS for this Python; build it if it isn't cached."""
    framework = FRAMEWORKS[name]
    need_packages(SYSTEM_NEEDS)
    mpi = run(["mpirun", "--version"]).splitlines()[0]
    made_for = f"{framework.package} {pins()[framework.package]}"
    key = digest(
        [
            HOROVOD_VERSION,
            *PATCHES,
            made_for,
            mpi,
            f"cp{sys.version_info.major}{sys.version_info.minor}",
            sysconfig.get_platform(),
            repr(sorted(framework.build_options.items())),
        ]
    )
    folder = CACHE / "wheels" / f"{name}-{key}"
    if not folder.is_dir():
        with one_at_a_time("horovod-wheel"):
            if not folder.is_dir():
                say(
                    f"Horovod's wheel: {made_for}, {mpi}; "
                    f"built once, about 4 minutes on 2 cores, kept in {folder}"
                )
                _build_horovod(framework, folder)
                _forget_others(folder)
    return next(folder.glob("horovod-*.whl"))


def horovod_source(folder: Path, python: Path | str = sys.executable) -> Path:
    """Download Horovod's published source, unpack it in `folder` and apply the patches."""
    pip = [python, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
    run([*pip, "--dest", folder, f"horovod=={HOROVOD_VERSION}"])
    run(["tar", "-xf", next(folder.glob("horovod-*.tar.gz")), "-C", folder])
    source = folder / f"horovod-{HOROVOD_VERSION}"
    for patch in PATCHES:
        run(["patch", "-p1", "--fuzz=0", "-i", patch], cwd=source)
    return source


def _build_horovod(framework: Framework, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="dtj-horovod-") as temporary:
        work = Path(temporary)
        say(f"1/4 an environment with {framework.package} to compile against")
        run([sys.executable, "-m", "venv", work / "venv"])
        python = work / "venv/bin/python"
        needs = [
            f"{name}=={pins()[name]}" for name in (framework.package, *RUNTIME_NEEDS, "setuptools", "wheel")
        ]
        constraints = REPOSITORY / "constraints.txt"
        run([python, "-m", "pip", "install", "--no-compile", "--constraint", constraints, *needs])
        say("2/4 its source, patched")
        source = horovod_source(work, python)
        say("3/4 compiling")
        watch(
            [
                python,
                "-m",
                "pip",
                "wheel",
                "-v",
                "--no-deps",
                "--no-build-isolation",
                "-w",
                work / "out",
                source,
            ],
            cwd=work,
            env={
                **framework.build_options,
                "MAKEFLAGS": f"-j{os.cpu_count() or 2}",
                "PATH": f"{python.parent}:{os.environ['PATH']}",
            },
            what="Horovod",
        )
        say("4/4 into the cache")
        _publish(work / "out", folder)


def wheelhouse(name: str, requirements: Iterable[str], *, alone: bool = False) -> Path:
    """Return a folder with the pinned wheels of all `requirements` and, unless `alone`, of their dependencies.

    Raises BuildError when the package index lacks a version in constraints.txt.
    """
    requirements = sorted(requirements)
    constraints = REPOSITORY / "constraints.txt"
    key = digest([constraints, *requirements, sysconfig.get_platform(), sys.version[:4]])
    folder = CACHE / "wheelhouse" / f"{name}-{key}"
    if not folder.is_dir():
        with one_at_a_time(f"wheelhouse-{name}"):
            if not folder.is_dir():
                say(f"collecting the wheels of the {name} image")
                with tempfile.TemporaryDirectory(prefix="dtj-wheelhouse-") as temporary:
                    out = Path(temporary) / "out"
                    pip = [sys.executable, "-m", "pip", "download", "--only-binary", ":all:"]
                    pip += ["--no-deps"] if alone else []
                    run([*pip, "--constraint", constraints, "--dest", out, *requirements])
                    _publish(out, folder)
                _forget_others(folder)
    return folder


def requirements_of(*extras: str) -> list[str]:
    """Return the requirements of `dtjob[extras]` in pyproject.toml, with references to its own extras resolved."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    found: list[str] = []
    todo = [*extras]
    while todo:
        for requirement in project["optional-dependencies"][todo.pop()]:
            nested = re.fullmatch(r"dtjob\[(.+)\]", requirement)
            if nested:
                todo.extend(nested[1].split(","))
            else:
                found.append(requirement)
    return found


def _publish(finished: Path, folder: Path) -> None:
    """Move a finished folder to its place in the cache atomically."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new-"))
    staged.chmod(0o755)
    for item in finished.iterdir():
        shutil.move(item, staged / item.name)
    staged.rename(folder)


def _forget_others(folder: Path) -> None:
    name = folder.name.rsplit("-", 1)[0]
    for old in folder.parent.glob(f"{name}-*"):
        if old != folder:
            shutil.rmtree(old)


def install(name: str, wheel: Path) -> None:
    """Install the wheel for this Python, unless this build of the wheel is installed.

    An environment holds one Horovod: PyTorch's. TensorFlow's gets a separate folder; its dependencies do not.
    """
    folder = Path(sys.prefix) / f"horovod-{name}" if name != "torch" else None
    place = folder or Path(sys.prefix)
    marker = place / f".horovod-{wheel.parent.name}"
    if marker.exists():
        return
    constraints = REPOSITORY / "constraints.txt"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "install", "--constraint", constraints]
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
        run([*pip, *RUNTIME_NEEDS])
        run([*pip, "--no-deps", "--target", folder, wheel])
    else:
        run([*pip, wheel])
        run([*pip, "--force-reinstall", "--no-deps", wheel])
    for old in place.glob(".horovod-*"):
        old.unlink()
    marker.touch()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--install", action="store_true", help="install Horovod for this Python")
    parser.add_argument(
        "--framework", action="append", choices=FRAMEWORKS, help="only this one (default: all)"
    )
    arguments = parser.parse_args()
    try:
        for name in arguments.framework or FRAMEWORKS:
            wheel = horovod_wheel(name)
            if arguments.install:
                with one_at_a_time("install"):
                    install(name, wheel)
            print(wheel)
    except (BuildError, subprocess.SubprocessError) as error:
        sys.exit(f"docker/wheels.py: {error}")


if __name__ == "__main__":
    main()

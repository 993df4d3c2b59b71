"""`python -m tests.walks [--functions N]`: how far three trips lead through the packages, as a table.

manifest → pods: a job file of Horovod is read and checked, and one pass creates its two workers.
failure → status: the launcher of the job fails, and one pass writes the status.
`dtj run` → process: from the command line to the start of the first replica of the job.

A stay is a run of calls in one module. A return is a stay in a module in which the trip has been before: many returns
mean that a fact is worked out again, or that what belongs together is apart. A call is one of a function of `dtj` or
`dtj_trainer`; a step of a generator is one too. What the simulated cluster calls is not counted. Comprehensions are
left out, as Python 3.12 makes no calls of them. Each trip is made twice, and the second time is counted: the first
one imports modules and fills caches.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import yaml

import dtj
import dtj_trainer
from dtj.api.job_file import read_one_job
from dtj.cli.main import app
from dtj.local.pod import LocalPod
from tests.unit.support.jobs import manifest
from tests.unit.support.programs import fails
from tests.unit.support.world import KEY, World

WORKERS = 2
"""The pods that the first pass creates. The launcher waits until they run."""
INTERRUPTED = 130
"""Exit code of `dtj run` after Ctrl-C."""
_DOUBLES = f"{Path(__file__).parent}{os.sep}unit{os.sep}support{os.sep}"
_FOLDERS = tuple(f"{Path(package.__path__[0])}{os.sep}" for package in (dtj, dtj_trainer))


@dataclass
class Walk:
    """The functions of the packages that a trip called, in order."""

    called: list[CodeType] = field(default_factory=list)

    @property
    def modules(self) -> Counter[str]:
        """How often the trip came into each module."""
        stays: Counter[str] = Counter()
        last = ""
        for code in self.called:
            if code.co_filename != last:
                stays[_module(last := code.co_filename)] += 1
        return stays

    @property
    def functions(self) -> Counter[str]:
        """How often each function was called, by module and name."""
        return Counter(f"{_module(code.co_filename)}:{code.co_qualname}" for code in self.called)

    @property
    def row(self) -> tuple[int, int, int, int]:
        """Modules, stays, returns and calls."""
        stays = self.modules
        return len(stays), stays.total(), stays.total() - len(stays), len(self.called)


@contextlib.contextmanager
def walked() -> Iterator[Walk]:
    """Record the calls of the present thread into the packages while the context is open."""
    walk = Walk()
    ours: dict[str, bool] = {}

    def entered(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if name.startswith("<") and name != "<lambda>":
            return
        if file not in ours:
            ours[file] = file.startswith(_FOLDERS)
        caller = frame.f_back.f_code.co_filename if frame.f_back else ""
        if ours[file] and not caller.startswith(_DOUBLES):
            walk.called.append(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(entered)
    try:
        yield walk
    finally:
        sys.setprofile(before)


def to_pods() -> Walk:
    """From the file of a job to its created pods."""
    world, text = _empty_world(), _file()

    async def go() -> None:
        job, _ = read_one_job(text, "job.yaml")
        world.apply(job)
        world.view.deliver()
        await world.reconciler.reconcile(KEY)

    with walked() as walk:
        asyncio.run(go())
    assert len(world.pod_names()) == WORKERS, world.pod_names()
    return walk


def to_failure() -> Walk:
    """From the failure of the launcher to the status that names it."""
    world = World()
    world.kubelet.program = fails(1)

    async def go() -> Walk:
        await world.until(lambda: any(pod["status"]["phase"] == "Failed" for pod in pods()))
        with walked() as walk:
            world.view.deliver()
            await world.reconciler.reconcile(KEY)
        assert "failure" in world.status
        return walk

    def pods() -> list[dict[str, Any]]:
        return world.cluster.of_kind("Pod")

    return asyncio.run(go())


def to_process(workers: int = WORKERS) -> Walk:
    """From the command line to the start of the first replica."""
    start = LocalPod._start

    def interrupt(*_: Any) -> None:
        sys.setprofile(None)
        raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as home, _environment(DTJ_HOME=home), _quiet():
        file = Path(home, "job.yaml")
        file.write_text(_file(workers))
        LocalPod._start = interrupt  # type: ignore[method-assign, assignment]
        try:
            with walked() as walk:
                code = app(["run", str(file)], standalone_mode=False)
            assert code == INTERRUPTED, f"no replica was about to start: exit code {code}"
        finally:
            LocalPod._start = start  # type: ignore[method-assign]
    return walk


TRIPS: dict[str, Callable[[], Walk]] = {
    "manifest → pods": to_pods,
    "failure → status": to_failure,
    "`dtj run` → process": to_process,
}


def table(walks: dict[str, Walk]) -> str:
    """The walks as a table in Markdown."""
    rows = [(name, *map(str, walk.row)) for name, walk in walks.items()]
    head = [("trip", "modules", "stays", "returns", "calls"), ("---",) * 5]
    return "\n".join(f"| {' | '.join(row)} |" for row in [*head, *rows])


def most_entered(walk: Walk, count: int) -> str:
    """The functions and the modules that a walk entered most."""
    functions = [f"{times:5} {name}" for name, times in walk.functions.most_common(count)]
    modules = [f"{times:5} {name}" for name, times in walk.modules.most_common(count)]
    return "\n".join(["calls of a function", *functions, "stays in a module", *modules])


def _file(workers: int = WORKERS) -> str:
    job = manifest(replicaSpecs={"worker": {"replicas": workers}})
    job["metadata"] = {"name": job["metadata"]["name"], "namespace": job["metadata"]["namespace"]}
    return yaml.safe_dump(job)


def _empty_world() -> World:
    world = World()
    world.cluster.objects.clear()
    world.cluster.log.clear()
    return world


def _module(file: str) -> str:
    package = next(folder for folder in _FOLDERS if file.startswith(folder))
    return os.path.relpath(file, Path(package).parent).removesuffix(".py")


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--functions", type=int, default=0, help="show so many of the most entered functions")
    count = parser.parse_args().functions
    walks = {}
    for name, trip in TRIPS.items():
        trip()
        walks[name] = trip()
    print(table(walks))
    for name, walk in walks.items() if count else ():
        print(f"\n{name}\n{most_entered(walk, count)}")


if __name__ == "__main__":
    main()

"""Whether a version of the operator goes on with the jobs of another version as that version would have.

`python -m tests.upgrade 93ec95e8` takes the other version out of git, and tries both directions: the upgrade and the
rollback. `record` and `compare` are its steps: this file runs with the packages and the doubles of either version.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from dtj.cluster.interface import ApiError
from tests.unit.support.world import World

ROOT = Path(__file__).parents[1]
STRATEGIES: dict[str, dict[str, Any]] = {
    "Horovod": {"replicaSpecs": {"worker": {"replicas": 2}}},
    "TorchDistributed": {"replicaSpecs": {"worker": {"replicas": 2}}},
    "ParameterServer": {
        "replicaSpecs": {
            "chief": {"replicas": 1},
            "worker": {"replicas": 2},
            "ps": {"replicas": 1},
            "evaluator": {"replicas": 1},
        }
    },
}
DECIDES = {"Horovod": "launcher-0", "TorchDistributed": "worker-0", "ParameterServer": "chief-0"}
STEPS = 40
"""For which the next operator goes on, a second each, before the programs end."""

Recorded = dict[str, Any]


def _none(world: World) -> None:
    """Programs that train without end."""
    world.kubelet.program = lambda pod, ran: None


async def _pending(world: World, decides: str) -> None:
    world.kubelet.places = 1
    for _ in range(10):
        await world.step()


async def _over_quota(world: World, decides: str) -> None:
    world.cluster.refuse = lambda manifest: (
        ApiError(403, "Forbidden", "pods is forbidden: exceeded quota: q")
        if manifest["kind"] == "Pod"
        else None
    )
    for _ in range(20):
        await world.step()


async def _starting(world: World, decides: str) -> None:
    world.kubelet.hold = {f"mnist-{decides}"}
    await world.until(lambda: world.phase == "Starting")


async def _running(world: World, decides: str) -> None:
    await world.until(lambda: world.phase == "Running")
    for _ in range(5):
        await world.step()


async def _one_complete(world: World, decides: str) -> None:
    await _running(world, decides)
    world.kubelet.program = lambda pod, ran: (0, "") if pod["metadata"]["name"] == "mnist-worker-1" else None
    for _ in range(5):
        await world.step()


async def _fail(world: World, decides: str) -> None:
    await _running(world, decides)
    failed = {pod["metadata"]["uid"] for pod in world.cluster.of_kind("Pod")}
    world.kubelet.program = lambda pod, ran: (
        (3, "no such column")
        if pod["metadata"]["name"].endswith(decides) and pod["metadata"]["uid"] in failed
        else None
    )


async def _restarting(world: World, decides: str) -> None:
    await _fail(world, decides)
    await world.until(lambda: world.phase == "Restarting")


async def _second_attempt(world: World, decides: str) -> None:
    await _restarting(world, decides)
    await world.until(lambda: world.phase == "Running")


async def _failed(world: World, decides: str) -> None:
    await _running(world, decides)
    world.kubelet.program = lambda pod, ran: (3, "") if pod["metadata"]["name"].endswith(decides) else None
    await world.until(lambda: world.phase == "Failed", 2000)


async def _suspended(world: World, decides: str) -> None:
    await _running(world, decides)
    name = next(name for name in world.cluster.objects if name[0] == "DistributedTrainingJob")

    def suspend(job: Any) -> None:
        job["spec"].setdefault("runPolicy", {})["suspend"] = True
        job["metadata"]["generation"] = 2

    world.cluster.change(name, suspend)
    await world.until(lambda: world.phase == "Suspended")


async def _node_lost(world: World, decides: str) -> None:
    await _running(world, decides)
    world.lose_node_of(f"mnist-{decides}")
    for _ in range(3):
        await world.step()


async def _succeeded(world: World, decides: str) -> None:
    await _running(world, decides)
    world.kubelet.program = lambda pod, ran: (0, "")
    await world.until(lambda: world.phase == "Succeeded", 400)


REACH: dict[str, Callable[[World, str], Awaitable[None]]] = {
    "pending": _pending,
    "over quota": _over_quota,
    "starting": _starting,
    "running": _running,
    "one complete": _one_complete,
    "restarting": _restarting,
    "second attempt": _second_attempt,
    "node lost": _node_lost,
    "suspended": _suspended,
    "failed": _failed,
    "succeeded": _succeeded,
}


async def recorded(strategy: str, state: str) -> Recorded:
    """The objects of a job in that state, and how this version's next operator goes on with them."""
    artifacts = {"uri": "s3://bucket/jobs", "secretName": "s3"}
    spec = {**STRATEGIES[strategy], "artifacts": artifacts, "runPolicy": {"backoffLimit": 3}}
    world = World(strategy=strategy, **spec)
    _none(world)
    await REACH[state](world, DECIDES[strategy])
    stored = {
        "now": world.cluster.now.isoformat(),
        "lost": sorted(world.kubelet.lost),
        "objects": [[list(name), there] for name, there in world.cluster.objects.items()],
    }
    stored = json.loads(json.dumps(stored))
    return {**stored, "expected": await gone_on(strategy, stored)}


async def gone_on(strategy: str, stored: Recorded) -> Recorded:
    """What became of the job under this version's operator: after some seconds, and after its programs ended."""
    world = World()
    world.cluster.objects.clear()
    world.cluster.log.clear()
    world.cluster.now = datetime.fromisoformat(stored["now"])
    for name, there in json.loads(json.dumps(stored["objects"])):
        world.cluster.objects[tuple(name)] = there
        world.cluster.log.append((tuple(name), there))
    world.cluster._counter = 100_000
    world.kubelet.lost |= set(stored["lost"])
    _none(world)
    world.start_operator()
    before = {pod["metadata"]["uid"] for pod in world.cluster.of_kind("Pod")}
    for _ in range(STEPS):
        await world.step()
    kept = {pod["metadata"]["uid"] for pod in world.cluster.of_kind("Pod")} & before
    meanwhile = {**_seen(world), "kept": sorted(kept)}
    world.kubelet.program = lambda pod, ran: (0, "")
    for _ in range(150):
        await world.step()
    return {"meanwhile": meanwhile, "end": _seen(world)}


def _seen(world: World) -> Recorded:
    status = world.status
    return {
        "phase": status.get("phase"),
        "attempt": status.get("attempt"),
        "restarts": status.get("restarts"),
        "pods": world.pod_names(),
        "secrets": len(world.cluster.of_kind("Secret")),
    }


async def record() -> Recorded:
    """Every state of every strategy."""
    return {
        f"{strategy}, {state}": await recorded(strategy, state) for strategy in STRATEGIES for state in REACH
    }


async def differences(states: Recorded) -> list[str]:
    """Where this version goes on otherwise than the version that recorded the states."""
    found = []
    for name, stored in states.items():
        now = await gone_on(name.partition(",")[0], stored)
        for when in ("meanwhile", "end"):
            for key, expected in stored["expected"][when].items():
                if (got := now[when][key]) != expected:
                    found.append(f"{name}, {when}: {key} is {got}, and was {expected}")
    return found


def main() -> int:
    """1 where a version goes on otherwise than the other."""
    if sys.argv[1] == "record":
        Path(sys.argv[2]).write_text(json.dumps(asyncio.run(record()), separators=(",", ":"), sort_keys=True))
        return 0
    if sys.argv[1] == "compare":
        found = asyncio.run(differences(json.loads(Path(sys.argv[2]).read_text())))
        print("\n".join(found) or "as the version that recorded it")
        return 1 if found else 0
    from tests.earlier import tree_of  # The other version may not have it.

    with tempfile.TemporaryDirectory() as name:
        other = tree_of(sys.argv[1], Path(name) / "other")
        project = tomllib.loads((other / "pyproject.toml").read_text())["project"]
        metadata = other / f"{project['name']}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        )
        codes = []
        for title, first, second in (("upgrade", other, ROOT), ("rollback", ROOT, other)):
            states = Path(name) / f"{title}.json"
            print(f"{title}:", flush=True)
            codes.append(_run(first, "record", states) or _run(second, "compare", states))
        return max(codes)


def _run(tree: Path, step: str, states: Path) -> int:
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'operator'}:{tree}"}
    command = [sys.executable, "-P", str(Path(__file__)), step, str(states)]
    return subprocess.run(command, cwd=tree, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

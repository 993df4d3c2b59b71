"""Random jobs, valid, nearly valid, huge or hostile: the jobs of the repository, changed at random places."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from dtj.api.job import Manifest

ROOT = Path(__file__).parents[2]
MOST_REPLICAS = 20_000
"""No role that has a number of replicas has more: more than any job may have."""
LONGEST = 200_000
"""Characters of a string, and a tenth of it entries of a list."""

Place = tuple[Any, ...]
_WORDS = (
    "trainer", "tensorboard", "worker", "ps", "launcher", "chief", "evaluator", "dtj-shm", "/etc/dtj", "/dtj", "name",
    "x", "A", "DTJ_JOB", "s3://bucket/jobs", "500m", "4Gi", "1e400", "Always", "Exists", "MPIJob", "Kueue", "Volcano",
    "Coscheduling", "Restart", "FromURI", "ParameterServer", "Horovod", "example.com/other", "nvidia.com/gpu",
)  # fmt: skip
_ODD = (
    "",
    " ",
    "\x00",
    "\n",
    "\ud800",
    "\udfff\ud83d",
    "\u202e",
    "é",
    "😀",
    "İ",
    "-",
    ".",
    "[0]",
    "a.b[c]",
    "{",
    "%s",
    "null",
)
_NUMBERS = (
    0,
    -1,
    1,
    2,
    7,
    65536,
    2**31,
    2**63,
    -(2**63) - 1,
    10**300,
    1.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
)
# What the CRD knows and few of the jobs have.
_BLOCKS: tuple[tuple[Place, Any], ...] = (
    (("spec", "runPolicy"), {"suspend": True}),
    (("spec", "runPolicy"), {"backoffLimit": 0, "cleanPodPolicy": "All", "ttlSecondsAfterFinished": 0}),
    (("spec", "runPolicy"), {"stallTimeoutSeconds": 1, "stallPolicy": "Restart", "startDeadlineSeconds": 1}),
    (("spec", "runPolicy"), {"managedBy": "example.com/queue"}),
    (("spec", "runPolicy"), {"schedulingPolicy": {"gang": "Kueue", "queue": "q", "priorityClassName": "p"}}),
    (("spec", "runPolicy"), {"schedulingPolicy": {"gang": "Volcano", "minAvailable": 1}}),
    (("spec", "runPolicy"), {"schedulingPolicy": {"gang": "Coscheduling"}}),
    (("spec", "horovod"), {"launcher": "MPIJob"}),
    (("spec", "horovod"), {"slotsPerWorker": 1024}),
    (
        ("spec", "tensorboard"),
        {"enabled": True, "template": {"spec": {"containers": [{"name": "tensorboard"}]}}},
    ),
    (("spec", "artifacts"), {"uri": "s3://bucket/jobs", "resume": "FromURI", "resumeUri": "s3://bucket/a"}),
    (("spec", "data"), {"uri": "s3://bucket/a", "cache": {"size": "1Gi", "emptyDir": {"medium": "Memory"}}}),
    (("spec", "data"), {"uri": "s3://bucket/a", "cache": {"size": "1Ti", "hostPath": {"path": "/var/c"}}}),
    (("spec", "env"), [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
    (("spec", "accelerator"), {"tolerations": [{"operator": "Exists"}], "nodeSelector": {"a": "b"}}),
    (
        ("spec", "replicaSpecs", "launcher"),
        {"template": {"spec": {"containers": [{"name": "trainer", "env": [{}]}]}}},
    ),
    (("spec", "replicaSpecs", "worker"), {"replicas": 200, "gpus": 8}),
    (("spec", "replicaSpecs", "ps"), {"replicas": 200}),
    (("spec", "replicaSpecs", "evaluator"), {"replicas": 1}),
)


@cache
def _jobs() -> tuple[Manifest, ...]:
    files = [
        *sorted((ROOT / "manifests/examples").rglob("*.yaml")),
        *sorted((ROOT / "tests/golden").glob("*/job.yaml")),
        *sorted((ROOT / "tests/bad_jobs").glob("*.yaml")),
    ]
    documents = (each for file in files for each in yaml.safe_load_all(file.read_text()))
    return tuple(each for each in documents if each and each.get("kind") == "DistributedTrainingJob")


def made(seed: int, number: int, most_replicas: int = MOST_REPLICAS) -> Manifest:
    """The job of a number: the same each time."""
    chance = random.Random(f"{seed}/{number}")
    job = copy.deepcopy(chance.choice(_jobs()))
    for _ in range(chance.choice((0, 1, 1, 1, 2, 2, 3, 5))):
        chance.choice(_CHANGES)(chance, job)
    _limit(job, most_replicas)
    return job


def _places(data: Any, place: Place = ()) -> Iterator[Place]:
    yield place
    if len(place) > 30:
        return
    children = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, child in list(children)[:200]:
        yield from _places(child, (*place, key))


def _at(data: Any, place: Place) -> Any:
    for key in place:
        data = data[key]
    return data


def _any_place(chance: random.Random, job: Manifest) -> Place:
    """Any but the root."""
    return chance.choice([place for place in _places(job) if place])


def _value(chance: random.Random) -> Any:
    match chance.randrange(9):
        case 0:
            return chance.choice((None, True, False, [], {}, [[]], [None], [{}], {"": {}}, {"name": None}))
        case 1 | 2:
            return chance.choice(_NUMBERS)
        case 3 | 4:
            return chance.choice(_WORDS)
        case 5:
            return chance.choice(_ODD)
        case 6:
            return {chance.choice((*_WORDS, *_ODD)): chance.choice((*_WORDS, *_NUMBERS, None))}
        case 7:
            return [chance.choice((*_WORDS, *_NUMBERS, None)) for _ in range(chance.randrange(4))]
        case _:
            return _huge(chance) if chance.random() < 0.3 else chance.choice(_ODD)


def _huge(chance: random.Random) -> Any:
    many = chance.choice((100, 1000, LONGEST // 10))
    match chance.randrange(6):
        case 0:
            return chance.choice("xé/. \ud800[") * chance.choice((1000, LONGEST))
        case 1:
            return [chance.choice(("x", 1, None, {}))] * many
        case 2:
            return {f"{chance.choice(_WORDS)}{number}": number for number in range(many)}
        case 3:
            return [{"name": chance.choice(("x", f"x{number}")), "value": "y"} for number in range(many)]
        case 4:
            return 10 ** chance.choice((20, 400, 4000))
    nested: Any = chance.choice((None, "x", 1))
    for _ in range(chance.choice((20, 200, 900))):
        nested = {"a": nested} if chance.random() < 0.5 else [nested]
    return nested


def _replace(chance: random.Random, job: Manifest) -> None:
    *outer, key = _any_place(chance, job)
    _at(job, tuple(outer))[key] = _value(chance)


def _remove(chance: random.Random, job: Manifest) -> None:
    *outer, key = _any_place(chance, job)
    del _at(job, tuple(outer))[key]


def _misspell(chance: random.Random, job: Manifest) -> None:
    *outer, key = _any_place(chance, job)
    parent = _at(job, tuple(outer))
    if isinstance(parent, dict):
        text = str(key)
        cut = chance.randrange(len(text) + 1)
        parent[chance.choice((text.lower(), text[:cut] + text[cut + 1 :], text + chance.choice(_ODD)))] = (
            parent.pop(key)
        )


def _add(chance: random.Random, job: Manifest) -> None:
    inner = _at(job, chance.choice(list(_places(job))))
    if isinstance(inner, dict):
        inner[chance.choice((*_WORDS, *_ODD))] = _value(chance)
    elif isinstance(inner, list):
        inner.append(_value(chance))


def _repeat(chance: random.Random, job: Manifest) -> None:
    lists = [each for place in _places(job) if isinstance(each := _at(job, place), list) and each]
    if lists:
        entries = chance.choice(lists)
        entries.append(chance.choice(entries))


def _graft(chance: random.Random, job: Manifest) -> None:
    """A part of another job, at the same place or at any."""
    other = chance.choice(_jobs())
    place = _any_place(chance, other)
    part = copy.deepcopy(_at(other, place))
    if chance.random() < 0.3:
        place = _any_place(chance, job)
    inner: Any = job
    for key in place[:-1]:
        inner = inner.get(key) if isinstance(inner, dict) else None
    if isinstance(inner, dict):
        inner[place[-1]] = part


def _give(chance: random.Random, job: Manifest) -> None:
    place, block = chance.choice(_BLOCKS)
    inner: Any = job
    for key in place[:-1]:
        inner = inner.get(key) if isinstance(inner, dict) else None
    if not isinstance(inner, dict):
        return
    there = inner.get(place[-1])
    block = copy.deepcopy(block)
    inner[place[-1]] = {**there, **block} if isinstance(there, dict) and isinstance(block, dict) else block


def _enlarge(chance: random.Random, job: Manifest) -> None:
    """Some, or very many, replicas of the roles that may have them."""
    spec = job.get("spec")
    roles = spec.get("replicaSpecs") if isinstance(spec, dict) else None
    for name, role in roles.items() if isinstance(roles, dict) else ():
        if name in ("worker", "ps") and isinstance(role, dict):
            role["replicas"] = int(10 ** chance.uniform(0, 4.1 if chance.random() < 0.1 else 2))


def _pad(chance: random.Random, job: Manifest) -> None:
    """Some, or very many, bytes that the schema takes: etcd takes 1.5 MB."""
    size = int(10 ** chance.uniform(2, 6.1))
    spec = job.get("spec")
    if not isinstance(spec, dict):
        return
    match chance.randrange(3):
        case 0:
            spec["env"] = [{"name": "LONG", "value": "x" * size}]
        case 1:
            spec["args"] = ["x" * 100] * (size // 100)
        case _:
            template = {
                "spec": {"tolerations": [{}] * (size // 8)},
                "metadata": {"annotations": {"a": "x" * (size // 2)}},
            }
            spec["replicaSpecs"] = {"worker": {"replicas": 1, "template": template}}


_CHANGES: tuple[Callable[[random.Random, Manifest], None], ...] = (
    _replace, _replace, _remove, _misspell, _add, _repeat, _graft, _give, _give, _enlarge, _pad,
)  # fmt: skip


def _limit(job: Manifest, most: int) -> None:
    """Keep to so many replicas where the schema would take more."""
    inner: Any = job
    for key in ("spec", "replicaSpecs"):
        inner = inner.get(key) if isinstance(inner, dict) else None
    for role in inner.values() if isinstance(inner, dict) else ():
        replicas = role.get("replicas") if isinstance(role, dict) else None
        if isinstance(replicas, (int, float)) and most < replicas <= 10_000:
            role["replicas"] = most

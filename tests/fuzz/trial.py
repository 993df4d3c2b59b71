"""The trial of one random job: exceptions, and the amount of resulting work."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

from dtj.admission.review import Malformed
from dtj.admission.server import MOST_BYTES, _reviewed
from dtj.api.errors import DtjError
from dtj.api.identity import GROUP, KIND, VERSION
from dtj.api.job import LONGEST_MESSAGE, MOST_FAULTS, Manifest
from dtj.api.job_file import read_job_file
from dtj.api.manifest_check import check
from dtj.cli.plan_summary import print_summary
from dtj.cluster.interface import ApiError
from dtj.plan.job import plan_job
from dtj.reconcile.kept_job import keep, weight
from tests.fuzz.weather import SetClocks, Weather
from tests.unit.support.fake_cluster import SCHEMA, FakeCluster
from tests.unit.support.structural import schema_faults
from tests.unit.support.world import KEY

PASSES = 24
_LARGE, _LARGE_BYTES, _PASSES_OF_LARGE = 100, 1_000_000, 10
"""The double of the API server keeps all pods: a job that had so many, or so large ones, gets fewer passes."""
_CHANGES_BYTES = 150_000_000
"""It keeps each pod as it was after each change too: at so many bytes, the passes end."""
_NODES = 50
"""Places for pods: of those of a large job most wait, which is enough to see that nothing breaks."""
_PODS = 1_000
"""Quota of pods: the memory of more would be that of the API server's double."""
_COPIES_BYTES = 80
"""What the double holds for each byte of a pod's JSON: about four decoded copies, each of twenty bytes."""
_HOST_PATHS = ("/var",)
LONGEST_FILE = 100_000
"""Characters of a job file that is read: PyYAML takes seconds for a megabyte."""
LONGEST_ANSWER = 400_000
LONGEST_STATUS = 65_536


@dataclass
class Seen:
    """What was seen of one job, or of many."""

    wrong: list[str] = field(default_factory=list)
    """Exceptions that are none of the project's own, and too much work or text."""
    what: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    """Processor time of the longest step of each kind."""


def tried(job: Manifest, before: Manifest | None, chance: random.Random, passes: int = PASSES) -> Seen:
    """Take a job through webhook, job file, plan and reconciler.

    before: a job that it is an update of, if any. chance: draws what happens around the job.
    """
    seen = Seen()
    body = _body(job, before)
    if body is not None and len(body) <= MOST_BYTES:  # The server closes the connection of a longer one.
        _review(seen, body)
    text = _text(job)
    if text is not None and len(text) <= LONGEST_FILE:
        _file(seen, text)
    _plan(seen, job)
    stored = _stored(job)
    if stored is None:
        seen.what["not for an API server"] += 1
    elif _taken(stored):
        seen.what["taken by the API server"] += 1
        with _step(seen, "reconcile"):
            _reconcile(seen, stored, chance, passes)
    return seen


def _review(seen: Seen, body: bytes) -> None:
    with _step(seen, "review"):
        try:
            allowed, answer = _reviewed(body, _HOST_PATHS)
        except Malformed:
            seen.what["review: malformed"] += 1
            return
        seen.what[f"review: {'allowed' if allowed else 'refused'}"] += 1
        if len(answer) > LONGEST_ANSWER:
            seen.wrong.append(f"review: an answer of {len(answer)} characters")


def _file(seen: Seen, text: str) -> None:
    with _step(seen, "job file"):
        try:
            messages = read_job_file(text, "job.yaml").messages()
        except DtjError as error:
            str(error).encode()
            seen.what["file: unusable"] += 1
            return
        "\n".join(messages).encode()  # a terminal takes it
        seen.what[f"file: {'faults' if messages else 'valid'}"] += 1


def _plan(seen: Seen, job: Manifest) -> None:
    with _step(seen, "check"):
        made, found = check(job)
        if len(found) > MOST_FAULTS + 1:
            seen.wrong.append(f"check: {len(found)} faults are told")
        if made is None or found:
            return
        with _step(seen, "plan"):
            plan = plan_job(made)
            seen.what["planned"] += 1
            ends = {plan.shape.replicas[0], plan.shape.replicas[-1]}
            seen.what["manifests made"] += len([plan.pod(replica) for replica in ends])
            seen.what["pods planned"] += len(plan.shape.replicas)
        with _step(seen, "summary"), redirect_stdout(StringIO()):
            print_summary(made)


def _reconcile(seen: Seen, job: Manifest, chance: random.Random, passes: int) -> None:
    world = SetClocks()
    world.cluster.remove((KIND, *KEY))
    world.view.deliver()
    try:
        world.apply(job)
    except RecursionError:
        # The double is Python. The operator's tests send such a job over a socket.
        seen.what["too deep for the API server's double"] += 1
        return
    except ApiError as error:
        seen.what[f"not created: {error.message}"] += 1
        return
    world.kubelet.places = _NODES
    in_the_api_server, size = _timed(world.cluster), len(json.dumps(job))
    weather = Weather(chance, world, min(_PODS, max(_CHANGES_BYTES // (_COPIES_BYTES * size), 2)))
    held = weight(keep(world.cluster.job()))
    with asyncio.Runner() as runner:
        for passed in range(passes):
            pods = len(world.cluster.created_pods)
            if passed >= _PASSES_OF_LARGE and (pods > _LARGE or pods * size > _LARGE_BYTES):
                break
            if len(world.cluster.log) * held > _CHANGES_BYTES:
                break
            weather.passes(passed)
            world.view.deliver()
            before = len(world.cluster.calls)
            with _step(seen, "pass", in_the_api_server):
                runner.run(world.turn())
            if weather.vanished and len(world.cluster.calls) > before:
                seen.what["requests in a namespace that went"] += 1
            world.kubelet.step()
    # A TTL may have deleted the job.
    status = world.status if (KIND, *KEY) in world.cluster.objects else {}
    seen.what[f"phase {status.get('phase')}"] += 1
    seen.what["pods made"] += len(world.cluster.created_pods)
    if (length := len(json.dumps(status))) > LONGEST_STATUS:
        seen.wrong.append(f"reconcile: a status of {length} characters")
    seen.wrong += _wrong_restarts(job, status, weather)
    message = (status.get("failure") or {}).get("message") or ""
    if len(message) > LONGEST_MESSAGE:
        seen.wrong.append(f"reconcile: a message of {len(message)} characters")


def _wrong_restarts(job: Manifest, status: Manifest, weather: Weather) -> Iterator[str]:
    """Yield what the counts of restarts should not be."""
    restarts = status.get("restarts") or {}
    limit = (job["spec"].get("runPolicy") or {}).get("backoffLimit", 3)
    if restarts.get("application", 0) > limit:
        yield f"reconcile: {restarts} with backoffLimit {limit}"
    # A success of a pod is no success of its role where another role decides.
    alone = job["spec"]["strategy"] != "ParameterServer"
    # The API server's double keeps the status of a job that is created with one.
    calm = weather.mild and not weather.vanished and not job.get("status")
    if calm and alone and any(restarts.values()):
        yield f"reconcile: {restarts} although no pod failed: {status.get('failure')}"


def _timed(cluster: FakeCluster) -> Callable[[], float]:
    """Processor time that the double of the API server takes: it is none of the operator's."""
    taken, carry_out = 0.0, cluster._carry_out

    def timed(*request: Any) -> Any:
        nonlocal taken
        begun = time.process_time()
        try:
            return carry_out(*request)
        finally:
            taken += time.process_time() - begun

    cluster._carry_out = timed  # type: ignore[method-assign]
    return lambda: taken


@contextmanager
def _step(seen: Seen, name: str, others: Callable[[], float] = lambda: 0.0) -> Iterator[None]:
    before = time.process_time() - others()
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever comes out is what is looked for
        last = traceback.extract_tb(error.__traceback__)[-1]
        seen.wrong.append(
            f"{name}: {type(error).__name__}: {str(error)[:200]} ({last.filename}:{last.lineno})"
        )
    took = time.process_time() - others() - before
    seen.seconds[name] = max(took, seen.seconds.get(name, 0.0))


def _body(job: Manifest, before: Manifest | None) -> bytes | None:
    request = {
        "uid": "1",
        "kind": {"group": GROUP, "version": VERSION, "kind": KIND},
        "operation": "UPDATE" if before else "CREATE",
        "object": job,
        "oldObject": before,
    }
    text = _dumped({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    return text.encode() if text is not None else None


def _text(job: Manifest) -> str | None:
    return _dumped(job, indent=1)


def _dumped(value: Any, **options: Any) -> str | None:
    try:
        return json.dumps(value, **options)
    except (RecursionError, ValueError):
        return None


def _stored(job: Manifest) -> Manifest | None:
    """The job as an API server has it; None where it is no JSON, or no object."""
    text = _dumped(job, allow_nan=False)
    if text is None:
        return None
    # Go takes half a character for U+FFFD.
    whole = json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8", "replace").decode()
    stored: Manifest = json.loads(whole, parse_float=_number)
    metadata = stored.get("metadata")
    given = metadata if isinstance(metadata, dict) else {}
    stored["metadata"] = {"name": KEY[1], "namespace": KEY[0]}
    for kind in ("labels", "annotations"):
        entries = given.get(kind)
        if isinstance(entries, dict) and all(isinstance(value, str) for value in entries.values()):
            stored["metadata"][kind] = entries
    return stored


def _number(text: str) -> float | int:
    number = float(text)
    return int(number) if math.isfinite(number) and number.is_integer() and abs(number) < 2**53 else number


def _taken(job: Manifest) -> bool:
    try:
        wrong = list(schema_faults(SCHEMA, job))
    except RecursionError:
        return False  # too deep for the API server in memory
    return job.get("kind") == KIND and job.get("apiVersion") == f"{GROUP}/{VERSION}" and not wrong

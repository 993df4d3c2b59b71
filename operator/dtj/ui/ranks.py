"""Routes of the ranks of a job: their use of resources over time, and their stacks in a stall.

`utilisation` and `stacks` make the answers from what the routes read in the bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query

from dtj.api.errors import NotFound
from dtj.api.status import Phase
from dtj.client.artifacts import joined
from dtj.report.run import read_metrics
from dtj.report.summary import rank_steps
from dtj.report.utilisation import files_to_read
from dtj.ui.artifacts import MOST_BYTES
from dtj.ui.outliers import LATELY_SECONDS
from dtj.ui.stacks import StackKey, StacksAnswer, StackText, keys_to_read, stacks_of
from dtj.ui.usage import is_lines, usage_of
from dtj.ui.utilisation import Question, UtilisationAnswer, utilisation_of
from dtj_trainer import contract

if TYPE_CHECKING:
    from dtj.client import Artifacts
    from dtj.ui.sources import JobSources


MOST_OBJECTS = 2000
"""The largest number of objects with samples that one answer reads."""
_MOST_TEXT = 1 << 20
_MOST_ASKED = 1000


def router(sources: JobSources) -> APIRouter:
    """Return the routes. Each one runs in a thread, because the client blocks."""
    routes = APIRouter(tags=["Ranks"])

    @routes.get("/jobs/{namespace}/{name}/utilisation")
    def utilisation(
        namespace: str,
        name: str,
        uid: str = "",
        ranks: Annotated[str, Query(max_length=_MOST_ASKED)] = "",
    ) -> UtilisationAnswer:
        """Return the use of resources by each rank over time, and the ranks that differ from the others.

        ranks: whose curves to draw, such as `0,3`; by default those that differ, then the first.
        """
        place = sources.find(namespace, name, uid)
        status = place.job().status
        with place.artifacts() as found:
            steps = _step_seconds(found) if status.finished else {}
            stored = {item.key: item.size for item in found.ls(contract.UTILISATION)}
            parts = {key: keys for key, keys in joined(stored).items() if is_lines(key)}
            sizes = {key: sum(stored[part] for part in keys) for key, keys in parts.items()}
            files = _first(files_to_read(sizes), parts)
            usage = usage_of(_contents(found, {key: parts[key] for key in files}))
        # Once the job has succeeded, compare whole attempts, not the last seconds: at the end of a training, the
        # ranks do different work.
        seconds = None if status.phase is Phase.SUCCEEDED else LATELY_SECONDS
        return utilisation_of(
            usage,
            Question([rank.strip() for rank in ranks.split(",")], steps, seconds),
            files_unread=len(sizes) - len(files),
            bytes_read=sum(sizes[key] for key in files),
        )

    @routes.get("/jobs/{namespace}/{name}/stacks")
    def stacks(namespace: str, name: str, uid: str = "", search: str = "") -> StacksAnswer:
        """Return the place in the program at which each rank was when its stacks were written, the newest first.

        search: only ranks whose stacks have this text, in upper or lower case.
        """
        with sources.find(namespace, name, uid).artifacts() as found:
            chosen, left_out = keys_to_read({item.key: item.size for item in found.ls(contract.LOGS)})
            contents = found.pieces([key.key for key in chosen])
            return stacks_of(zip(chosen, contents, strict=True), left_out, search)

    @routes.get("/jobs/{namespace}/{name}/stacks/{attempt}/{file}")
    def stack(namespace: str, name: str, attempt: int, file: str, uid: str = "") -> StackText:
        """Return the stacks of one rank, at most 1 MiB."""
        key = StackKey.of(f"{contract.LOGS}/attempt-{attempt}/{file}")
        if key is None:
            raise NotFound(f"{file} is not the name of a file of stacks, such as stacks-0-1.txt")
        with sources.find(namespace, name, uid).artifacts() as found:
            content = next(found.stream(key.key), b"")
        return StackText(text=content[:_MOST_TEXT].decode(errors="replace"), cut=len(content) > _MOST_TEXT)

    return routes


def _step_seconds(found: Artifacts) -> dict[str, float]:
    """Return the mean seconds of a step by rank, which a program reports at its end."""
    try:
        content, _ = found.end_of(contract.METRICS_FILE, MOST_BYTES)
    except NotFound:
        return {}
    lines = [line for line in content.split(b"\n") if b'"stepTimes"' in line and len(line) <= _MOST_TEXT]
    return {str(each.rank): each.seconds.mean for each in rank_steps(read_metrics(b"\n".join(lines)).rows)}


def _first(files: Sequence[str], parts: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the first files whose segments are at most MOST_OBJECTS objects together."""
    chosen, total = [], 0
    for file in files:
        total += len(parts[file])
        if total > MOST_OBJECTS:
            break
        chosen.append(file)
    return chosen


def _contents(found: Artifacts, files: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, bytes]]:
    """Yield each file with its content, of all its segments."""
    pieces = found.pieces([key for keys in files.values() for key in keys])
    for file, keys in files.items():
        yield file, b"".join(next(pieces) for _ in keys)

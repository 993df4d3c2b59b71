"""What `dtj status`, `dtj list` and the API of `dtj ui` say of a job, in parts by which two answers are compared."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from tests.patience import PATIENCE

DTJ = Path(sys.executable).with_name("dtj")
_CELLS = re.compile(r" {3,}")
_FACT = re.compile(r"(Managed by|Restarts|Took|Export|Checkpoint|Model) {2,}(.*)")
_AGES = re.compile(r", \w+ (?:old|ago)\b")
_PASSING = ("AGE", "NAMESPACE", "ENDED")
"""Columns of lists that differ by their nature."""
BEFORE_THE_END = {"Created", "Running", "Restarting", "Suspended", "Stalled", "Bottleneck"}
"""Conditions that a pod that records its job's success does not know."""
OF_THE_OPERATOR = {*(f"condition {kind}" for kind in BEFORE_THE_END), "Took", "failure", "page ended"}
"""Parts that the record of such a pod lacks, or where its clock stands in for the operator's."""
Parts = dict[str, str]


@dataclass(frozen=True)
class Printed:
    """What a command printed."""

    out: str
    err: str
    code: int


def dtj(*words: str, environment: Mapping[str, str]) -> Printed:
    """Run `dtj`."""
    done = subprocess.run(
        [DTJ, *words], env={**os.environ, **environment}, capture_output=True, text=True, check=False,
        timeout=60 * PATIENCE,
    )  # fmt: skip
    return Printed(done.stdout, done.stderr, done.returncode)


def status_parts(text: str) -> Parts:
    """Return the parts of what `dtj status` printed by name, without ages, pods and events."""
    lines = [line.rstrip() for line in text.splitlines()]
    parts = {"headline": _AGES.sub("", lines[0])}
    place = "progress"
    for line in lines[1:]:
        fact = _FACT.fullmatch(line)
        if line.startswith(("REPLICA", "ROLE", "LAST SEEN")):
            place = "skipped"
        elif line.startswith("CONDITION"):
            place = "conditions"
        elif line.startswith("Failure"):
            place = "failure"
            parts[place] = line
        elif fact:
            place = "facts"
            parts[fact[1]] = _AGES.sub("", fact[2])
        elif place == "conditions" and line:
            kind, value, _, reason, message = [*_CELLS.split(line, maxsplit=4), ""][:5]
            parts[f"condition {kind}"] = f"{value} {reason}: {message}"
        elif place == "failure" and line.startswith("  "):
            parts[place] += f"\n{line}"
        elif place == "progress" and line and not line.startswith("read from the bucket"):
            parts[place] = f"{parts.get(place, '')}\n{line}".strip()
    return parts


def list_parts(text: str) -> dict[str, Parts]:
    """Return the rows of what `dtj list` printed by name of job: each column that does not pass, and its cell."""
    heading, *rows = [line.rstrip() for line in text.splitlines() if line.strip()]
    names = _CELLS.split(heading)
    found = {}
    for row in rows:
        cells = dict(zip(names, _CELLS.split(row.strip(), maxsplit=len(names) - 1), strict=True))
        found[cells["NAME"]] = {f"list {name}": cell for name, cell in cells.items() if name not in _PASSING}
    return found


def page_parts(view: Mapping[str, Any]) -> Parts:
    """Return the parts of a job's view in the API of `dtj ui`."""
    row, artifacts = view["row"], view["artifacts"] or {}
    shown = (
        "phase",
        "state",
        "reason",
        "gpus",
        "sentence",
        "strategy",
        "workers",
        "attempt",
        "restarts",
        "ended",
        "progress",
        "arguments",
    )
    parts = {f"page {name}": json.dumps(row[name]) for name in shown}
    parts |= {f"page artifacts {name}": json.dumps(value) for name, value in artifacts.items()}
    for condition in view["conditions"]:
        text = f"{condition['status']} {condition['reason']}: {condition.get('message', '')}"
        parts[f"condition {condition['type']} of the page"] = text
    if view["failure"] is not None:
        parts["failure of the page"] = json.dumps(view["failure"], sort_keys=True)
    return parts


def page_row_parts(row: Mapping[str, Any]) -> Parts:
    """Return the parts of a row in the list of `dtj ui` that a job's view has too."""
    shown = ("phase", "sentence", "strategy", "workers", "attempt", "restarts", "ended", "progress")
    return {f"page {name}": json.dumps(row[name]) for name in shown}


def differences(before: Parts, after: Parts, missing: set[str]) -> list[str]:
    """Return a line for each part that differs.

    missing: parts that may be missing, or differ, in the second.
    """
    found = []
    for part in sorted(before.keys() | after.keys()):
        if before.get(part) != after.get(part) and part.removesuffix(" of the page") not in missing:
            found.append(
                f"{part}: it was said\n      {before.get(part)}\n    and now\n      {after.get(part)}"
            )
    return found


# --- dtj ui ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Page:
    """A running `dtj ui`."""

    address: str
    token: str

    def get(self, path: str, **query: str) -> Any:
        """Return the answer of the API. Raises AssertionError for another status than 200."""
        request = urllib.request.Request(
            f"{self.address}/api/v1/{path}?{urlencode(query)}",
            headers={"Authorization": f"Bearer {self.token}"},
        )
        try:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(request, timeout=30 * PATIENCE) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.code} {error.read().decode()}") from None


@contextmanager
def page(namespace: str, history: str, environment: Mapping[str, str]) -> Iterator[Page]:
    """Run `dtj ui` without a browser. history: the `artifacts.uri` of the jobs."""
    words = ["ui", "--no-browser", f"--namespace={namespace}", f"--from={history}"]
    process = subprocess.Popen(
        [DTJ, *words], env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = urlsplit(line.removeprefix("dtj ui: ").strip())
        assert found.fragment.startswith("token="), f"dtj ui printed {line!r}"
        yield Page(f"http://{found.netloc}", found.fragment.removeprefix("token="))
    finally:
        process.terminate()
        process.wait()

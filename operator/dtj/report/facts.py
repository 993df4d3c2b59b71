"""What a run trained, with what and by how many: from its job and its rows."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from dtj.api.spec import JobSpec
from dtj.api.strategies import RULES
from dtj.report.run import MOST, Row, Run

Fact = str | int | None
FIELDS = ("strategy", "updates", "model", "batch", "workers", "ps")
"""The facts that distinguish kinds of runs. Runs with equal facts form a group with a meaningful mean."""
_NAMES = {"batchSize": "batch", "worldSize": "ranks"}
"""Names of facts in reports, by the names of the same facts in rows."""
_OF_WHAT_HAPPENED = {"kind", "time", "attempt", "step", "steps", "examples", "seconds", "accuracy", "epochs"}
_OF_WHAT_HAPPENED |= {"totalSteps", "weightsSha256"}


def facts_of(run: Run) -> dict[str, Fact]:
    """FIELDS, `ranks`, `data` and whatever else the job's labels and the program's `start` and `end` rows say."""
    facts: dict[str, Fact] = dict.fromkeys(FIELDS)
    spec = (run.job or {}).get("spec") or {}
    roles = spec.get("replicaSpecs") or {}
    facts |= run.labels
    facts |= {
        "strategy": spec.get("strategy"),
        "data": (spec.get("data") or {}).get("uri"),
        "model": _argument(spec, "model"),
        "batch": _number(_argument(spec, "batch-size")),
        "workers": _replicas(roles, "worker"),
        "ps": _replicas(roles, "ps"),
        "updates": None,
    }
    if (rules := RULES.get(str(facts["strategy"]))) is not None:
        facts |= rules.facts(spec)
    if run.rows:
        facts["ranks"] = run.rows[-1].ranks
    for row in run.rows:
        if row.kind in ("start", "end"):
            facts |= _program_facts(row)
    if not facts["strategy"]:
        facts["strategy"] = next((r.name for r in RULES.values() if any(facts[f] for f in r.facts({}))), None)
    rules = RULES.get(str(facts["strategy"]))
    ranks = facts.get("ranks")
    if isinstance(ranks, int) and (rules is None or rules.ranked):
        # `dtj scale` may have changed the number of workers during the job, so use the number of the last row.
        facts["workers"] = ranks // _slots(spec)
    elif facts["workers"] is None:
        facts["workers"] = ranks
    return facts


def arguments_of(run: Run) -> str | None:
    """Return the arguments of the program in shell syntax, or None if the job is unknown or has no arguments."""
    words = ((run.job or {}).get("spec") or {}).get("args") or []
    return shlex.join(map(str, words)) or None


def _program_facts(row: Row) -> dict[str, Fact]:
    """Return the facts that the program writes in its `start` and `end` rows."""
    facts: dict[str, Fact] = {
        _NAMES.get(name, name): value
        for name, value in row.values.items()
        if name not in _OF_WHAT_HAPPENED
        and (isinstance(value, str) or (isinstance(value, int) and abs(value) <= MOST))
    }
    facts.pop("ranks", None)
    return facts | ({} if row.ranks is None else {"ranks": row.ranks})


def _replicas(roles: Mapping[str, Any], role: str) -> int | None:
    return int((roles[role] or {}).get("replicas", 1)) if role in roles else None


def _slots(spec: Mapping[str, Any]) -> int:
    """Ranks in a worker; 1 where the spec of the job is not known or can't be read."""
    try:
        read = JobSpec.model_validate({"image": "unknown", **spec}, extra="ignore")
    except ValidationError:
        return 1
    return len(read.rules.ranks_of(read, "worker", 0)) or 1


def _argument(spec: Mapping[str, Any], name: str) -> str | None:
    """`--name=value` or `--name value` of the program."""
    words = [*(spec.get("command") or []), *(spec.get("args") or [])]
    for place, word in enumerate(words):
        if word == f"--{name}" and place + 1 < len(words):
            return str(words[place + 1])
        if str(word).startswith(f"--{name}="):
            return str(word).partition("=")[2]
    return None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None

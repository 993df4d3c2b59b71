"""The facts of a run, such as its model and its number of workers, read from its job and its rows."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from dtj.api.masking import options_of_manifest
from dtj.api.spec import JobSpec
from dtj.api.strategies import RULES, rules_of
from dtj.report.numbers import MAX_NUMBER
from dtj.report.run import MetricsRow, Run

Fact = str | int | None
FIELDS = ("strategy", "updates", "model", "batch", "workers", "ps")
"""The facts that distinguish kinds of runs. Runs with equal facts form a group with a meaningful mean."""
_NAMES = {"batchSize": "batch", "worldSize": "ranks"}
"""Names of facts in reports, by the names of the same facts in rows."""
_PROGRESS_FIELDS = {"kind", "time", "attempt", "step", "steps", "examples", "seconds", "accuracy", "epochs"}
_PROGRESS_FIELDS |= {"totalSteps", "weightsSha256"}
"""The fields of rows that describe the course of a run. Every other field is a fact."""


class RolePods(NamedTuple):
    """The pods of one role."""

    number: int
    gpus: int
    """GPUs of each pod."""


def job_spec(run: Run) -> JobSpec | None:
    """Return the spec of the job; None if the spec is unknown or invalid."""
    spec = (run.job or {}).get("spec") or {}
    try:
        return JobSpec.model_validate({"image": "unknown", **spec}, extra="ignore")
    except ValidationError:
        return None


def facts_of(run: Run, valid_spec: JobSpec | None) -> dict[str, Fact]:
    """Return FIELDS, `ranks`, `data`, the job's labels, and the facts in the program's `start` and `end` rows."""
    facts: dict[str, Fact] = dict.fromkeys(FIELDS)
    spec = (run.job or {}).get("spec") or {}
    roles = spec.get("replicaSpecs") or {}
    facts |= run.labels
    facts |= {
        "strategy": spec.get("strategy"),
        "data": (spec.get("data") or {}).get("uri"),
        "model": _argument(spec, "model"),
        "batch": _number(_argument(spec, "batch-size")),
        "workers": _replicas(roles, "workers"),
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
        facts["workers"] = ranks // _slots(valid_spec)
    elif facts["workers"] is None:
        facts["workers"] = ranks
    return facts


def pods_by_role(run: Run, spec: JobSpec | None, facts: Mapping[str, Fact]) -> dict[str, RolePods] | None:
    """Return the pods of each role that has pods; None if neither the status nor the spec of the job shows them.

    The status comes first: `dtj scale` may have changed the numbers of pods after job.yaml was written.
    """
    counts: dict[str, int] = {}
    if run.status:
        counts = {role: each.desired for role, each in run.status.replica_statuses.items() if each.desired}
    if not counts and spec is not None:
        rules = rules_of(spec)
        counts = rules.pods_of(spec.replica_specs.given())
        role, workers = rules.role_of_option("workers"), facts["workers"]
        if rules.ranked and role and isinstance(workers, int):
            counts[role] = (
                workers  # `dtj scale` may have changed the number, so use the number of the last row.
            )
    if not counts or not all(0 < count <= MAX_NUMBER for count in counts.values()):
        return None
    given = spec.replica_specs.given() if spec else {}
    return {role: RolePods(count, given[role].gpus if role in given else 0) for role, count in counts.items()}


def options_of_run(run: Run) -> dict[str, Fact]:
    """Return the options of the program by name, without the dashes; secret values are hidden."""
    options = options_of_manifest(run.job or {})
    return {
        name: number if (number := _number(value)) is not None else value for name, value in options.items()
    }


def arguments_of(run: Run) -> str | None:
    """Return the arguments of the program in shell syntax, or None if the job is unknown or has no arguments."""
    words = ((run.job or {}).get("spec") or {}).get("args") or []
    return shlex.join(map(str, words)) or None


def _program_facts(row: MetricsRow) -> dict[str, Fact]:
    """Return the facts that the program writes in its `start` and `end` rows."""
    facts: dict[str, Fact] = {
        _NAMES.get(name, name): value
        for name, value in row.values.items()
        if name not in _PROGRESS_FIELDS
        and (isinstance(value, str) or (isinstance(value, int) and abs(value) <= MAX_NUMBER))
    }
    facts.pop("ranks", None)
    return facts | ({} if row.ranks is None else {"ranks": row.ranks})


def _replicas(roles: Mapping[str, Any], option: str) -> int | None:
    """Return the replicas of the role that an option of `dtj new` sets in some strategy; None without such a role."""
    names = (rules.role_of_option(option) for rules in RULES.values())
    return next(
        (int((roles[name] or {}).get("replicas", 1)) for name in names if name and name in roles), None
    )


def _slots(spec: JobSpec | None) -> int:
    """Return the number of ranks in a worker pod; 1 if the spec of the job is unknown or invalid."""
    if spec is None:
        return 1
    return rules_of(spec).procs(spec)


def _argument(spec: Mapping[str, Any], name: str) -> str | None:
    """Return the value of `--name=value` or `--name value` in the words of the program."""
    words = [*(spec.get("command") or []), *(spec.get("args") or [])]
    for position, word in enumerate(words):
        if word == f"--{name}" and position + 1 < len(words):
            return str(words[position + 1])
        if str(word).startswith(f"--{name}="):
            return str(word).partition("=")[2]
    return None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None

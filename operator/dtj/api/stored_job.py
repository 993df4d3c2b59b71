"""A job whose manifest does not have the resource's form, or whose spec the operator does not keep.

The API server stores such a job where its schema is older or newer than this operator, and so the job may have pods.
Of the spec only the run policy and the strategy are read: with them the pods continue, and end, as the user asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from dtj.api.base import ApiModel
from dtj.api.job import Fault, Job, course_of, read_status
from dtj.api.manifest_check import check
from dtj.api.spec import RunPolicy, SchedulingPolicy
from dtj.api.status import JobStatus
from dtj.api.strategies import RULES
from dtj.api.strategy import StrategyRules


@dataclass(frozen=True)
class UnreadableJob:
    """A job whose spec the operator can't read. The operator creates no pod of the job until the spec is correct."""

    name: str
    namespace: str
    uid: str
    generation: int
    status: JobStatus
    faults: Sequence[Fault]
    run_policy: RunPolicy
    """runPolicy with those of its fields that can be read. All other fields have their defaults."""
    rules: StrategyRules | None
    """The rules of the job's strategy; None where the spec names no registered strategy."""
    attempt: int = field(init=False, repr=False, compare=False)
    finished: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Set the fields that follow from the status, as `Job` does."""
        vars(self).update(course_of(self.status))


AnyJob = Job | UnreadableJob
"""A job as the API server stores it."""
NOT_KEPT = "notKept"
"""The key of a manifest under which the operator stores a fault in place of a spec that is too large to keep."""
# Of a spec that is too large to keep, a string with more characters than this is left out, not shortened.
_LONGEST_TEXT = 1024


def digest_of(spec: Any) -> dict[str, Any]:
    """Return the parts of a spec that an `UnreadableJob` has: some hundred bytes, however large the spec is."""
    given: Mapping[str, Any] = spec if isinstance(spec, dict) else {}
    policy = given.get("runPolicy")
    kept = _short(policy, RunPolicy)
    if isinstance(policy, dict) and (scheduling := _short(policy.get("schedulingPolicy"), SchedulingPolicy)):
        kept["schedulingPolicy"] = scheduling
    strategy = given.get("strategy")
    return {
        "strategy": strategy if isinstance(strategy, str) and strategy in RULES else None,
        "runPolicy": kept,
    }


def _short(value: Any, model: type[ApiModel]) -> dict[str, Any]:
    """Return the fields of the model that have a short plain value."""
    given: Mapping[str, Any] = value if isinstance(value, dict) else {}
    names = (field.alias or name for name, field in model.model_fields.items())
    return {
        name: given[name]
        for name in names
        if isinstance(given.get(name), (bool, int, float))
        or (isinstance(given.get(name), str) and len(given[name]) <= _LONGEST_TEXT)
    }


def read_stored_job(
    manifest: Mapping[str, Any], host_paths: Sequence[str] | None = None
) -> tuple[AnyJob, list[Fault]]:
    """Read a job that the API server has stored, and its faults. host_paths: as for `check`."""
    if not_kept := manifest.get(NOT_KEPT):
        job, faults = None, [not_kept]
    else:
        job, faults = check(manifest, host_paths)
    if job is not None:
        return job, faults
    metadata, spec = manifest["metadata"], manifest.get("spec")
    given: Mapping[str, Any] = spec if isinstance(spec, dict) else {}
    strategy = given.get("strategy")
    unreadable = UnreadableJob(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=metadata["generation"],
        status=read_status(manifest.get("status") or {}),
        faults=faults,
        run_policy=_run_policy(given.get("runPolicy")),
        rules=RULES.get(strategy) if isinstance(strategy, str) else None,
    )
    return unreadable, faults


def _run_policy(value: Any) -> RunPolicy:
    known: Mapping[str, Any] = value if isinstance(value, dict) else {}
    try:
        return RunPolicy.model_validate(known, extra="ignore")
    except ValidationError as error:
        unread = {item["loc"][0] for item in error.errors()}
        return RunPolicy.model_validate({k: v for k, v in known.items() if k not in unread}, extra="ignore")

"""What the history of jobs in the bucket records of a job, and the variable by which pods know these facts.

`record` and the pods that upload artifacts use it. Not here: the pod that records a job's end (`record`).
"""

from __future__ import annotations

import hashlib
import json

from dtj.api.git_annotations import git_state_of
from dtj.api.job import Job, written
from dtj.api.names import pod_name, together
from dtj.api.pod_template import gpus_of
from dtj_trainer import contract
from dtj_trainer.contract.history import CodeRecord


def history_of(job: Job) -> contract.History | None:
    """Return the facts that the history records of a job; None for a job without artifacts or not stored yet."""
    if job.artifacts_uri is None or job.created is None:
        return None
    roles = job.given
    return contract.History(
        namespace=job.namespace,
        name=job.name,
        uid=job.uid,
        created=job.created,
        spec_digest=spec_digest(job),
        strategy=job.spec.strategy,
        world=_world(job),
        restarts=job.status.restarts.model_dump(by_alias=True, exclude_none=True),
        workers=worker.replicas if (worker := job.spec.replica_specs.worker) else None,
        gpus=gpus_of(job.spec, {role: range(given.replicas) for role, given in roles.items()}),
        deciders=_deciders(job),
        start=job.status.start_time,
        code=_code(job),
    )


def history_environment(job: Job) -> dict[str, str]:
    """Return the variable of the pods that write the history; empty for a job that has none."""
    history = history_of(job)
    # Double each `$`: the kubelet expands `$(NAME)` in values and replaces `$$` by `$`. The name of a git branch may
    # contain a `$`.
    return {contract.ENV_HISTORY: history.to_json().replace("$", "$$")} if history is not None else {}


def spec_digest(job: Job) -> str:
    """Return the SHA-256 of the job's spec as JSON with sorted keys and without spaces, in hex."""
    text = json.dumps(written(job)["spec"], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _code(job: Job) -> CodeRecord | None:
    if job.spec.code is None:
        return None
    record: CodeRecord = {"digest": job.spec.code.digest}
    state = git_state_of(job.annotations)
    return record if state is None else {**record, "git": state}


def _deciders(job: Job) -> str | None:
    """Return the pods whose success is the job's success, in the words of the condition Succeeded."""
    deciding = job.rules.named["decides"]
    if not deciding:
        return None
    given = job.given.get(deciding[0])
    count = given.replicas if given and job.rules.roles[deciding[0]].all_decide else 1
    return together([pod_name(job.name, deciding[0], index) for index in range(max(count, 1))])


def _world(job: Job) -> int:
    """Return the number of ranks, or of the replicas that train where the strategy has no ranks."""
    roles = job.given
    if job.rules.ranked:
        ranks = (job.rules.ranks_of(job.spec, role, 0) for role in roles)
        return sum(len(each) * role.replicas for each, role in zip(ranks, roles.values(), strict=True))
    others = job.rules.named["evaluates"] + job.rules.named["holds_state"]
    return sum(role.replicas for name, role in roles.items() if name not in others)

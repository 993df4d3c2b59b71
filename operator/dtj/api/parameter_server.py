"""The rules of strategy ParameterServer.

The roles are those of a TFJob, which get the addresses of each other in TF_CONFIG. A job has one of the forms of a
TFJob. A chief, or a master, leads the training: its end decides the job. A job that names neither gets a chief. Where
the job names a chief of 0 replicas, worker 0 leads. A job that names its chief or master, whatever the number of
replicas, may do without ps: the workers then hold the variables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from dtj.api.spec import JobSpec
from dtj.api.strategy import Hosts, Role, ScriptMark, Starter, StrategyRules, digits_in_indexes
from dtj_trainer import contract

CHIEF, MASTER, WORKER, PS, EVALUATOR = "chief", "master", "worker", "ps", "evaluator"


def tf_config_bytes(hosts: Hosts, pods: Mapping[str, int], _: int = 1) -> int:
    """Return the size in bytes of the job's longest variable `TF_CONFIG=…`, with the final NUL."""
    size, most = 0, 1
    for role, count in pods.items():
        most = max(most, count)
        if role != EVALUATOR:
            # The bytes of a host in JSON with port, quotes, comma and space; then the bytes of the role's key.
            entry = len(f'"{hosts[role]}:{contract.TENSORFLOW_PORT}", ') - 1
            size += count * entry + digits_in_indexes(count) + len(f'"{role}": [], ')
    task = f', "task": {{"type": "{EVALUATOR}", "index": {most}}}, "environment": "cloud"}}'
    return len(f'{contract.ENV_TF_CONFIG}={{"cluster": {{') + size + len(task) + len("}") + 1


def _facts(spec: Mapping[str, Any]) -> dict[str, str]:
    return {"updates": (spec.get("parameterServer") or {}).get("updates", "Asynchronous")}


def _roles(leader: str | None, *, named: bool, with_ps: bool) -> dict[str, Role]:
    """Return the roles of a job, which depend on the roles that its spec names.

    leader: the role that leads the training; None: worker 0 leads. named: whether the spec names a chief or master.
    """
    # The leader's program waits for the ps only for a limited time. The leader's pod is therefore created after those
    # of the ps.
    leads = Role(decides=True, reports=True, created_first=not with_ps)
    roles = {
        CHIEF: Role(implied=not named, resources={"requests": {"cpu": "500m", "memory": "1Gi"}}),
        MASTER: Role(instead_of=CHIEF),
        WORKER: Role(required=True, option="workers"),
        PS: Role(required=not named, unless="chief or master is given", holds_state=True, option="ps"),
        EVALUATOR: Role(created_first=False, evaluates=True, option="evaluator"),
    }
    if leader is None:
        return roles | {WORKER: replace(roles[WORKER], decides=True, reports=True)}
    own = roles[leader]
    leads = replace(leads, implied=own.implied, instead_of=own.instead_of, resources=own.resources)
    return roles | {leader: leads}


def _form(spec: JobSpec) -> StrategyRules:
    given = spec.replica_specs.given()
    named = [role for role in (MASTER, CHIEF) if role in given]
    leader = next((role for role in named if given[role].replicas), None) if named else CHIEF
    return _rules(leader, named=bool(named), with_ps=not named or PS in given)


def _form_of_pods(roles: Collection[str]) -> StrategyRules:
    leader = next((role for role in (MASTER, CHIEF) if role in roles), None)
    return _rules(leader, named=leader != CHIEF, with_ps=PS in roles)


@cache
def _rules(leader: str | None, *, named: bool, with_ps: bool) -> StrategyRules:
    return replace(PARAMETER_SERVER, roles=_roles(leader, named=named, with_ps=with_ps))


def _marks(strategy: str, replicas: Mapping[str, int]) -> Iterator[ScriptMark]:
    for where in ("", "experimental."):
        for distribute in ("tensorflow.distribute", "tensorflow.compat.v1.distribute"):
            yield ScriptMark(name=f"{distribute}.{where}{strategy}", replicas=replicas)


PARAMETER_SERVER = StrategyRules(
    name="ParameterServer",
    description="TensorFlow with TF_CONFIG, as a TFJob",
    roles=_roles(CHIEF, named=False, with_ps=True),
    form=_form,
    form_of_pods=_form_of_pods,
    starter=Starter(
        image="dtj-trainer-tensorflow", module="ps_image_classification", block={"updates": "Asynchronous"}
    ),
    block="parameter_server",
    script_marks=(
        *_marks("ParameterServerStrategy", {PS: 1}),
        # The workers of a MultiWorkerMirroredStrategy need no ps. Without a chief, worker 0 leads.
        *_marks("MultiWorkerMirroredStrategy", {CHIEF: 0}),
    ),
    # A failed leader leaves state on the ps on which the next leader would fail, such as the closed token queue of a
    # SyncReplicasOptimizer. Therefore all ps restart together with the leader.
    restarts_alone=True,
    evaluator_timeout=lambda spec: spec.parameter_server_options.evaluator_timeout_seconds,
    facts=_facts,
    peer_list_bytes=tf_config_bytes,
    peer_list_variable=contract.ENV_TF_CONFIG,
)

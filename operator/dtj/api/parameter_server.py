"""The rules of strategy ParameterServer, and its block of the spec.

The roles are those of a TFJob, which get the addresses of each other in TF_CONFIG. A job has one of the forms of a
TFJob. A chief, or a master, leads the training: its end decides the job. A job that names neither gets a chief. Where
the job names a chief of 0 replicas, worker 0 leads. A job that names its chief or master, whatever the number of
replicas, may do without ps: the workers then hold the variables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from dtj.api.base import ApiModel, Number
from dtj.api.names import host_name
from dtj.api.strategy import Role, ScriptMark, Starter, StrategyRules, count_of_digits, pods_of
from dtj_trainer import contract

if TYPE_CHECKING:
    from dtj.api.job import Job
    from dtj.api.spec import JobSpec

CHIEF, MASTER, WORKER, PS, EVALUATOR = "chief", "master", "worker", "ps", "evaluator"


class Updates(StrEnum):
    """When the gradients of workers change the variables on the parameter servers."""

    ASYNCHRONOUS = "Asynchronous"
    SYNCHRONOUS = "Synchronous"


class ParameterServer(ApiModel):
    """What only strategy ParameterServer has."""

    updates: Updates = Updates.ASYNCHRONOUS
    """Asynchronous: each worker's gradients change the variables as they come. Synchronous: those of all workers
    together, once a step. Given to the program as DTJ_UPDATES."""
    evaluator_timeout_seconds: Annotated[int, Field(ge=0), Number] = 300
    """How long the evaluator may take, after the chief has succeeded, until it has seen the last checkpoint."""


def tf_config_bytes(job: Job) -> int:
    """Bytes of the longest `TF_CONFIG=…` of a job, with its end."""
    hosts, most = 0, 1
    for role, count in pods_of(job.spec):
        most = max(most, count)
        if role != EVALUATOR:
            # A host in JSON: quotes, port, comma and space; and the role's own key and brackets.
            entry = len(f'"{host_name(job.name, job.namespace, role, 0)}:{contract.TENSORFLOW_PORT}", ') - 1
            hosts += count * entry + count_of_digits(count) + len(f'"{role}": [], ')
    task = f', "task": {{"type": "{EVALUATOR}", "index": {most}}}, "environment": "cloud"}}'
    return len(f'{contract.ENV_TF_CONFIG}={{"cluster": {{') + hosts + len(task) + len("}") + 1


def _facts(spec: Mapping[str, Any]) -> dict[str, str]:
    return {"updates": (spec.get("parameterServer") or {}).get("updates", "Asynchronous")}


def _roles(leader: str | None, *, named: bool, with_ps: bool) -> dict[str, Role]:
    """The roles of a form.

    leader: the role that leads the training; None: worker 0 does. named: whether the job names its chief or master.
    """
    # A leader stops waiting for ps after a while, so it is created after them.
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
        # These workers need no ps. Worker 0 leads.
        *_marks("MultiWorkerMirroredStrategy", {CHIEF: 0}),
    ),
    restarts_alone=True,
    facts=_facts,
    peer_list_bytes=tf_config_bytes,
    peer_list_variable=contract.ENV_TF_CONFIG,
)

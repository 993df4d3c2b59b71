"""The rules of strategy ParameterServer, and its block of the spec.

The roles are those of TensorFlow's TF_CONFIG, by which the replicas find each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from dtj.api.base import ApiModel, Number
from dtj.api.names import host_name
from dtj.api.strategy import Role, Starter, StrategyRules, count_of_digits, pods_of
from dtj_trainer import contract

if TYPE_CHECKING:
    from dtj.api.job import Job

CHIEF, WORKER, PS, EVALUATOR = "chief", "worker", "ps", "evaluator"


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
    for role, count in pods_of(job.spec, PARAMETER_SERVER):
        most = max(most, count)
        if role != EVALUATOR:
            # A host in JSON: quotes, port, comma and space; and the role's own key and brackets.
            entry = len(f'"{host_name(job.name, job.namespace, role, 0)}:{contract.TENSORFLOW_PORT}", ') - 1
            hosts += count * entry + count_of_digits(count) + len(f'"{role}": [], ')
    task = f', "task": {{"type": "{EVALUATOR}", "index": {most}}}, "environment": "cloud"}}'
    return len(f'{contract.ENV_TF_CONFIG}={{"cluster": {{') + hosts + len(task) + len("}") + 1


def _facts(spec: Mapping[str, Any]) -> dict[str, str]:
    return {"updates": (spec.get("parameterServer") or {}).get("updates", "Asynchronous")}


PARAMETER_SERVER = StrategyRules(
    name="ParameterServer",
    description="TensorFlow with TF_CONFIG, as a TFJob",
    roles={
        CHIEF: Role(implied=True, created_first=False, decides=True, reports=True, holds_state=True),
        WORKER: Role(required=True, option="workers"),
        PS: Role(required=True, holds_state=True, option="ps"),
        EVALUATOR: Role(created_first=False, evaluates=True, option="evaluator"),
    },
    starter=Starter(
        image="dtj-trainer-tensorflow", module="ps_image_classification", block={"updates": "Asynchronous"}
    ),
    block="parameter_server",
    restarts_alone=True,
    facts=_facts,
    peer_list_bytes=tf_config_bytes,
    peer_list_variable=contract.ENV_TF_CONFIG,
)

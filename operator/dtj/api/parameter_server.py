"""The rules of strategy ParameterServer: TensorFlow's roles, each told of the others by TF_CONFIG."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dtj.api.names import host_name
from dtj.api.strategy import Role, Starter, StrategyRules, count_of_digits, pods_of
from dtj_trainer import contract

if TYPE_CHECKING:
    from dtj.api.job import Job

CHIEF, WORKER, PS, EVALUATOR = "chief", "worker", "ps", "evaluator"


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

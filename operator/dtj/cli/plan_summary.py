"""The plan of a job as text for people."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.table import Table
from rich.text import Text

from dtj.api.identity import LABEL_ROLE
from dtj.api.job import Job, Manifest
from dtj.api.names import tensorboard_name
from dtj.api.shape import Replica
from dtj.api.spec import Gang
from dtj.api.validation import notes
from dtj.cli.terminal import echo_whole, output
from dtj.plan.config_map import START
from dtj.plan.job import plan_job
from dtj.plan.model import Plan
from dtj.plan.pods import trainer_container
from dtj_trainer import contract

_MAX_SHOWN = 8
"""The largest number of entries, such as the replicas of a role, that are all shown. Of a longer list, the first two
entries and the last one are shown."""
_UNKNOWN_UID = "<uid>"


def print_summary(job: Job) -> None:
    """Print the plan of a job without faults."""
    job = replace(job, uid=job.uid or _UNKNOWN_UID)
    plan = plan_job(job)
    attempt = job.attempt
    where = f"namespace {job.namespace}" + (f", attempt {attempt}" if attempt > 1 else "")
    heading = Text.assemble(
        (job.name, "bold"), f": {job.spec.strategy}, {len(plan.shape.replicas)} pods in {where}"
    )
    output.print(heading)
    if manager := job.spec.run_policy.other_manager:
        _lines([f"managed by {manager} (runPolicy.managedBy): dtj's operator creates none of these objects"])
    pods = _sampled_pods(plan)
    _part("Pods", _pods(plan, pods, job.spec.accelerator.resource_name))
    _lines(_order(plan))
    policy = job.spec.run_policy.scheduling_policy
    if policy.gang is not Gang.NONE:
        queue = f", in queue {policy.queue}" if policy.queue else ""
        _lines([f"placed all together or not at all by {policy.gang}{queue} (runPolicy.schedulingPolicy)"])
    _part("Program")
    _lines(_programs(pods))
    _lines(job.rules.notes(job.spec))
    _lines(notes(job))
    if "hostfile" in plan.config["data"]:
        _part(f"Hostfile {contract.CONFIG_DIR}/hostfile")
        _lines(_shortened(plan.config["data"]["hostfile"].splitlines()))
    _tf_config(plan, pods)
    _part("Environment of every replica", _shared_environment(pods))
    _part("Environment that differs", _own_environment(plan, pods))
    _part("Artifacts")
    _lines(_artifacts(job))
    _part("Restarts")
    _lines(_restarts(job, plan))


def _sampled_pods(plan: Plan) -> dict[str, Manifest]:
    """Return the pods of each role by name. Of more than _MAX_SHOWN pods, return the first two and the last."""
    return {
        replica.name: plan.pod(replica)
        for replicas in _by_role(plan.shape.replicas).values()
        for replica in (replicas if len(replicas) <= _MAX_SHOWN else [*replicas[:2], replicas[-1]])
    }


def _by_role(replicas: Iterable[Replica]) -> dict[str, list[Replica]]:
    roles: dict[str, list[Replica]] = {}
    for replica in replicas:
        roles.setdefault(replica.role, []).append(replica)
    return roles


def _part(title: str, table: Table | None = None) -> None:
    output.print(f"\n{title}", style="bold")
    if table is None:
        return
    if output.is_terminal:
        _keep_names_whole(table)
        output.print(table, soft_wrap=False)
    else:
        echo_whole(table)


def _lines(lines: Iterable[str]) -> None:
    for line in lines:
        output.print(f"  {line}")


_VARIABLE = "  variable"
_NEVER_FOLDED = ("  stage", "role", "index", "gpus")
"""The columns whose cells have one short word."""


def _table(*columns: str) -> Table:
    """Return a table whose widest columns fold on a narrow terminal."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in _NEVER_FOLDED)
    return table


def _keep_names_whole(table: Table) -> None:
    """Fold names of variables only if they need more than half of the terminal."""
    names = table.columns[0]
    if names.header == _VARIABLE:
        names.no_wrap = max((len(str(cell)) for cell in names.cells), default=0) <= output.width // 2


def _pods(plan: Plan, pods: Mapping[str, Manifest], accelerator: str) -> Table:
    table = _table("  stage", "pod", "role", "index", "image", "gpus", "other resources")
    for number, stage in enumerate(plan.shape.stages, 1):
        for role, replicas in _by_role(stage).items():
            rows = [
                (
                    f"  {number}",
                    replica.name,
                    role,
                    str(replica.index),
                    *_container_cells(pods[replica.name], accelerator),
                )
                for replica in replicas
                if replica.name in pods
            ]
            for row in rows if len(rows) == len(replicas) else [*rows[:-1], ("  …",), rows[-1]]:
                table.add_row(*row)
    return table


def _container_cells(pod: Manifest, accelerator: str) -> tuple[str, str, str]:
    container = trainer_container(pod)
    requests, limits = (dict(container.get("resources", {}).get(kind, {})) for kind in ("requests", "limits"))
    gpus = str(limits.pop(accelerator, "-"))
    resources = [
        f"{kind}: " + ", ".join(f"{name} {quantity}" for name, quantity in quantities.items())
        for kind, quantities in (("requests", requests), ("limits", limits))
        if quantities
    ]
    return str(container["image"]), gpus, "; ".join(resources) or "-"


def _order(plan: Plan) -> list[str]:
    decisive = ", ".join(_shortened(plan.shape.decisive))
    verb = "succeeds" if len(plan.shape.decisive) == 1 else "succeed"
    state = (
        "run, or are ready if they may restore a checkpoint"
        if plan.shape.next_stage_on_running
        else "are ready"
    )
    later = (
        [f"Pods of a stage are created when the pods of all earlier stages {state}."]
        if len(plan.shape.stages) > 1
        else []
    )
    return [*later, f"The job succeeds when {decisive} {verb}; {plan.shape.reporter} reports the progress."]


def _programs(pods: Mapping[str, Manifest]) -> list[str]:
    programs: dict[str, list[str]] = {}
    for pod in pods.values():
        container = trainer_container(pod)
        words = [*container.get("command", []), *container.get("args", [])]
        if tuple(words[: len(START)]) == START:
            words = words[len(START) :]
        roles = programs.setdefault(shlex.join(words), [])
        if _role(pod) not in roles:
            roles.append(_role(pod))
    return [
        f"{', '.join(roles)}: {program or 'waits for the launcher'}" for program, roles in programs.items()
    ]


def _tf_config(plan: Plan, pods: Mapping[str, Manifest]) -> None:
    for pod in pods.values():
        if text := _environment(pod).get(contract.ENV_TF_CONFIG):
            _part(f"TF_CONFIG of {pod['metadata']['name']}; the other pods have their own task")
            # Show the value in the container: the kubelet replaces $(DTJ_TF_CLUSTER) by the value of that variable.
            config = json.loads(text.replace(f"$({contract.ENV_TF_CLUSTER})", _tf_cluster(plan, pod)))
            for role, hosts in config.get("cluster", {}).items():
                _lines(_shortened([f"{role}  {host}" for host in hosts]))
            _lines([f"task  {json.dumps(config.get('task'))}"])
            return


def _tf_cluster(plan: Plan, pod: Manifest) -> str:
    variables = {variable["name"]: variable for variable in trainer_container(pod)["env"]}
    source = variables[contract.ENV_TF_CLUSTER]["valueFrom"]["configMapKeyRef"]
    return str(plan.config["data"][source["key"]])


def _shared_environment(pods: Mapping[str, Manifest]) -> Table:
    table = _table(_VARIABLE, "value")
    environments = list(map(_environment, pods.values()))
    for name in _names(environments):
        values = {environment.get(name) for environment in environments}
        if len(values) == 1:
            table.add_row(f"  {name}", str(values.pop()))
    for source in dict.fromkeys(
        f"  {kind} {reference.get('name')}"
        for pod in pods.values()
        for entry in trainer_container(pod).get("envFrom", [])
        for kind, reference in (("Secret", entry.get("secretRef")), ("ConfigMap", entry.get("configMapRef")))
        if reference
    ):
        table.add_row(source, "all of its keys")
    return table


def _own_environment(plan: Plan, pods: Mapping[str, Manifest]) -> Table:
    table = _table(_VARIABLE, "replicas", "value")
    environments = {name: _environment(pod) for name, pod in pods.items()}
    for name in _names(environments.values()):
        replicas_by_value: dict[str, list[str]] = {}
        left_out = False
        for role, replicas in _by_role(plan.shape.replicas).items():
            sampled = [replica for replica in replicas if replica.name in pods]
            same = len({environments[replica.name].get(name) for replica in sampled}) == 1
            left_out |= not same and len(sampled) < len(replicas)
            for replica in replicas if same else sampled:
                value = environments[sampled[0].name if same else replica.name].get(name)
                if value is not None:
                    replicas_by_value.setdefault(value, []).append(f"{role}-{replica.index}")
        shared = [len(names) for names in replicas_by_value.values()] == [len(plan.shape.replicas)]
        if shared or name == contract.ENV_TF_CONFIG:
            continue
        rows = [
            (f"  {name}", ", ".join(_shortened(names)), value) for value, names in replicas_by_value.items()
        ]
        shortened = left_out or len(rows) > _MAX_SHOWN
        for row in [*rows[:2], (f"  {name}", "…", "…"), rows[-1]] if shortened else rows:
            table.add_row(*row)
    return table


def _artifacts(job: Job) -> list[str]:
    artifacts = job.spec.artifacts
    if artifacts is None:
        return ["none are kept: the job has no spec.artifacts"]
    folders = ", ".join(
        f"{name}/" for name in (contract.CHECKPOINTS, contract.TENSORBOARD, contract.LOGS, contract.MODEL)
    )
    credentials = f"Secret {artifacts.secret_name}" if artifacts.secret_name else "the pods' service account"
    board = f"TensorBoard: Service {tensorboard_name(job.name)}, port {contract.TENSORBOARD_PORT}"
    return [
        f"{job.artifacts_uri}/",
        f"with {folders}, {contract.METRICS_FILE} and {contract.JOB_FILE}",
        f"store: {artifacts.endpoint or 'AWS'}, credentials: {credentials}",
        *([board] if job.spec.tensorboard.enabled else []),
    ]


def _restarts(job: Job, plan: Plan) -> list[str]:
    policy, artifacts = job.spec.run_policy, job.spec.artifacts
    lines = [
        f"after a failure of the program: at most {policy.backoff_limit} times; "
        "lost nodes, evictions and preemptions are not counted"
    ]
    if job.restarts_in_place:
        lines.append(
            "when a rank fails: the ranks start again in their pods, or in new ones (InPlaceRestart)"
        )
    if plan.shape.restarts_with is None:
        lines.append("when a pod is lost: all pods start again")
    else:
        lines += _lost_pods(plan, plan.shape.restarts_with)
    if artifacts is None:
        lines.append("from the beginning: without artifacts there are no checkpoints")
    elif artifacts.resume.value == "Never":
        lines.append("from the beginning: artifacts.resume is Never")
    else:
        lines.append("from the newest complete checkpoint")
    if policy.active_deadline_seconds:
        lines.append(f"the job fails if it has not ended after {policy.active_deadline_seconds} s")
    if policy.start_deadline_seconds:
        lines.append(
            f"the job fails if not all pods run within {policy.start_deadline_seconds} s after a start"
        )
    lines.append(f"pods that are deleted at the end: {policy.clean_pod_policy}")
    if (ttl := policy.ttl_seconds_after_finished) is not None:
        lines.append(f"the job is deleted {ttl} s after its end; its artifacts in the bucket stay")
    return lines


def _lost_pods(plan: Plan, groups: Mapping[str, frozenset[str]]) -> Iterator[str]:
    """Yield what starts again after the loss of a pod: a line for each role, or two if the pods of a role differ."""
    for role, replicas in _by_role(plan.shape.replicas).items():
        alone = [replica for replica in replicas if len(groups[replica.name]) == 1]
        together = [replica for replica in replicas if replica not in alone]
        if together:
            lost = f"pod {together[0].name}" if alone else f"a pod of {role}"
            yield f"when {lost} is lost: {_group(plan, groups[together[0].name])} start again"
        if alone:
            yield f"when {'another' if together else 'a'} pod of {role} is lost: it alone starts again"


def _group(plan: Plan, group: frozenset[str]) -> str:
    whole, parts = [], []
    for role, replicas in _by_role(plan.shape.replicas).items():
        members = [replica.name for replica in replicas if replica.name in group]
        if len(members) == len(replicas):
            whole.append(role)
        else:
            parts += members
    return " and ".join([*parts, f"all {' and '.join(sorted(whole))} pods"])


def _names(environments: Iterable[Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(name for environment in environments for name in environment))


def _environment(pod: Manifest) -> dict[str, str]:
    return {
        str(variable.get("name")): _value(variable)
        for variable in trainer_container(pod).get("env", [])
        if isinstance(variable, dict)
    }


def _value(variable: dict[str, Any]) -> str:
    source = variable.get("valueFrom")
    return f"from {json.dumps(source)}" if source else str(variable.get("value", ""))


def _role(pod: Manifest) -> str:
    return str(pod["metadata"]["labels"][LABEL_ROLE])


def _shortened(entries: Sequence[str]) -> list[str]:
    if len(entries) <= _MAX_SHOWN:
        return list(entries)
    return [*entries[:2], f"… {len(entries) - 3} more …", entries[-1]]

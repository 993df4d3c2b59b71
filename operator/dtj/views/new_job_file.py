"""The text of a new job file, in which comments explain the fields with the descriptions of the models.

`dtj new` asks for the answers. The page of `dtj ui` begins with the defaults.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from dtj.api.base import ApiModel, model_of
from dtj.api.identity import API_VERSION, KIND, own_image
from dtj.api.spec import (
    Accelerator,
    ArtifactStore,
    Data,
    JobSpec,
    ReplicaSpec,
    ReplicaSpecs,
    RunPolicy,
)
from dtj.api.strategies import RULES
from dtj.api.yaml_text import dump

_ONE_LINE = 1 << 30


@dataclass(frozen=True)
class Answers:
    """The answers to the questions of `dtj new`. An empty text means that an answer is missing."""

    name: str = "training"
    strategy: str = next(iter(RULES))
    image: str = ""
    registry: str = ""
    command: str = ""
    workers: int = 2
    ps: int = 1
    evaluator: bool = False
    gpus: int = 0
    data: str = ""
    artifacts: str = ""
    endpoint: str = ""
    secret: str = ""

    def shown(self, option: str) -> str:
        """Return an answer as text, or its default if the answer is missing."""
        starter = RULES[self.strategy].starter
        defaults = {
            "image": own_image(starter.image, self.registry),
            "command": f"python -m dtj_trainer.programs.{starter.module}",
        }
        return str(getattr(self, option) or defaults.get(option, getattr(self, option)))


def job_text(answers: Answers) -> str:
    """Return the job file, with the faults of the answers. Raises ValueError if the command has an open quote."""
    return "\n".join(_lines(answers)) + "\n"


def _lines(answers: Answers) -> Iterator[str]:
    yield "# A job of `dtj`: `dtj validate` checks this file, `dtj run` trains on this machine,"
    yield "# `dtj submit` on a cluster. Fields that are commented out show the default, or an example."
    yield f"apiVersion: {API_VERSION}"
    yield f"kind: {KIND}"
    yield "metadata:"
    yield f"  name: {_inline(answers.name)}"
    yield "spec:"
    yield from _field(1, JobSpec, "strategy", answers.strategy)
    yield from _field(1, JobSpec, "image", answers.shown("image"))
    if answers.gpus and answers.shown("image") == replace(answers, image="").shown("image"):
        yield from _comment(1, "This image is for CPUs: docs/gpu-images.md of dtj builds one for GPUs.")
    yield from _field(1, JobSpec, "command", shlex.split(answers.shown("command")))
    yield from _field(1, JobSpec, "env", [{"name": "OMP_NUM_THREADS", "value": "1"}], unused=True)
    yield from _comment(1, _described(JobSpec, "replica_specs"))
    yield "  replicaSpecs:"
    rules = RULES[answers.strategy]
    for role in rules.named["option"]:
        yield from _role(role, answers)
    block = JobSpec.model_fields[rules.block] if rules.block else None
    if block is not None and (model := model_of(block.annotation)) and rules.starter.block:
        yield f"  {block.alias}:"
        for name, value in rules.starter.block.items():
            yield from _field(2, model, name, value)
    yield from _field(1, JobSpec, "accelerator", {"resourceName": Accelerator().resource_name}, unused=True)
    yield from _data(answers)
    yield from _artifacts(answers)
    yield from _comment(1, _described(JobSpec, "run_policy"))
    yield "  runPolicy:"
    policy = RunPolicy()
    yield from _field(2, RunPolicy, "backoff_limit", policy.backoff_limit)
    yield from _field(2, RunPolicy, "active_deadline_seconds", 86400, unused=True)
    yield from _field(2, RunPolicy, "start_deadline_seconds", 900, unused=True)
    yield from _field(2, RunPolicy, "clean_pod_policy", policy.clean_pod_policy.value)
    yield from _field(2, RunPolicy, "ttl_seconds_after_finished", 604800, unused=True)


def _role(name: str, answers: Answers) -> Iterator[str]:
    """Yield the entry of a role. Only the entry of the workers explains the fields, which all roles share."""
    answer = getattr(answers, RULES[answers.strategy].roles[name].option or "")
    if answer is False:
        return
    yield from _comment(2, _described(ReplicaSpecs, name))
    if answer is True:
        yield f"    {name}: {{replicas: 1}}"
        return
    yield f"    {name}:"
    if name != RULES[answers.strategy].role_of_option("workers"):
        yield f"      replicas: {answer}"
        return
    yield from _field(3, ReplicaSpec, "replicas", answer)
    yield from _field(3, ReplicaSpec, "gpus", answers.gpus)
    resources = {"requests": {"cpu": 4, "memory": "16Gi"}, "limits": {"memory": "16Gi"}}
    yield from _field(3, ReplicaSpec, "resources", resources, unused=True)


def _data(answers: Answers) -> Iterator[str]:
    if not answers.data:
        yield from _field(1, JobSpec, "data", {"uri": "s3://datasets/fashion-mnist"}, unused=True)
        return
    yield "  data:"
    yield from _field(2, Data, "uri", answers.data)


def _artifacts(answers: Answers) -> Iterator[str]:
    if not (answers.artifacts or answers.endpoint or answers.secret):
        store = {"uri": "s3://training/jobs", "secretName": "s3-credentials"}
        yield from _field(1, JobSpec, "artifacts", store, unused=True)
        return
    yield from _comment(1, _described(JobSpec, "artifacts"))
    yield "  artifacts:"
    if answers.artifacts:
        yield from _field(2, ArtifactStore, "uri", answers.artifacts)
    for name, value, example in (
        ("endpoint", answers.endpoint, "https://s3.example.com"),
        ("secret_name", answers.secret, "s3-credentials"),
        ("resume", "", "Auto"),
    ):
        yield from _field(2, ArtifactStore, name, value or example, unused=not value)


def _field(
    depth: int, model: type[ApiModel], name: str, value: Any, *, unused: bool = False
) -> Iterator[str]:
    """Yield a field below its description. unused: whether to comment the field out."""
    yield from _comment(depth, _described(model, name))
    prefix = "# " if unused else ""
    yield f"{'  ' * depth}{prefix}{model.model_fields[name].alias}: {_inline(value)}"


def _described(model: type[ApiModel], name: str) -> str:
    return " ".join((model.model_fields[name].description or "").split())


def _comment(depth: int, text: str) -> Iterator[str]:
    """Yield a text as comment lines of at most 100 columns."""
    line = ""
    for word in text.split():
        if line and len(line) + len(word) + 2 * depth > 98:
            yield f"{'  ' * depth}# {line}"
            line = ""
        line = f"{line} {word}".strip()
    if line:
        yield f"{'  ' * depth}# {line}"


def _inline(value: Any) -> str:
    """Return a value as YAML on one line."""
    text = _dumped(value)
    return _dumped(value, '"') if "\n" in text else text  # YAML escapes line breaks only in double quotes.


def _dumped(value: Any, style: str | None = None) -> str:
    text = dump(value, width=_ONE_LINE, default_style=style, default_flow_style=True, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")

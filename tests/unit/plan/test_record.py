"""The record pod and what pods are told for a job's history.

- the digest of a spec, the number of ranks of each strategy, and which pods are told
- the record pod: credentials, image, security, no label of the job's pods
- a status of thousands of pods, and one with long lines, fits
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.api.job import Job, read_job
from dtj.api.manifest_check import check
from dtj.api.status import Condition, Conditions, JobStatus
from dtj.plan.history import history_of, spec_digest
from dtj.plan.job import plan_job
from dtj.plan.pods import trainer_container
from dtj.plan.record import END_BYTES, end_record_of, fitted, record_pod
from dtj.reconcile.kept_job import keep
from dtj_trainer.contract import PodInfo
from dtj_trainer.contract.history import History, RecordedPod
from tests.unit.support.jobs import manifest, stored

ARTIFACTS = {"uri": "s3://training/jobs", "endpoint": "http://store:8333", "secretName": "s3-credentials"}
TIME = "2026-11-21T12:30:00Z"
ROLES: dict[str, Any] = {
    "Horovod": {"worker": {"replicas": 2, "gpus": 2}},
    "TorchDistributed": {"worker": {"replicas": 3, "gpus": 2}},
    "ParameterServer": {
        "chief": {"replicas": 1}, "worker": {"replicas": 2}, "ps": {"replicas": 2}, "evaluator": {"replicas": 1},
    },
}  # fmt: skip


def job(strategy: str = "Horovod", **spec: Any) -> Job:
    given = {"artifacts": ARTIFACTS, "replicaSpecs": ROLES[strategy]} | spec
    return read_job(stored(strategy=strategy, **given))


def variables(container: Any) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in container["env"]}


# --- what pods are told ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "world", "told"),
    [
        ("Horovod", 4, ["launcher-0", "worker-0"]),
        ("TorchDistributed", 6, ["worker-0"]),
        ("ParameterServer", 3, ["chief-0"]),
    ],
)
def test_the_pods_that_write_the_history_are_told(strategy: str, world: int, told: list[str]) -> None:
    containers = [variables(trainer_container(pod)) for pod in plan_job(job(strategy)).pods]
    found = {
        PodInfo.from_json(env["DTJ_POD"]).name: History.from_json(env["DTJ_HISTORY"])
        for env in containers
        if "DTJ_HISTORY" in env
    }
    assert sorted(found) == told
    assert {(history.world, history.created) for history in found.values()} == {
        (world, "2026-11-21T12:00:00Z")
    }


@pytest.mark.parametrize(
    ("strategy", "workers", "gpus", "deciders"),
    [
        ("Horovod", 2, 4, "mnist-launcher-0"),
        ("TorchDistributed", 3, 6, "all 3 workers"),
        ("ParameterServer", 2, None, "mnist-chief-0"),
    ],
)
def test_a_pod_is_told_what_the_status_says_of_a_success(
    strategy: str, workers: int, gpus: int | None, deciders: str
) -> None:
    begun = job(strategy)
    later = begun.status.model_copy(update={"attempt": 2, "start_time": TIME})
    found = history_of(replace(begun, status=later))
    assert found is not None
    assert (found.workers, found.gpus) == (workers, gpus)
    assert (found.deciders, found.start) == (deciders, TIME)


def test_no_history_without_artifacts_or_before_the_job_is_stored() -> None:
    assert history_of(job(artifacts=None)) is None
    assert history_of(read_job(manifest(artifacts=ARTIFACTS))) is None


def test_the_digest_is_that_of_the_spec_alone() -> None:
    same, other = stored("other", artifacts=ARTIFACTS), stored(artifacts=ARTIFACTS, image="trainer:2")
    first = spec_digest(read_job(stored(artifacts=ARTIFACTS)))
    assert spec_digest(read_job(same)) == first != spec_digest(read_job(other))
    # jq --compact-output --sort-keys .spec job.json | tr --delete "\\n" | sha256sum
    assert first == "03b62a7964078469c3b382746b598be426ab5a2e398f2cf71127405f03e23f33"


def test_the_code_and_its_commit_are_told_and_no_branch_is_expanded() -> None:
    code = {"configMap": "mnist-code", "digest": f"sha256:{'5' * 64}", "entrypoint": "train.py"}
    asked = stored(artifacts=ARTIFACTS, code=code, command=[], args=[])
    asked["metadata"]["annotations"] = {
        "dtj.dev/git-commit": "1a" * 20,
        "dtj.dev/git-branch": "feature/$(HOME)",
        "dtj.dev/git-modified": "false",
        "dtj.dev/git-remote": "b" * 9_000,
    }
    coded = read_job(keep(asked))
    git = {"commit": "1a" * 20, "branch": "feature/$(HOME)", "modified": False}
    found = history_of(coded)
    assert found is not None
    assert found.code == {"digest": code["digest"], "git": git}
    container = trainer_container(plan_job(coded).pods[0])
    assert variables(container)["DTJ_CODE_COMMIT"] == "1a" * 20
    pod = record_pod(coded, failed(), [], TIME, "tensorboard:1")
    told = variables(pod["spec"]["containers"][0])["DTJ_HISTORY"]
    assert "$$(HOME)" in told
    assert History.from_json(told.replace("$$", "$")) == found
    assert pod["spec"]["volumes"][-1] == {
        "name": "dtj-code", "configMap": {"name": "mnist-code", "optional": True},
    }  # fmt: skip
    assert history_of(job()).code is None  # type: ignore[union-attr]  # the job keeps artifacts


# --- the record pod ----------------------------------------------------------------------------------


def failed(**fields: Any) -> JobStatus:
    failure = {"pod": "mnist-worker-1", "exitCode": 1, "lastLogLines": ["costs $(HOME) and $5"]}
    ended = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "lastTransitionTime": TIME}
    content = {
        "phase": "Failed",
        "attempt": 2,
        "sshSecret": "mnist-ssh-1",
        "conditions": [ended],
        "failure": failure,
    }
    content |= fields
    return JobStatus.model_validate(content)


def test_it_has_the_jobs_access_to_the_bucket_and_is_no_pod_of_the_job() -> None:
    env = [{"name": "AWS_REGION", "value": "eu-central-1"}, {"name": "WANDB_API_KEY", "value": "x"}]
    pods = [RecordedPod(name="mnist-worker-0", node="a"), RecordedPod(name="mnist-worker-1", node="b")]
    pod = record_pod(job(env=env), failed(), pods, TIME, "tensorboard:1")
    (container,) = pod["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "s3-credentials"}}]
    assert container["image"] == "tensorboard:1"
    told = variables(container)
    assert list(told) == [
        "DTJ_JOB", "DTJ_ARTIFACTS_URI", "DTJ_END", "DTJ_HISTORY", "AWS_ENDPOINT_URL_S3", "AWS_REGION",
    ]  # fmt: skip
    assert pod["metadata"]["labels"] == {
        "app.kubernetes.io/name": "dtj-record",
        "app.kubernetes.io/managed-by": "dtj-operator",
        "dtj.dev/record": "mnist",
    }
    # The kubelet makes one `$` of two, and expands `$(HOME)` otherwise.
    end = json.loads(told["DTJ_END"].replace("$$", "$"))
    assert end["status"]["failure"]["lastLogLines"] == ["costs $(HOME) and $5"]
    assert [each["name"] for each in end["pods"]] == ["mnist-worker-1", "mnist-worker-0"]
    assert "mnist-ssh-1" not in told["DTJ_END"]


def test_it_starts_where_the_jobs_own_pods_start() -> None:
    template = {
        "spec": {
            "tolerations": [{"key": "team", "operator": "Exists"}],
            "imagePullSecrets": [{"name": "registry"}],
            "serviceAccountName": "trainer",
        }
    }
    roles = {"worker": {"replicas": 1, "template": template}}
    pod = record_pod(
        job(replicaSpecs=roles, artifacts={"uri": "s3://training/jobs"}), failed(), [], TIME, "i"
    )
    assert pod["spec"]["tolerations"][0] == {"key": "team", "operator": "Exists"}
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["spec"]["serviceAccountName"] == "trainer"
    assert "envFrom" not in pod["spec"]["containers"][0]


FITTING = {
    "metadata": {
        "labels": {"team": "ml", "dtj.dev/role": "x", "kueue.x-k8s.io/queue-name": "gpus"},
        "annotations": {"sidecar.istio.io/inject": "false", "scheduling.volcano.sh/group-name": "g"},
    },
    "spec": {
        "nodeSelector": {"pool": "ml"},
        "affinity": {"nodeAffinity": {"x": 1}, "podAntiAffinity": {"y": 1}},
        "containers": [{"name": "trainer", "resources": {"limits": {"ephemeral-storage": "5Mi"}}}],
    },
}


@pytest.mark.parametrize("gpus", [0, 2])
def test_it_has_what_a_policy_or_a_quota_demands_of_the_jobs_own_pods(gpus: int) -> None:
    limits = {"cpu": "200m", "memory": "4Gi"}
    worker = {"replicas": 1, "gpus": gpus, "template": FITTING, "resources": {"limits": limits}}
    pod = record_pod(job("TorchDistributed", replicaSpecs={"worker": worker}), failed(), [], TIME, "i")
    assert pod["metadata"]["labels"]["team"] == "ml"
    assert not {"dtj.dev/role", "kueue.x-k8s.io/queue-name"} & pod["metadata"]["labels"].keys()
    assert pod["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}
    assert pod["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "ml"}
    assert pod["spec"]["affinity"] == {"nodeAffinity": {"x": 1}}
    taint = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert (taint in pod["spec"]["tolerations"]) is bool(gpus)
    assert pod["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "50m", "memory": "128Mi"},
        "limits": {"cpu": "200m", "memory": "256Mi", "ephemeral-storage": "5Mi"},
    }
    plain = record_pod(job("TorchDistributed"), failed(), [], TIME, "i")
    assert plain["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "256Mi"},
    }  # fmt: skip


@pytest.mark.parametrize("value", [None, 5, "x", [1], {"a": 1}, {"labels": 5, "spec": 5}, [{"name": 5}]])
def test_templates_of_any_form_are_borne(value: Any) -> None:
    for template in ({"metadata": value, "spec": value}, {"metadata": {"labels": value}, "spec": {
        "nodeSelector": value, "affinity": value, "containers": value, "tolerations": value,
    }}, {"spec": {"containers": [{"name": "trainer", "resources": {"limits": value}}]}}):  # fmt: skip
        made = job("TorchDistributed", replicaSpecs={"worker": {"gpus": 1, "template": template}})
        assert (
            record_pod(made, failed(), [], TIME, "i")["spec"]["nodeSelector"]["kubernetes.io/os"] == "linux"
        )


def test_a_default_launcher_fits_a_quota_of_limits() -> None:
    worker = {"replicas": 1, "resources": {"limits": {"cpu": "4", "memory": "4Gi"}}}
    found = {}
    for limited in (True, False):
        roles = {"worker": worker if limited else {"replicas": 1}}
        pods = plan_job(job(replicaSpecs=roles)).pods
        found[limited] = trainer_container(pods[-1])["resources"]["limits"]
    assert found == {True: {"memory": "1Gi", "cpu": "2"}, False: {"memory": "1Gi"}}


def test_a_role_without_pods_says_nothing_of_where_pods_start() -> None:
    spec = {"imagePullSecrets": [{"name": "old"}], "serviceAccountName": "old"}
    roles = {"chief": {"replicas": 0, "template": {"spec": spec}}, "worker": {}, "ps": {}}
    servers = job("ParameterServer", replicaSpecs=roles, artifacts={"uri": "s3://training/jobs"})
    pod = record_pod(servers, failed(), [], TIME, "i")
    assert not {"imagePullSecrets", "serviceAccountName"} & pod["spec"].keys()


def test_each_job_with_faults_that_can_be_read_has_one_too() -> None:
    read = 0
    for path in sorted((Path(__file__).parents[2] / "bad_jobs").glob("*.yaml")):
        bad = yaml.safe_load(path.read_text())
        if not isinstance(bad.get("spec"), dict):
            continue
        bad["spec"]["artifacts"] = ARTIFACTS
        found, _ = check({**bad, "metadata": stored()["metadata"]})
        if found is not None:
            read += 1
            pod = record_pod(found, failed(), [], TIME, "tensorboard:1")
            History.from_json(variables(pod["spec"]["containers"][0])["DTJ_HISTORY"])
    assert read > 60


def test_a_status_of_thousands_of_pods_fits() -> None:
    names = [f"mnist-worker-{index}" for index in range(5000)]
    pods = [RecordedPod(name=name, node=f"node-{name}") for name in names]
    status = failed(
        replicaAttempts=dict.fromkeys(names, 3), failure={"pod": names[-1], "lastLogLines": ["x"]}
    )
    end = end_record_of(job(), status, pods, TIME)
    cut = fitted(end)
    assert len(json.dumps(cut)) <= END_BYTES < len(json.dumps(end))
    assert cut["pods"][0]["name"] == names[-1]
    assert len(cut["pods"]) + cut["podsLeftOut"] == 5000
    assert "replicaAttempts" not in cut["status"]
    assert cut["status"]["failure"]["lastLogLines"] == ["x"]


def test_long_lines_fit() -> None:
    condition = Condition(
        type="Failed", status="True", reason="X", message="é" * 1024, last_transition_time=TIME
    )
    status = failed(failure={"message": "é" * 4096, "lastLogLines": ["é" * 1024] * 20})
    status = status.model_copy(update={"conditions": Conditions([condition] * 9)})
    cut = fitted(end_record_of(job(), status, [], TIME), 16_000)
    assert len(json.dumps(cut, ensure_ascii=False).encode()) <= 30_000
    assert len(cut["status"]["failure"]["lastLogLines"]) == 20

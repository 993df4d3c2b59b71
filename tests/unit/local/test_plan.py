"""The plan for one machine: the same environment as on a cluster, except addresses.

* the environment of each replica, TF_CONFIG and progress ports
* workspaces, config folders and references to variables
* GPUs, Secrets, ssh and sidecars
* how often `dtj run` renders each pod
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from dtj.api.job import Job, Manifest, read_job
from dtj.local import runner
from dtj.local.plan import (
    Place,
    container_ports,
    left_out,
    local_plan,
    missing_variables,
)
from dtj.local.pod import LocalPod
from dtj.plan import pods
from dtj.plan.job import plan_job
from dtj.plan.model import Plan
from dtj.plan.pods import trainer_container
from tests.unit.support.jobs import job
from tests.unit.support.pods import kubelet_environment

EXAMPLES = Path(__file__).parents[3] / "manifests/examples"
RUN = Path("/home/me/dtj/runs/default/x")
STORE = {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9000", "AWS_ACCESS_KEY_ID": "me", "AWS_REGION": "us-east-1"}
# What docs/local.md says of the environment on this machine.
OF_THE_PLACE = {
    "DTJ_ROOT",
    "DTJ_CONFIG_DIR",
    "DTJ_TERMINATION_LOG",
    "DTJ_PROGRESS_PORT",
    "DTJ_LOCAL_WORKERS",
    "DTJ_ROOT_VARIABLES",
    "DTJ_LOCAL_RUN",
    "DTJ_RESTORE_PEERS",
    "CUDA_VISIBLE_DEVICES",
    *STORE,
}


def example(name: str) -> Job:
    manifest: Manifest = yaml.safe_load((EXAMPLES / name).read_text())
    manifest["metadata"]["uid"] = "5b6a1f0e-8f6d-4c53-9d0f-2a1b3c4d5e6f"
    return read_job(manifest)


def place(plan: Plan, **given: Any) -> Place:
    ports = {wanted: 20000 + number for number, wanted in enumerate(container_ports(plan))}
    return Place(**{"run": RUN, "mark": "r1", "ports": ports, "environment": STORE, **given})


def environments(plan: Plan) -> dict[str, dict[str, str]]:
    return {
        pod["metadata"]["name"]: kubelet_environment(trainer_container(pod), plan.config) for pod in plan.pods
    }


def of(plan: Plan, name: str) -> Manifest:
    return trainer_container(next(pod for pod in plan.pods if pod["metadata"]["name"] == name))


@pytest.mark.parametrize(
    "name", ["fashion-mnist-horovod.yaml", "fashion-mnist-ps.yaml", "fashion-mnist-ddp.yaml"]
)
def test_every_replica_has_the_environment_of_the_cluster_but_for_its_place(name: str) -> None:
    plan = plan_job(example(name))
    there, here = environments(plan), environments(local_plan(plan, place(plan)))
    assert there.keys() == here.keys()
    for pod, environment in there.items():
        of_ssh = {v for v in environment if v.startswith(("OMPI_MCA_orte_", "OMPI_MCA_plm_", "PRTE_MCA_"))}
        assert bool(of_ssh) == pod.endswith("-launcher-0")
        assert environment.keys() - here[pod].keys() == of_ssh
        assert here[pod].keys() - environment.keys() <= OF_THE_PLACE
        moved = {v for v in environment.keys() & here[pod].keys() if environment[v] != here[pod][v]}
        assert moved <= {"DTJ_PROGRESS_PORT", "TF_CONFIG", "DTJ_TF_CLUSTER"} | {
            "DTJ_START_BARRIER", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE",
            "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_RDZV_ENDPOINT",
        }  # fmt: skip


def test_tf_config_is_the_same_but_for_addresses_that_each_replica_has_for_itself() -> None:
    plan = plan_job(example("fashion-mnist-ps.yaml"))
    there, here = environments(plan), environments(local_plan(plan, place(plan)))
    for pod in there:
        cluster, local = json.loads(there[pod]["TF_CONFIG"]), json.loads(here[pod]["TF_CONFIG"])
        assert cluster["task"] == local["task"]
        hosts = [host for role in cluster["cluster"] for host in local["cluster"][role]]
        assert {role: len(hosts) for role, hosts in cluster["cluster"].items()} == {
            role: len(hosts) for role, hosts in local["cluster"].items()
        }
        assert len(set(hosts)) == len(hosts)
        assert all(host.startswith("127.0.0.1:2") for host in hosts)
    worker = json.loads(here["fashion-mnist-ps-worker-1"]["TF_CONFIG"])["cluster"]["worker"][1]
    probe = of(local_plan(plan, place(plan)), "fashion-mnist-ps-worker-1")["readinessProbe"]
    assert worker == f"127.0.0.1:{probe['tcpSocket']['port']}"


def test_each_replica_serves_its_progress_on_a_port_of_its_own() -> None:
    plan = plan_job(example("fashion-mnist-ps.yaml"))
    ports = [e["DTJ_PROGRESS_PORT"] for e in environments(local_plan(plan, place(plan))).values()]
    assert len(set(ports)) == len(ports) == 5


def test_the_config_folder_is_that_of_the_run_and_the_workspace_is_left_to_dtj_launch() -> None:
    words = (
        "python",
        "t.py",
        "--hosts=/etc/dtj/hostfile",
        "/etc/dtjx",
        "--model_dir=/dtj/checkpoints",
        "/dtj/data",
        "tcp://mnist-worker-0.mnist:80",
        "mnist-worker-0.mnist.other.svc mnist-ps-0.mnist.ml mnist-ps-0.mnist.ml.svc mnist-ps-0.mnist2",
    )
    plan = plan_job(
        job(
            strategy="ParameterServer",
            command=[*words],
            env=[{"name": "OUT", "value": "/dtj/model"}],
            replicaSpecs={"worker": {}, "ps": {}},
        )
    )
    here = local_plan(plan, place(plan))
    assert of(here, "mnist-worker-0")["command"] == [
        "/bin/sh",
        f"{RUN}/config/start.sh",
        *("python", "t.py", f"--hosts={RUN}/config/hostfile", "/etc/dtjx"),
        *("--model_dir=/dtj/checkpoints", "/dtj/data", "tcp://127.0.0.1:80"),
        "mnist-worker-0.mnist.other.svc 127.0.0.1 127.0.0.1 mnist-ps-0.mnist2",
    ]
    chief = environments(here)["mnist-chief-0"]
    assert (chief["OUT"], chief["DTJ_ROOT_VARIABLES"]) == ("/dtj/model", "OUT")


def test_a_command_of_a_template_gets_the_workspace_of_its_replica_and_an_mpirun_that_of_rank_0() -> None:
    own = {"spec": {"containers": [{"name": "trainer", "command": ["bash", "-c", "train --out=/dtj/model"]}]}}
    plan = plan_job(
        job(replicaSpecs={"worker": {"replicas": 2, "template": own}, "launcher": {"template": own}})
    )
    here = local_plan(plan, place(plan))
    for pod, root in (("launcher-0", "worker-0"), ("worker-0", "worker-0"), ("worker-1", "worker-1")):
        words = ["dtj-launch", "command", "--", "bash", "-c", "train --out=/dtj/model"]
        assert of(here, f"mnist-{pod}")["command"][:6] == words
        environment = environments(here)[f"mnist-{pod}"]
        assert environment["DTJ_ROOT"] == f"{RUN}/{root}"
        assert environment["DTJ_TERMINATION_LOG"] == f"{RUN}/{pod}/termination.json"


def test_references_to_variables_are_replaced_as_the_kubelet_does() -> None:
    plan = plan_job(
        job(command=["run", "$(DTJ_JOB)-$(NONE)-$$(DTJ_JOB)"], env=[{"name": "A", "value": "$(DTJ_JOB)"}])
    )
    here = local_plan(plan, place(plan))
    assert of(here, "mnist-launcher-0")["command"][-1] == "mnist-$(NONE)-$(DTJ_JOB)"
    assert environments(here)["mnist-launcher-0"]["A"] == "mnist"


def test_an_address_of_the_spec_that_names_a_pod_is_on_this_machine() -> None:
    plan = plan_job(
        job(
            artifacts={"uri": "s3://bucket/jobs"},
            tracking={"mlflow": {"uri": "http://mnist-worker-0.mnist:5000"}},
        )
    )
    here = local_plan(plan, place(plan))
    assert environments(here)["mnist-worker-0"]["DTJ_TRACKING_URI"] == "http://127.0.0.1:5000"


def test_dtjs_own_start_script_in_a_template_is_not_a_command_of_the_user() -> None:
    own = {"spec": {"containers": [{"name": "trainer", "command": ["/bin/sh", "/etc/dtj/start.sh"]}]}}
    plan = plan_job(job(replicaSpecs={"worker": {"replicas": 2, "template": own}}))
    assert plan.shape.next_stage_on_running
    assert of(local_plan(plan, place(plan)), "mnist-worker-0")["command"] == [
        "/bin/sh",
        f"{RUN}/config/start.sh",
    ]


def test_a_horovod_job_needs_no_ssh() -> None:
    plan = plan_job(job())
    here = local_plan(plan, place(plan))
    assert here.ssh_secret is None
    assert of(here, "mnist-worker-0")["readinessProbe"]["exec"]["command"][-1] == "run/supervisor.sock"
    assert {e["DTJ_LOCAL_WORKERS"] for e in environments(here).values()} == {f"{RUN}/worker-"}


def test_a_variable_of_a_secret_comes_from_this_environment_or_is_missing() -> None:
    source = {"secretKeyRef": {"name": "s", "key": "k"}}
    plan = plan_job(
        job(
            env=[
                {"name": "TOKEN", "valueFrom": source},
                {"name": "MORE", "valueFrom": {"secretKeyRef": {**source["secretKeyRef"], "optional": True}}},
            ]
        )
    )
    assert missing_variables(plan, {}) == ["TOKEN"]
    assert missing_variables(plan, {"TOKEN": "x"}) == []
    made = environments(local_plan(plan, place(plan, secrets={"TOKEN": "x"})))["mnist-worker-0"]
    assert made["TOKEN"] == "x"
    assert "MORE" not in made


def test_only_replicas_with_gpus_see_them() -> None:
    plan = plan_job(job())
    here = environments(local_plan(plan, place(plan, gpus={"mnist-worker-1": ["2", "3"]})))
    assert here["mnist-worker-1"]["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert here["mnist-worker-0"]["CUDA_VISIBLE_DEVICES"] == ""


def test_a_cache_of_the_cluster_is_left_out_and_told_of() -> None:
    data = {"uri": "s3://datasets/fruits", "cache": {"size": "10Gi", "emptyDir": {}}}
    plan = plan_job(job(data=data))
    assert left_out(plan) == [
        "spec.data.cache is for a cluster; on this machine, use --data-cache FOLDER of the built-in programs"
    ]
    here = environments(local_plan(plan, place(plan)))["mnist-worker-0"]
    assert here["DTJ_DATA_URI"] == "s3://datasets/fruits"
    assert [name for name in here if "DATA_CACHE" in name] == []


def test_a_sidecar_is_told_of() -> None:
    sidecar = {"spec": {"containers": [{"name": "proxy", "image": "p"}]}}
    plan = plan_job(job(replicaSpecs={"worker": {"replicas": 2, "template": sidecar}}))
    assert left_out(plan) == ["container proxy of the template does not run on this machine"]
    assert [c["name"] for c in local_plan(plan, place(plan)).pods[0]["spec"]["containers"]] == ["trainer"]


@pytest.mark.parametrize("workers", [2, 32])
def test_a_run_plans_once_and_renders_each_pod_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    calls = Counter[str]()
    at_first: dict[str, int] = {}
    started: list[str] = []

    def count(module: object, name: str) -> None:
        function = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args: (calls.update([name]), function(*args))[1])

    def start(pod: LocalPod, environment: object) -> None:
        at_first.update({} if started else calls)
        started.append(pod.name)

    async def until_all_started(drive: object) -> None:
        while len(started) < workers:
            await asyncio.sleep(0.01)

    for module, name in ((runner, "plan_without_gang"), (pods, "complete"), (pods, "replica_pod")):
        count(module, name)
    monkeypatch.setattr(LocalPod, "_start", start)
    monkeypatch.setattr(runner._Drive, "_to_the_end", until_all_started)
    runner.run_job(
        job(strategy="TorchDistributed", replicaSpecs={"worker": {"replicas": workers}}, artifacts=None),
        Mock(),
        home=tmp_path,
    )
    assert sorted(started) == sorted(f"mnist-worker-{index}" for index in range(workers))
    assert at_first == calls == {"plan_without_gang": 1, "complete": workers}

"""Properties of every plan. The expected objects of plans are in tests/golden.

* users, node selectors and templates
* invariants of random plans
* accelerators, slots, artifacts and the job's file
* the private key of ssh
* pod security
* when the launcher is created
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtj.api.job import Job, Manifest, read_job
from dtj.api.names import LABEL_LENGTH
from dtj.api.validation import faults
from dtj.operator_flags import read_flags
from dtj.plan.horovod import ssh_secret, sshd_config
from dtj.plan.job import plan_job
from dtj_trainer.contract import PodInfo
from tests.unit.support.jobs import UID, job, manifest
from tests.unit.support.pod_security import restricted_faults

LABEL_TEXT = "abcdefghijklmnopqrstuvwxyz0123456789-"
NAMES = st.text(LABEL_TEXT, min_size=1, max_size=51).map(lambda text: f"a{text}".rstrip("-"))


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    worker: Manifest = {"replicas": draw(st.integers(1, 12)), "gpus": draw(st.integers(0, 8))}
    roles: Manifest = {"worker": worker}
    if draw(st.booleans()):
        worker["template"] = {
            "metadata": {"labels": {"team": "vision"}},
            "spec": {
                "containers": [{"name": "trainer", "tty": True}, {"name": "sidecar", "image": "x"}],
                "initContainers": [{"name": "init", "image": "x"}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            },
        }
    if draw(st.booleans()):
        roles["launcher"] = {"resources": {"limits": {"memory": "2Gi"}}}
    spec: Manifest = {"replicaSpecs": roles}
    if draw(st.booleans()):
        spec["horovod"] = {"slotsPerWorker": draw(st.integers(1, 8))}
    if draw(st.booleans()):
        spec["artifacts"] = {"uri": "s3://bucket/jobs", "secretName": "s3"}
    made = job(draw(NAMES), **spec)
    assert faults(made) == []
    return made


@pytest.mark.parametrize("strategy", ["Horovod", "TorchDistributed"])
def test_pods_that_restore_know_each_others_hosts_in_a_form_of_one_size(strategy: str) -> None:
    spec: Manifest = {"strategy": strategy, "replicaSpecs": {"worker": {"replicas": 5000}}}
    made = job(**spec, artifacts={"uri": "s3://bucket/jobs", "secretName": "s3"})
    plan = plan_job(made)
    texts = [environment(pod)["DTJ_POD"] for pod in (plan.pod(each) for each in plan.shape.replicas[-3:])]
    assert max(map(len, texts)) < 300
    infos = [PodInfo.from_json(text) for text in texts if "peers" in text]
    assert infos
    for info in infos:
        assert info.peers
        assert info.peers.count == 5000
        assert info.peers.number_of("worker", info.index) == info.index
        assert info.peers.host_of(4999) == f"{made.name}-worker-4999.{made.domain}"


def test_recreated_pods_without_artifacts_and_single_pods_have_no_peers() -> None:
    artifacts = {"uri": "s3://bucket/jobs", "secretName": "s3"}
    for made in (
        job(replicaSpecs={"worker": {"replicas": 2}}, runPolicy={"restartStrategy": "Recreate"}),
        job(replicaSpecs={"worker": {"replicas": 1}}, artifacts=artifacts),
    ):
        assert all("peers" not in environment(pod)["DTJ_POD"] for pod in plan_job(made).pods)


def environment(pod: Manifest) -> dict[str, Any]:
    return {entry["name"]: entry.get("value") for entry in trainer(pod)["env"]}


def trainer(pod: Manifest) -> Manifest:
    found: Manifest = next(c for c in pod["spec"]["containers"] if c["name"] == "trainer")
    return found


def of_role(pods: tuple[Manifest, ...], role: str) -> list[Manifest]:
    return [pod for pod in pods if pod["metadata"]["labels"]["dtj.dev/role"] == role]


PLACES: dict[str, dict[str, Any]] = {
    "horovod": {"tensorboard": {"enabled": True}},
    "parameter-server": {"strategy": "ParameterServer", "replicaSpecs": {"worker": {}, "ps": {}}},
    "torch": {"strategy": "TorchDistributed", "replicaSpecs": {"worker": {"replicas": 3}}},
    "mpijob": {"horovod": {"launcher": "MPIJob"}},
}


@pytest.mark.parametrize("spec", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("user", [None, 2000])
def test_the_operator_may_give_pods_another_user_or_leave_that_to_the_cluster(
    spec: dict[str, Any], user: int | None
) -> None:
    plan = plan_job(job(**spec), pod_user=user)
    specs = [pod["spec"] for pod in plan.pods]
    if plan.mpijob:
        replicas = plan.mpijob["spec"]["mpiReplicaSpecs"].values()
        specs += [replica["template"]["spec"] for replica in replicas]
    if plan.tensorboard:
        specs.append(plan.tensorboard.deployment["spec"]["template"]["spec"])
    assert len(specs) >= 3
    for each in specs:
        own = each["securityContext"]
        assert own["runAsNonRoot"] is True
        named = {key: own.get(key) for key in ("runAsUser", "runAsGroup", "fsGroup")}
        assert set(named.values()) == {user}
        assert list(restricted_faults({"spec": each, "metadata": {}})) == []


def test_a_template_names_its_user_whatever_the_operator_says() -> None:
    template = {"spec": {"securityContext": {"runAsUser": 1000}}}
    plan = plan_job(job(replicaSpecs={"worker": {"template": template}}), pod_user=None)
    (worker,) = of_role(plan.pods, "worker")
    assert worker["spec"]["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_the_flag_of_jobs_user_is_a_uid_or_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert [read_flags(words).job_user for words in ([], ["--job-user=7"], ["--job-user=none"])] == [
        1000,
        7,
        None,
    ]
    for wrong in ("0", "-1", "root", "2147483648"):
        with pytest.raises(SystemExit):
            read_flags([f"--job-user={wrong}"])
        assert f"must be a uid of at least 1, or none, got {wrong}" in capsys.readouterr().err


def test_pods_go_to_nodes_with_linux_unless_a_template_says_otherwise() -> None:
    given = {"worker": {"replicas": 1, "gpus": 1}}
    accelerator = {"nodeSelector": {"gpu": "h200"}}
    plan = plan_job(job(replicaSpecs=given, accelerator=accelerator, tensorboard={"enabled": True}))
    (worker,), (launcher,) = of_role(plan.pods, "worker"), of_role(plan.pods, "launcher")
    assert worker["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux", "gpu": "h200"}
    assert launcher["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert plan.tensorboard is not None
    board = plan.tensorboard.deployment["spec"]["template"]["spec"]
    assert board["nodeSelector"] == {"kubernetes.io/os": "linux"}

    template = {"spec": {"nodeSelector": {"kubernetes.io/os": None, "kubernetes.io/arch": "arm64"}}}
    (worker,) = of_role(plan_job(job(replicaSpecs={"worker": {"template": template}})).pods, "worker")
    assert worker["spec"]["nodeSelector"] == {"kubernetes.io/arch": "arm64"}


@settings(max_examples=60)
@given(jobs(), st.integers(1, 30))
def test_invariants_of_every_plan(made: Job, attempt: int) -> None:
    made = replace(made, status=made.status.model_copy(update={"attempt": attempt}))
    plan = plan_job(made)
    objects = [plan.service, plan.config, *plan.pods]
    workers, launchers = of_role(plan.pods, "worker"), of_role(plan.pods, "launcher")
    spec = made.spec.replica_specs.worker
    assert spec is not None

    # Names are DNS labels, each its own.
    names = [(entry["kind"], entry["metadata"]["name"]) for entry in objects]
    assert len(set(names)) == len(names)
    for pod in plan.pods:
        assert len(pod["metadata"]["name"]) <= LABEL_LENGTH
        assert pod["spec"]["hostname"] == pod["metadata"]["name"]
        assert pod["spec"]["subdomain"] == plan.service["metadata"]["name"]

    # All of it goes with the job, and is found by its labels.
    for entry in objects:
        (owner,) = entry["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["name"]) == (UID, True, made.name)
        assert owner["blockOwnerDeletion"], "a deletion in the foreground waits for it"
        assert entry["metadata"]["labels"].items() >= plan.service["spec"]["selector"].items()
    for pod in plan.pods:
        assert pod["metadata"]["labels"]["dtj.dev/attempt"] == str(attempt)
        assert environment(pod)["DTJ_ATTEMPT"] == str(attempt)

    # Every rank has its place.
    assert len(workers) == spec.replicas
    slots = [int(line.split(" slots=")[1]) for line in plan.config["data"]["hostfile"].splitlines()]
    assert len(slots) == spec.replicas
    for pod in plan.pods:
        assert environment(pod)["DTJ_WORLD_SIZE"] == str(sum(slots))
        assert {environment(pod)["DTJ_SLOTS_PER_WORKER"]} == {str(n) for n in slots}
    hosts = [line.split(".")[0] for line in plan.config["data"]["hostfile"].splitlines()]
    assert hosts == [pod["metadata"]["name"] for pod in workers]

    # Each pod is told what it is: worker 0 uploads what training gives, and every worker restores.
    infos = [PodInfo.from_json(environment(pod)["DTJ_POD"]) for pod in [*workers, *launchers]]
    for pod, info in zip([*workers, *launchers], infos, strict=True):
        assert (info.role, str(info.index)) == (environment(pod)["DTJ_ROLE"], environment(pod)["DTJ_INDEX"])
    assert [rank for info in infos for rank in info.ranks] == list(range(sum(slots)))
    assert [info.uploads for info in infos] == ["primary", *["other"] * spec.replicas]
    of_workers, of_launchers = [True] * spec.replicas, [False]
    assert [info.restores for info in infos] == [info.reads_data for info in infos]
    assert [info.restores for info in infos] == of_workers + of_launchers

    # The launcher comes last, alone decides, and has what both versions of Open MPI read.
    assert plan.shape.stage_names == [
        [pod["metadata"]["name"] for pod in stage] for stage in (workers, launchers)
    ]
    assert plan.shape.decisive == (launchers[0]["metadata"]["name"],)
    assert plan.shape.reporter == workers[0]["metadata"]["name"]
    settings_of_mpi = environment(launchers[0])
    for prefix in ("OMPI_MCA_orte", "PRTE_MCA_prte"):
        assert settings_of_mpi[f"{prefix}_default_hostfile"] == "/etc/dtj/hostfile"
        assert settings_of_mpi[f"{prefix}_keep_fqdn_hostnames"] == "true"
    assert settings_of_mpi["OMPI_MCA_plm_rsh_args"] == settings_of_mpi["PRTE_MCA_plm_ssh_args"]

    # Accelerators are the workers' only, and the nodes' taint is tolerated.
    for pod in workers:
        limits = trainer(pod)["resources"].get("limits", {})
        assert limits.get("nvidia.com/gpu", 0) == spec.gpus
        taints = {toleration["key"] for toleration in pod["spec"]["tolerations"]}
        assert ("nvidia.com/gpu" in taints) == bool(spec.gpus)
    assert "nvidia.com/gpu" not in json.dumps(launchers[0]["spec"]["containers"][0]["resources"])
    assert settings_of_mpi["NVIDIA_VISIBLE_DEVICES"] == "void"

    # Safe, plain data, the same each time.
    for pod in plan.pods:
        assert list(restricted_faults(pod)) == []
        assert pod["spec"]["automountServiceAccountToken"] is False
        mounted = {mount["name"] for c in pod["spec"]["containers"] for mount in c.get("volumeMounts", [])}
        assert mounted <= {volume["name"] for volume in pod["spec"]["volumes"]}
    assert json.loads(json.dumps(objects)) == objects
    assert plan_job(made) == plan


def test_service_gives_names_to_pods_that_are_not_ready() -> None:
    service = plan_job(job()).service

    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True


@pytest.mark.parametrize(
    ("worker", "told"),
    [
        ({"gpus": 4}, {"DTJ_GPUS": "4", "DTJ_GPU_RESOURCE": "amd.com/gpu"}),
        (
            {"resources": {"limits": {"amd.com/gpu": 2}}},
            {"DTJ_GPUS": "2", "DTJ_GPU_RESOURCE": "amd.com/gpu"},
        ),
        (
            {"resources": {"limits": {"amd.com/gpu": "2"}}},
            {"DTJ_GPUS": "2", "DTJ_GPU_RESOURCE": "amd.com/gpu"},
        ),
        ({"resources": {"limits": {"amd.com/gpu": 0}}}, {}),
        ({"resources": {"limits": {"nvidia.com/gpu": 2}}}, {}),
        ({"gpus": 0}, {}),
    ],
)
@pytest.mark.parametrize("launcher", ["Native", "MPIJob"])
def test_a_replica_is_told_of_the_accelerators_it_asked_for(
    worker: Manifest, told: dict[str, str], launcher: str
) -> None:
    made = job(
        accelerator={"resourceName": "amd.com/gpu"},
        horovod={"launcher": launcher},
        replicaSpecs={"worker": {"replicas": 1, **worker}},
    )
    plan = plan_job(made)
    pods = {pod["metadata"]["labels"]["dtj.dev/role"]: pod["spec"] for pod in plan.pods}
    if plan.mpijob:
        replicas = plan.mpijob["spec"]["mpiReplicaSpecs"]
        pods = {role.lower(): replica["template"]["spec"] for role, replica in replicas.items()}
    found = {
        role: {v["name"]: v.get("value") for v in spec["containers"][0]["env"] if "DTJ_GPU" in v["name"]}
        for role, spec in pods.items()
    }
    assert found == {"worker": told, "launcher": {}}


def test_a_job_may_switch_the_check_of_its_accelerators_off() -> None:
    made = job(env=[{"name": "DTJ_GPUS", "value": "0"}], replicaSpecs={"worker": {"replicas": 1, "gpus": 1}})
    assert faults(made) == []
    (worker,) = (pod for pod in plan_job(made).pods if pod["metadata"]["labels"]["dtj.dev/role"] == "worker")
    values = [v["value"] for v in worker["spec"]["containers"][0]["env"] if v["name"] == "DTJ_GPUS"]
    assert values == ["1", "0"], "the last one holds"


def test_slots_are_the_gpus_of_a_worker_unless_said_otherwise() -> None:
    def slots(**spec: Any) -> str:
        roles = {"worker": {"replicas": 1, "gpus": 4}}
        return plan_job(job(replicaSpecs=roles, **spec)).config["data"]["hostfile"].split("=")[1].strip()

    assert slots() == "4"
    assert slots(horovod={"slotsPerWorker": 2}) == "2"
    assert slots(horovod={}) == "4"


@pytest.mark.parametrize(
    ("artifacts", "resume"),
    [
        ({}, "Auto"),
        ({"resume": "Never"}, "Never"),
        ({"resume": "FromURI", "resumeUri": "s3://bucket/other"}, "s3://bucket/other"),
    ],
)
def test_artifacts_become_environment(artifacts: Manifest, resume: str) -> None:
    made = job(artifacts={"uri": "s3://bucket/jobs/", "endpoint": "http://s3:9000", **artifacts})

    for pod in plan_job(made).pods:
        assert environment(pod)["DTJ_ARTIFACTS_URI"] == "s3://bucket/jobs/ml/mnist-5b6a1f0e"
        assert environment(pod)["AWS_ENDPOINT_URL_S3"] == "http://s3:9000"
        assert environment(pod)["DTJ_RESUME"] == resume


def test_without_artifacts_nothing_is_said_of_them() -> None:
    for pod in plan_job(job()).pods:
        assert "DTJ_ARTIFACTS_URI" not in environment(pod)
        assert "envFrom" not in trainer(pod)


def test_the_jobs_file_is_what_its_author_wrote() -> None:
    stored = manifest(artifacts={"uri": "s3://bucket/x"})

    text = plan_job(read_job(stored)).config["data"]["job.yaml"]

    assert "uri: s3://bucket/x" in text
    assert "backoffLimit" not in text
    assert UID not in text


def test_a_variable_of_the_user_comes_after_the_operators() -> None:
    made = job(env=[{"name": "PYTHONUNBUFFERED", "value": "0"}])

    (pod, *_) = plan_job(made).pods

    assert [e["value"] for e in trainer(pod)["env"] if e["name"] == "PYTHONUNBUFFERED"][-1] == "0"


def test_the_private_key_is_in_the_secret_and_nowhere_else() -> None:
    made = job()

    secret = ssh_secret(made, "PRIVATE", "ssh-ed25519 AAAA")

    assert secret["stringData"]["ssh_key"] == "PRIVATE"
    assert secret["immutable"] is True
    assert secret["metadata"]["name"] == plan_job(made).ssh_secret
    assert secret["metadata"]["ownerReferences"][0]["uid"] == UID


def test_the_private_key_is_for_the_pods_user_and_group_alone_wherever_it_is_mounted() -> None:
    for pod in plan_job(job()).pods:
        (volume,) = (v["secret"] for v in pod["spec"]["volumes"] if "secret" in v)
        # Kubernetes' own default is 0644, which ssh refuses; a key that is its user's own may be shared with nobody.
        assert volume["defaultMode"] == 0o440
        assert pod["spec"]["securityContext"]["fsGroup"] == pod["spec"]["securityContext"]["runAsGroup"]
    # Of the folder of the key, which others may write, sshd asks nothing; nor of PAM, which only root may use.
    for line in ("StrictModes no\n", "UsePAM no\n"):
        assert line in sshd_config("key")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"hostNetwork": True}, "hostNetwork"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "volume v is a hostPath"),
        ({"securityContext": {}}, "containers[c]: runAsNonRoot is not true"),
        ({"securityContext": {"runAsNonRoot": True}}, "containers[c]: seccompProfile is not"),
        ({"containers": [{"name": "c"}]}, "containers[c]: capabilities do not drop ALL"),
        ({"initContainers": [{"name": "i"}]}, "initContainers[i]: allowPrivilegeEscalation is not false"),
    ],
)
def test_the_checker_of_pod_security_finds_what_the_standard_forbids(change: Manifest, fault: str) -> None:
    safe = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    spec: Manifest = {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "c", "securityContext": safe}],
    }
    assert list(restricted_faults({"spec": spec})) == []

    assert any(found.startswith(fault) for found in restricted_faults({"spec": spec | change}))


@pytest.mark.parametrize(
    ("container", "at_once"),
    [
        ({"tty": True}, True),
        ({"command": ["prepare-for-an-hour-and-start"]}, False),
        ({"readinessProbe": {"exec": {"command": ["test", "-e", "/prepared"]}}}, False),
    ],
)
def test_a_launcher_comes_early_only_where_nothing_is_before_the_workers_sshd(
    container: Manifest, at_once: bool
) -> None:
    template = {"spec": {"containers": [{"name": "trainer", **container}]}}

    plan = plan_job(job("mnist", replicaSpecs={"worker": {"replicas": 2, "template": template}}))

    assert plan.shape.next_stage_on_running is at_once


def test_a_launcher_with_a_command_of_its_own_comes_when_the_workers_are_ready() -> None:
    own = {"spec": {"containers": [{"name": "trainer", "command": ["mpirun", "python", "train.py"]}]}}

    plan = plan_job(job("mnist", replicaSpecs={"worker": {"replicas": 2}, "launcher": {"template": own}}))

    assert not plan.shape.next_stage_on_running
    environments = [
        {variable["name"] for variable in pod["spec"]["containers"][0]["env"]} for pod in plan.pods
    ]
    assert ["DTJ_SSH_AFTER_RESTORE" in names for names in environments] == [True, True, False]


def test_the_agents_of_a_job_that_restarts_in_place_join_that_of_the_launcher() -> None:
    place = "mnist-launcher-0.mnist.ml.svc:8475"
    plan = plan_job(job())
    assert {environment(pod)["DTJ_START_BARRIER"] for pod in plan.pods} == {place}
    opened = {
        pod["metadata"]["name"]: [port["containerPort"] for port in trainer(pod).get("ports", [])]
        for pod in plan.pods
    }
    assert [name for name, ports in opened.items() if 8475 in ports] == ["mnist-launcher-0"]


@pytest.mark.parametrize(
    "spec",
    [
        {"runPolicy": {"restartStrategy": "Recreate"}},
        {"horovod": {"launcher": "MPIJob"}},
    ],
)
def test_agents_join_only_where_ranks_may_restart_in_place(spec: dict[str, Any]) -> None:
    assert not any("DTJ_START_BARRIER" in environment(pod) for pod in plan_job(job(**spec)).pods)

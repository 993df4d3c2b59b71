"""The parts of a conversion, each by itself: ranks, hosts, users, queues and versions.

* ranks, and the options of mpirun and horovodrun
* launchers with a command of their own
* host names of replicas
* users and privileges
* queues and gangs
* versions and defaults of Kubeflow
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.api.job import Manifest
from dtj.convert.job import convert
from dtj.convert.mpi import NeverStarts, Uneven, ranks_of_each_worker
from dtj.convert.mpirun import parse_launch
from dtj.convert.notes import Conversion
from dtj.convert.replicas import COMMAND_GIVEN
from dtj.plan.config_map import START
from dtj.plan.job import plan_job
from dtj.plan.pods import trainer_container
from tests.unit.support.conversions import read, refusals
from tests.unit.support.mpirun_options import EVEN, NEVER, UNEVEN, WORKERS

JOBS = Path(__file__).parents[2] / "convert_jobs"


def manifest(name: str) -> Manifest:
    loaded: Manifest = yaml.safe_load((JOBS / f"{name}.yaml").read_text())
    return loaded


def pod_of(job: Manifest, role: str) -> Manifest:
    pod: Manifest = job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]
    return pod


def launched_by(*words: str, **spec: Any) -> Conversion:
    """mpi-digits with another command of its launcher, and other fields of its spec."""
    job = manifest("mpi-digits")
    job["spec"] |= spec
    pod_of(job, "Launcher")["containers"][0] |= {"command": [*words], "args": []}
    return convert(job)


def told(made: Conversion) -> str:
    return "\n".join(map(str, made.notes))


# --- ranks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "slots", "each"), [*EVEN, ("-np $(COUNT)", 2, 2)])
def test_ranks_of_each_worker(options: str, slots: int, each: int) -> None:
    launch = parse_launch(["mpirun", *options.split(), "./a"], {"COUNT": "4"})
    assert ranks_of_each_worker(launch, WORKERS, slots) == each


@pytest.mark.parametrize(
    ("options", "slots", "error"),
    [
        *((options, slots, Uneven) for options, slots, _ in UNEVEN),
        ("-np 2 -rf /ranks", 2, Uneven),
        ("-np 2 --map-by ppr:1:socket", 2, Uneven),
        ("-np $(SECRET)", 2, Uneven),
        ("-np <number>", 2, Uneven),
        *((options, slots, NeverStarts) for options, slots in NEVER),
        ("--hostfile /home/hosts", 2, NeverStarts),
        ("-H x-worker-0.x:4", 2, NeverStarts),
        ("-H x-worker-0.x:1,x-worker-1.x:3", 2, NeverStarts),
    ],
)
def test_ranks_that_dtjs_mpirun_can_not_start_like_that(
    options: str, slots: int, error: type[Exception]
) -> None:
    launch = parse_launch(["mpirun", *options.split(), "./a"], {"SECRET": None})
    with pytest.raises(error):
        ranks_of_each_worker(launch, WORKERS, slots)


def test_a_job_with_fewer_ranks_than_asked_for_is_refused() -> None:
    (why,) = refusals(launched_by("mpirun", "-np", "72", "-npernode", "36", "./a"))
    assert "starts 72 ranks where the workers have 2 slots" in why

    worker = read(launched_by("mpirun", "--oversubscribe", "-np", "72", "-npernode", "36", "./a"))
    assert (worker.spec.horovod and worker.spec.horovod.slots_per_worker) == 36


@pytest.mark.parametrize("replicas", [10_001, 10**30])
def test_more_workers_than_a_job_may_have_are_refused_before_they_are_counted(replicas: int) -> None:
    job = manifest("mpi-digits")
    job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] = replicas
    (why,) = refusals(convert(job))
    assert why == "spec.mpiReplicaSpecs.Worker.replicas: input should be less than or equal to 10000"


def test_an_elastic_run_that_would_get_more_ranks_is_refused() -> None:
    words = ("horovodrun", "-np", "1", "--min-np", "1", "--max-np", "1", "python", "a.py")
    (why,) = refusals(launched_by(*words, slotsPerWorker=2))
    assert "at most 1 ranks elastically, and dtj would start 4" in why


def test_horovodrun_gives_the_ranks_all_of_its_environment() -> None:
    job = manifest("mpi-elastic")
    pod_of(job, "Launcher")["containers"][0]["env"] = [{"name": "LEVEL", "value": "info"}]
    assert [variable.name for variable in read(convert(job)).spec.env] == ["LEVEL"]


def test_variables_that_a_launcher_has_from_elsewhere_reach_the_ranks() -> None:
    job = manifest("mpi-digits")
    container = pod_of(job, "Launcher")["containers"][0]
    container |= {"envFrom": [{"secretRef": {"name": "token"}}], "args": ["-x", "TOKEN", "./a"]}
    worker = read(convert(job)).spec.replica_specs.worker
    assert worker
    assert worker.template["spec"]["containers"][0]["envFrom"] == [{"secretRef": {"name": "token"}}]


def test_every_dropped_option_is_told_however_many_there_are() -> None:
    options = [
        word for index in range(60) for word in ("--report-uri", f"/a/rather/long/path/to/a/file-{index}")
    ]
    notes = told(launched_by("mpirun", *options, "-np", "2", "--tag-output", "./a"))
    assert all(f"--report-uri /a/rather/long/path/to/a/file-{index}:" in notes for index in range(60))
    assert "--tag-output: left out" in notes
    assert "…" not in notes


# --- launchers with a command of their own --------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["bash", "-c", "cd /a && mpirun -np 2 python a.py"],
        ["bash", "-lc", "mpirun -np 4 python a.py"],
        ["/bin/sh", "/app/run.sh"],
        ["mpirun", "--unheard-of", "x", "./a"],
        ["mpirun", "-np", "1", "./a", ":", "-np", "1", "./b"],
        ["python", "start.py"],
        [
            "bash",
            "-c",
            'mpirun --hostfile "$OMPI_MCA_orte_default_hostfile" ./a; ssh -F /etc/dtj/ssh_config x true',
        ],
    ],
)
def test_a_launcher_that_dtj_does_not_follow_runs_as_it_is_written(words: list[str]) -> None:
    job = read(launched_by(*words, slotsPerWorker=2))

    launcher = plan_job(job).pods[-1]["spec"]["containers"][0]
    assert launcher["command"] == words
    assert "args" not in launcher
    assert not job.spec.command
    assert job.spec.horovod
    assert job.spec.horovod.slots_per_worker == 2


def test_args_without_a_command_do_not_become_the_args_of_dtjs_own_start() -> None:
    job = manifest("mpi-digits")
    pod_of(job, "Launcher")["containers"][0] |= {"command": [], "args": ["bash", "-c", "mpirun ./a; date"]}
    launcher = plan_job(read(convert(job))).pods[-1]["spec"]["containers"][0]
    assert launcher["command"] == ["bash", "-c", "mpirun ./a; date"]


@pytest.mark.parametrize(
    ("script", "named"),
    [
        ("horovodrun -np 2 python a.py; date", "horovodrun"),
        ("/usr/bin/ssh x-worker-0 date; mpirun ./a", "ssh"),
        ("kubectl get pods; mpirun ./a", "kubectl"),
        ("mpirun -mca plm_rsh_agent /etc/mpi/kubexec.sh ./a; date", "kubectl"),
        ("mpirun -mca plm_rsh_args '-p 22' ./a; date", "plm_rsh_agent"),
        ("/etc/mpi/discover_hosts.sh > hosts; mpirun ./a", "discover_hosts.sh"),
        ("export I_MPI_DEBUG=5; mpirun ./a", "MPICH or Intel MPI"),
        ("mpirun -H $hosts ./a; date", "-H"),
        ("mpirun --hostfile /tmp/hosts ./a; date", "--hostfile"),
        ("cp /root/.ssh/id_rsa /tmp; mpirun ./a", "/root/.ssh"),
    ],
)
def test_a_script_that_can_not_work_in_dtj_is_refused_with_what_to_change(script: str, named: str) -> None:
    made = launched_by("bash", "-c", script, sshAuthMountPath="/root/.ssh")
    assert any(f".command: {named}" in why for why in refusals(made))


def test_an_image_without_a_command_is_refused() -> None:
    (why,) = refusals(launched_by())
    assert "dtj does not start the image's entrypoint" in why
    assert "dtj convert --command" in why


def test_a_launcher_without_a_command_has_that_of_the_user() -> None:
    job = manifest("mpi-digits")
    pod_of(job, "Launcher")["containers"][0] |= {"command": [], "args": ["--epochs", "3"]}
    pod_of(job, "Worker")["containers"][0].pop("command", None)
    made = convert(job, command=["mpirun", "-np", "2", "python", "train.py"])
    assert read(made).spec.command == ["python", "train.py", "--epochs", "3"]
    (note,) = [note for note in made.notes if note.now == COMMAND_GIVEN]
    assert note.field == "spec.mpiReplicaSpecs.Launcher.template.spec.containers[0].command"


def test_the_mpirun_of_mpich_is_refused() -> None:
    for words in (["mpiexec.hydra", "-n", "2", "./a"], ["mpirun", "-ppn", "1", "./a"]):
        assert any("MPICH or Intel MPI" in why for why in refusals(launched_by(*words)))


# --- hosts ----------------------------------------------------------------------------------------


def with_env(value: str, **spec: Any) -> Conversion:
    job = manifest("mpi-digits")
    job["metadata"]["namespace"] = "ml"
    job["spec"] |= spec
    pod_of(job, "Worker")["containers"][0]["env"] = [{"name": "A", "value": value}]
    return convert(job)


@pytest.mark.parametrize(
    ("written", "now"),
    [
        ("mpi-digits-worker-0", "mpi-digits-worker-0.mpi-digits"),
        ("a@mpi-digits-worker-1:22", "a@mpi-digits-worker-1.mpi-digits:22"),
        ("tcp://mpi-digits-worker-0.mpi-digits-worker:1/x", "tcp://mpi-digits-worker-0.mpi-digits:1/x"),
        ("mpi-digits-worker-0.mpi-digits.ml.svc.cluster.local", None),
        ("mpi-digits-worker-0.mpi-digits-worker.ml", "mpi-digits-worker-0.mpi-digits.ml"),
        ("mpi-digits-launcher", "mpi-digits-launcher-0.mpi-digits"),
        # No hosts: a longer name, a folder, the name of something else.
        ("mpi-digits-worker-0-logs", None),
        ("my-mpi-digits-worker-0", None),
        ("/runs/mpi-digits-worker-0/log", None),
        ("mpi-digits-worker", None),
        ("mpi-digits-workers", None),
    ],
)
def test_names_of_replicas_become_dtjs(written: str, now: str | None) -> None:
    made = with_env(written)
    worker = read(made).spec.replica_specs.worker
    assert worker
    env = worker.template["spec"]["containers"][0]["env"]
    assert env == [{"name": "A", "value": now or written}]
    assert ("the host name in dtj" in told(made)) == (now is not None)


@pytest.mark.parametrize(
    "written",
    [
        "mpi-digits-worker-2",
        "mpi-digits-worker-$i",
        "mpi-digits-worker-{0,1}",
        "mpi-digits-worker-0.other:80",
        "mpi-digits-worker-0.mpi-digits.elsewhere",
    ],
)
def test_names_that_dtj_can_not_know_are_refused(written: str) -> None:
    (why,) = refusals(with_env(written))
    assert written.split(":")[0] in why
    assert "spec.mpiReplicaSpecs.Worker.template.spec.containers[0].env[0]" in why


def test_a_host_is_refused_where_the_launcher_has_ranks_as_another_worker_has_rank_0() -> None:
    (why,) = refusals(with_env("mpi-digits-launcher", runLauncherAsWorker=True))
    assert "with runLauncherAsWorker, rank 0 runs in the launcher" in why


# --- users and privileges -------------------------------------------------------------------------


def test_a_job_that_says_its_user_keeps_it_also_where_mpirun_may_run_as_root() -> None:
    job = manifest("mpi-benchmarks")
    for role in ("Launcher", "Worker"):
        pod_of(job, role)["securityContext"] = {"runAsUser": 1001, "fsGroup": 1001}
    for pod in plan_job(read(convert(job))).pods:
        assert pod["spec"]["securityContext"]["runAsUser"] == 1001
        assert pod["spec"]["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_a_privileged_container_may_escalate_as_the_api_server_wants_it() -> None:
    job = manifest("mpi-digits")
    own = {"runAsUser": 1000, "capabilities": {"add": ["SYS_ADMIN"]}}
    pod_of(job, "Worker")["containers"][0]["securityContext"] = own
    pod = plan_job(read(convert(job))).pods[0]
    assert pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] is True


# --- queues ---------------------------------------------------------------------------------------


def scheduled(name: str, change: Manifest) -> tuple[Manifest, str]:
    job = manifest(name)
    job["metadata"] |= change.get("metadata", {})
    job["spec"]["runPolicy"] = change.get("runPolicy", {})
    if scheduler := change.get("scheduler"):
        pod_of(job, "Worker")["schedulerName"] = scheduler
    made = convert(job)
    policy = read(made).spec.run_policy.scheduling_policy
    return policy.model_dump(by_alias=True, mode="json", exclude_unset=True), told(made)


@pytest.mark.parametrize(
    ("change", "policy"),
    [
        ({}, {}),
        (
            {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "a"}}},
            {"gang": "Kueue", "queue": "a"},
        ),
        (
            {"runPolicy": {"schedulingPolicy": {"queue": "a", "minAvailable": 1}}},
            {"gang": "Volcano", "queue": "a", "minAvailable": 1},
        ),
        ({"scheduler": "volcano"}, {"gang": "Volcano"}),
        (
            {
                "scheduler": "scheduler-plugins-scheduler",
                "runPolicy": {"schedulingPolicy": {"minAvailable": 9}},
            },
            {"gang": "Coscheduling"},
        ),
        ({"runPolicy": {"schedulingPolicy": {"minAvailable": 2}}}, {}),
        ({"runPolicy": {"schedulingPolicy": {"priorityClass": "b"}}}, {"priorityClassName": "b"}),
    ],
)
def test_a_queue_or_a_gang_of_kubeflow_is_dtjs(change: Manifest, policy: Manifest) -> None:
    made, notes = scheduled("mpi-digits", change)
    assert made == policy
    if change.get("runPolicy"):
        assert "schedulingPolicy" in notes


@pytest.mark.parametrize("scheduler", ["volcano", "scheduler-plugins-scheduler"])
def test_a_tfjob_without_chief_keeps_the_scheduler_of_its_pods(scheduler: str) -> None:
    job = manifest("tf-session")
    roles = job["spec"]["tfReplicaSpecs"]
    for role in roles.values():
        role["template"]["spec"]["schedulerName"] = scheduler
    gang = {"volcano": "Volcano"}.get(scheduler, "Coscheduling")
    assert read(convert(job)).spec.run_policy.scheduling_policy.gang == gang


def test_the_scheduler_of_a_role_without_replicas_makes_no_gang() -> None:
    job = manifest("tf-session")
    roles = job["spec"]["tfReplicaSpecs"]
    roles["Chief"] = copy.deepcopy(roles["Worker"]) | {"replicas": 0}
    roles["Chief"]["template"]["spec"]["schedulerName"] = "volcano"
    assert read(convert(job)).spec.run_policy.scheduling_policy.gang == "None"


def test_a_job_in_kueue_waits_by_its_pods_and_not_suspended() -> None:
    job = read(convert(manifest("mpi-kueue")))
    assert not job.spec.run_policy.suspend
    assert "kueue.x-k8s.io/queue-name" not in job.labels
    for pod in plan_job(job).pods:
        labels = pod["metadata"]["labels"]
        assert labels["kueue.x-k8s.io/queue-name"] == "research"
        assert labels["kueue.x-k8s.io/priority-class"] == "night"
        assert pod["spec"]["priorityClassName"] == "batch"


def test_a_launchers_own_command_is_told_that_kueue_starts_it_with_the_workers() -> None:
    job = manifest("mpi-script")
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "a"}
    made = convert(job)
    assert read(made)
    assert "starts together with the workers" in told(made)


# --- versions and defaults ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "version", "restart", "policy"),
    [
        ("mpi-digits", "v2beta1", None, ("None", 6)),
        ("mpi-digits", "v2beta1", "Never", ("None", 6)),  # A Job of Kubernetes makes another launcher.
        ("mpi-digits", "v1alpha2", None, ("None", 6)),
        ("mpi-digits", "v1", None, ("None", 0)),
        ("mpi-digits", "v1", "OnFailure", ("None", 3)),
        ("tf-dist-digits", "v1", None, ("None", 0)),
        ("tf-dist-digits", "v1beta2", None, ("Running", 0)),
        ("tf-dist-digits", "v1beta1", "Always", ("Running", 3)),
    ],
)
def test_what_a_job_leaves_to_kubeflow_is_written_out_or_told(
    name: str, version: str, restart: str | None, policy: tuple[str, int]
) -> None:
    job = manifest(name)
    job["apiVersion"] = f"kubeflow.org/{version}"
    field, role = ("mpiReplicaSpecs", "Launcher") if name.startswith("mpi") else ("tfReplicaSpecs", "Chief")
    job["spec"][field][role]["restartPolicy"] = restart
    made = convert(job)
    own = read(made).spec.run_policy
    assert (own.clean_pod_policy, own.backoff_limit) == policy
    if policy[1] == 3:
        assert "up to 3 retries of the whole job, dtj's default; Kubeflow sets no limit" in told(made)
    if version not in ("v1", "v2beta1"):
        assert f"apiVersion: kubeflow.org/{version}: read as v1" in told(made)


@pytest.mark.parametrize(
    ("name", "version", "why"),
    [
        (
            "mpi-digits",
            "v3",
            "the job has spec.mpiReplicaSpecs, as kubeflow.org/v2beta1: change apiVersion to",
        ),
        ("mpi-v1alpha1", "v1alpha1", "write the job in the form of kubeflow.org/v2beta1"),
        ("tf-dist-digits", "v2", "change apiVersion to kubeflow.org/v1"),
    ],
)
def test_another_version_says_what_to_change_and_not_that_there_is_no_strategy(
    name: str, version: str, why: str
) -> None:
    job = manifest(name) | {"apiVersion": f"kubeflow.org/{version}"}
    (said,) = refusals(convert(job))
    assert why in said
    assert "strategies" not in said


@pytest.mark.parametrize(
    ("name", "cluster", "decisive"),
    [
        ("tf-dist-digits", {"chief", "worker", "ps"}, "chief-0"),
        ("tf-worker-0-is-chief", {"worker", "ps"}, "worker-0"),
        ("tf-session", {"worker", "ps"}, "worker-0"),
        ("tf-master", {"master", "worker", "ps"}, "master-0"),
        ("tf-multi-worker-keras", {"worker"}, "worker-0"),
        ("tf-chief-workers", {"chief", "worker"}, "chief-0"),
    ],
)
def test_the_program_of_a_tfjob_sees_the_same_cluster(name: str, cluster: set[str], decisive: str) -> None:
    plan = plan_job(read(convert(manifest(name))))

    assert json.loads(plan.config["data"]["tf_cluster.json"]).keys() == cluster
    assert plan.shape.decisive == (f"{name}-{decisive}",)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (
            {"Master": "PS"},
            "spec.tfReplicaSpecs.Master: the job has a Chief already: Master is an older name of Chief",
        ),
        ({"Gateway": "PS"}, "spec.tfReplicaSpecs.Gateway: a TFJob has no such role"),
        ({"ps": "PS"}, "spec.tfReplicaSpecs.ps: the job has the role PS already"),
    ],
)
def test_a_role_that_no_tfjob_has_is_refused(more: dict[str, str], why: str) -> None:
    job = manifest("tf-dist-digits")
    roles = job["spec"]["tfReplicaSpecs"]
    roles |= {key: copy.deepcopy(roles[like]) for key, like in more.items()}
    assert refusals(convert(job)) == [why]


@pytest.mark.parametrize("other", ["PS", "Evaluator", "Master"])
def test_a_tfjob_of_several_roles_without_workers_is_refused(other: str) -> None:
    job = manifest("tf-dist-digits")
    roles = job["spec"]["tfReplicaSpecs"]
    job["spec"]["tfReplicaSpecs"] = {"Chief": roles["Chief"], other: roles["PS"]}
    why = refusals(convert(job))[0]
    assert why.startswith(
        f"spec.tfReplicaSpecs: Chief, {other}: must have Worker: strategy ParameterServer requires"
    )


@pytest.mark.parametrize("leader", ["Chief", "Master"])
@pytest.mark.parametrize(("policy", "limit"), [("Never", 0), ("OnFailure", 3)])
def test_a_chief_or_master_without_other_replicas_is_the_only_worker(
    leader: str, policy: str, limit: int
) -> None:
    job = manifest("tf-dist-digits")
    roles = job["spec"]["tfReplicaSpecs"]
    roles["Chief"]["restartPolicy"] = policy
    job["spec"]["tfReplicaSpecs"] = {leader: roles["Chief"], "Worker": roles["Worker"] | {"replicas": 0}}
    converted = read(convert(job))
    plan = plan_job(converted)
    assert [pod["metadata"]["name"] for pod in plan.pods] == ["tf-dist-digits-worker-0"]
    assert plan.shape.decisive == ("tf-dist-digits-worker-0",)
    assert converted.spec.run_policy.backoff_limit == limit


def test_the_worker_that_decides_sets_the_retries_where_no_chief_does() -> None:
    job = manifest("tf-session")
    for policy, limit in (("Never", 0), ("OnFailure", 3)):
        job["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = policy
        assert read(convert(job)).spec.run_policy.backoff_limit == limit


def test_roles_of_a_tfjob_without_a_command_have_that_of_the_user() -> None:
    job = manifest("tf-entrypoint")
    worker = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    args = worker["args"] = ["--steps", "9"]
    alone = read(convert(job, command=["python", "train.py"]))
    worker["command"] = own = ["python", "worker.py"]
    beside = read(convert(job, command=["python", "train.py"]))
    for made, of_worker in ((alone, ["python", "train.py"]), (beside, own)):
        words = {
            pod["metadata"]["labels"]["dtj.dev/role"]: trainer_container(pod)["command"][len(START) :]
            for pod in plan_job(made).pods
        }
        assert words["worker"] == [*of_worker, *args]
        assert words["ps"][:2] == words["chief"][:2] == ["python", "train.py"]


def test_a_role_without_replicas_is_left_out() -> None:
    job = manifest("tf-dist-digits")
    job["spec"]["tfReplicaSpecs"]["Master"] = copy.deepcopy(job["spec"]["tfReplicaSpecs"]["PS"]) | {
        "replicas": 0
    }
    assert read(convert(job))

"""Horovod jobs that the operator delegates to mpi-operator.

* the MPIJob and the pods that mpi-operator creates of it
* success, failure, retries, lost workers and deadlines
* suspension and queues
* MPIJobs that are not served, refused or of somebody else
* an operator that dies at any request
"""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtj.api.job import Manifest, read_job
from dtj.api.status import ProgressStatus
from dtj.api.validation import faults
from dtj.cluster.interface import ApiError
from dtj.local.plan import Place, container_ports, left_out, local_plan
from dtj.plan.job import plan_job
from dtj.status.observed import ProgressReport, view_mpijob
from dtj.status.pods import view_pod
from tests.unit.support import mpi_operator
from tests.unit.support.jobs import job, manifest
from tests.unit.support.kubelet import Ending
from tests.unit.support.mpi_operator import MpiOperator, condition
from tests.unit.support.mpijob_crd import MPIJOB_SCHEMA, mpijob_crd
from tests.unit.support.pod_security import restricted_faults
from tests.unit.support.pods import Life
from tests.unit.support.structural import schema_faults, structural_faults
from tests.unit.support.world import KEY, World

SERVED = ("kubeflow.org/v2beta1", "mpijobs")
HANDED_OVER: Manifest = {"horovod": {"launcher": "MPIJob"}}
RECREATE = {"restartStrategy": "Recreate"}
MPIJOB = ("MPIJob", "ml", "mnist")


def mpijob_of(**spec: Any) -> Manifest:
    """The MPIJob of a job, as the API server stores it."""
    made = plan_job(job(**HANDED_OVER | spec)).mpijob
    assert made is not None
    stored = copy.deepcopy(made)
    stored["metadata"]["uid"] = "mpijob"
    return stored


def container(pod: Manifest) -> Manifest:
    found: Manifest = next(c for c in pod["spec"]["containers"] if c["name"] == "trainer")
    return found


def variables(pod: Manifest) -> dict[str, Any]:
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in container(pod)["env"]}


# --- the plan ------------------------------------------------------------------------------------


def test_the_mpijob_is_one_that_the_published_crd_takes() -> None:
    assert list(structural_faults(MPIJOB_SCHEMA)) == []
    assert list(schema_faults(MPIJOB_SCHEMA, mpijob_of())) == []
    wrong = mpijob_of()
    wrong["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["hostnames"] = "x"
    assert "unknown field" in next(iter(schema_faults(MPIJOB_SCHEMA, wrong)))


def test_pods_that_mpi_operator_makes_have_what_dtjs_own_have() -> None:
    native, made = plan_job(job(runPolicy=RECREATE)), mpijob_of()
    ours = {pod["metadata"]["labels"]["dtj.dev/role"]: pod for pod in native.pods}
    theirs = {
        "worker": mpi_operator.worker(made, 1),
        "launcher": mpi_operator.launcher_job(made)["spec"]["template"],
    }

    for role, pod in theirs.items():
        same = set(variables(ours[role])) - {"OMPI_MCA_plm_rsh_args"}
        assert same <= set(variables(pod)) | {"NVIDIA_VISIBLE_DEVICES"}
        for name in ("image", "resources", "terminationMessagePolicy", "securityContext"):
            assert container(pod)[name] == container(ours[role])[name]
        assert list(restricted_faults({"spec": pod["spec"], "metadata": {}})) == []
    assert theirs["worker"]["spec"]["hostname"] == ours["worker"]["spec"]["hostname"] == "mnist-worker-1"


def test_each_variable_is_given_once_whoever_gives_it() -> None:
    made = mpijob_of(env=[{"name": "LEVEL", "value": "1"}])

    for pod in (mpi_operator.worker(made, 0), mpi_operator.launcher_job(made)["spec"]["template"]):
        names = [variable["name"] for variable in container(pod)["env"]]
        assert len(names) == len(set(names))
        mounts = [mount["mountPath"] for mount in container(pod)["volumeMounts"]]
        assert len(mounts) == len(set(mounts))


def test_a_worker_knows_its_index_by_the_label_that_mpi_operator_gives_it() -> None:
    pod = mpi_operator.worker(mpijob_of(), 1)
    path = variables(pod)["DTJ_INDEX"]["fieldRef"]["fieldPath"]

    assert path == "metadata.labels['training.kubeflow.org/replica-index']"
    assert pod["metadata"]["labels"]["training.kubeflow.org/replica-index"] == "1"
    names = [variable["name"] for variable in container(pod)["env"]]
    assert names.index("DTJ_INDEX") < names.index("DTJ_POD"), "a kubelet puts a variable into those after it"
    native = variables(plan_job(job(runPolicy=RECREATE)).pods[1])["DTJ_POD"]
    assert variables(pod)["DTJ_POD"].replace("$(DTJ_INDEX)", "1") == native


def test_ssh_finds_its_settings_although_mpi_operator_sets_its_arguments() -> None:
    pod = mpi_operator.launcher_job(mpijob_of())["spec"]["template"]
    config = plan_job(job(**HANDED_OVER)).config["data"]

    assert variables(pod)["OMPI_MCA_plm_rsh_args"] == "-o ConnectionAttempts=10"
    assert variables(pod)["OMPI_MCA_plm_rsh_agent"] == "ssh -F /etc/dtj/ssh_config"
    assert "IdentityFile /etc/dtj-ssh/id_rsa" in config["ssh_config"]
    assert "HostKey /etc/dtj-ssh/id_rsa" in config["sshd_config"]
    # Hosts are checked, by the one key that all have.
    assert "StrictHostKeyChecking yes" in config["ssh_config"]
    assert "/dtj/run/known_hosts" in config["ssh_config"]
    assert "run/known_hosts" in config["mpijob.sh"]


def test_a_launcher_with_a_command_of_its_own_reaches_its_hosts_too() -> None:
    own = {"spec": {"containers": [{"name": "trainer", "command": ["mpirun", "python", "train.py"]}]}}
    plan = plan_job(job(replicaSpecs={"launcher": {"template": own}, "worker": {}}, **HANDED_OVER))

    assert "StrictHostKeyChecking accept-new" in plan.config["data"]["ssh_config"]


def test_this_machine_runs_the_ranks_itself_and_says_so(tmp_path: Path) -> None:
    native, plan = plan_job(job()), plan_job(job(**HANDED_OVER))
    here = local_plan(plan, Place(run=tmp_path, mark="1", ports=dict.fromkeys(container_ports(plan), 0)))

    assert here.mpijob is None
    assert [p["metadata"]["name"] for p in here.pods] == [p["metadata"]["name"] for p in native.pods]
    assert "dtj starts the ranks itself" in left_out(plan)[-1]


def test_hosts_are_the_same_in_dtjs_hostfile_and_in_mpi_operators() -> None:
    spec: Manifest = {"horovod": {"launcher": "MPIJob", "slotsPerWorker": 3}}

    own = plan_job(job(**spec)).config["data"]["hostfile"]
    assert own == mpi_operator.config_map(mpijob_of(**spec))["data"]["hostfile"]
    assert mpijob_of(**spec)["spec"]["slotsPerWorker"] == 3


def test_no_object_of_dtj_takes_a_name_that_mpi_operator_wants() -> None:
    plan = plan_job(job(**HANDED_OVER))
    made = mpijob_of()
    theirs = {
        (o["kind"], o["metadata"]["name"])
        for o in (
            mpi_operator.service(made),
            mpi_operator.config_map(made),
            mpi_operator.secret(made, "", ""),
        )
    }

    assert not theirs & {(o["kind"], o["metadata"]["name"]) for o in plan.objects}
    assert plan.ssh_secret is None


def test_an_mpijob_is_one_attempt_and_nothing_of_it_is_counted_twice() -> None:
    policy = {"backoffLimit": 5, "activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 0, "suspend": True}

    assert mpijob_of(runPolicy=policy)["spec"]["runPolicy"] == {
        "cleanPodPolicy": "None",
        "backoffLimit": 0,
        "schedulingPolicy": {"minAvailable": 2},
    }


def test_only_labels_of_queues_go_on_to_the_mpijob() -> None:
    wanted = {"kueue.x-k8s.io/queue-name": "research", "kueue.x-k8s.io/priority-class": "high"}
    source = manifest(**HANDED_OVER)
    source["metadata"]["labels"] = wanted | {"team": "vision", "dtj.dev/job": "other"}
    source["metadata"]["annotations"] = {"scheduling.volcano.sh/queue-name": "night", "note": "x"}
    made = plan_job(read_job(source)).mpijob
    assert made is not None
    own = {"app.kubernetes.io/managed-by", "dtj.dev/job", "dtj.dev/attempt"}
    assert {k: v for k, v in made["metadata"]["labels"].items() if k not in own} == wanted
    assert made["metadata"]["labels"]["dtj.dev/job"] == "mnist"
    assert made["metadata"]["annotations"] == {"scheduling.volcano.sh/queue-name": "night"}
    # Kueue would queue a pod that has them as a workload of its own.
    for replica in made["spec"]["mpiReplicaSpecs"].values():
        assert not wanted.keys() & replica["template"]["metadata"]["labels"].keys()


@pytest.mark.parametrize(
    ("template", "field", "message"),
    [
        (
            {"spec": {"volumes": [{"name": "ssh-auth", "emptyDir": {}}]}},
            "spec.replicaSpecs.worker.template.spec.volumes[0].name",
            "ssh-auth belongs to mpi-operator",
        ),
        (
            {
                "spec": {
                    "containers": [
                        {"name": "trainer", "volumeMounts": [{"mountPath": "/etc/mpi/", "name": "x"}]}
                    ],
                    "volumes": [{"name": "x", "emptyDir": {}}],
                }
            },
            "spec.replicaSpecs.worker.template.spec.containers[trainer].volumeMounts",
            "/etc/mpi belongs to mpi-operator",
        ),
    ],
)
def test_what_mpi_operator_gives_its_pods_a_template_may_not_take(
    template: Manifest, field: str, message: str
) -> None:
    roles = {"worker": {"replicas": 2, "template": template}}

    assert faults(job(replicaSpecs=roles)) == []
    (fault,) = faults(job(replicaSpecs=roles, **HANDED_OVER))
    assert (fault.field, message in fault.message) == (field, True)


@pytest.mark.parametrize("gang", ["Coscheduling", "Volcano", "Kueue"])
def test_a_gang_of_dtjs_own_is_refused(gang: str) -> None:
    policy = {"schedulingPolicy": {"gang": gang, **({"queue": "q"} if gang == "Kueue" else {})}}

    (fault,) = faults(job(runPolicy=policy, **HANDED_OVER))
    assert fault.field == "spec.runPolicy.schedulingPolicy.gang"
    assert "must be None with horovod.launcher: MPIJob" in fault.message


def test_a_queue_that_no_name_can_be_is_refused() -> None:
    """The operator keeps no more of it, and would give the MPIJob another one."""
    of_volcano = {"scheduling.volcano.sh/queue-name": "q" * 254}
    (fault,) = faults(replace(job(**HANDED_OVER), annotations=of_volcano))
    assert fault.field == "metadata.annotations[scheduling.volcano.sh/queue-name]"
    assert faults(replace(job(), annotations=of_volcano)) == []


def test_a_job_of_another_strategy_is_not_handed_over() -> None:
    spec: Manifest = {"strategy": "ParameterServer", "replicaSpecs": {"worker": {}, "ps": {}}}

    assert [str(fault) for fault in faults(job(**spec, **HANDED_OVER))] == [
        "spec.horovod: belongs to strategy Horovod, and this job's is ParameterServer: remove it"
    ]


def test_the_crd_of_the_tests_serves_what_it_is_told() -> None:
    versions = mpijob_crd("v1", "v2beta1")["spec"]["versions"]

    assert [(v["name"], v["served"], v["storage"]) for v in versions] == [
        ("v1", True, False),
        ("v2beta1", True, True),
    ]


# --- a job's life --------------------------------------------------------------------------------


class MpiWorld(World):
    """A world with mpi-operator in it."""

    def __init__(self, *, served: bool = True, **spec: Any) -> None:
        super().__init__(**HANDED_OVER | spec)
        self.mpi = MpiOperator(self.cluster)
        if served:
            self.cluster.served.add(SERVED)

    async def step(self) -> bool:
        happened = await super().step()
        self.mpi.step()
        return happened

    @property
    def mpijob(self) -> Manifest | None:
        return self.cluster.objects.get(MPIJOB)

    def change_mpijob(self, **policy: Any) -> None:
        self.cluster.change(MPIJOB, lambda there: there["spec"]["runPolicy"].update(policy))


def fail_first(attempts: int) -> Any:
    """Launchers of so many attempts fail, the next one succeeds."""

    def program(pod: Manifest, ran: int) -> Ending | None:
        labels = pod["metadata"]["labels"]
        if labels["dtj.dev/role"] != "launcher" or ran < 2:
            return None
        return (1, "no such file") if int(labels["dtj.dev/attempt"]) <= attempts else (0, "")

    return program


async def until(world: MpiWorld, phase: str) -> None:
    await world.until(lambda: world.phase == phase)


async def test_a_job_is_handed_over_and_succeeds_with_its_mpijob() -> None:
    world = MpiWorld()
    await until(world, "Running")

    assert world.pod_names() == ["mnist-launcher-x0001", "mnist-worker-0", "mnist-worker-1"]
    assert world.status["replicaStatuses"]["worker"] == {
        "desired": 2, "active": 2, "ready": 2, "succeeded": 0, "failed": 0
    }  # fmt: skip
    await world.rest()

    assert world.phase == "Succeeded"
    assert world.condition("Succeeded")["message"] == "mnist-launcher-x0001 ended with exit code 0"
    assert world.mpijob is not None
    assert world.pod_names() == ["mnist-launcher-x0001"]
    made = {call.kind for call in world.cluster.writes if call.verb == "create"} - {"Event"}
    assert made == {"ConfigMap", "MPIJob"}
    assert "MPIJob" not in {call.kind for call in world.cluster.writes if call.verb != "create"}


async def test_where_mpijobs_are_not_served_it_says_what_to_do_and_goes_on_once_they_are() -> None:
    world = MpiWorld(served=False)
    await world.until(lambda: world.condition("Running").get("reason") == "MPIJobNotServed")
    message = world.condition("Running")["message"]

    assert "does not serve mpijobs of kubeflow.org/v2beta1" in message
    assert "install Kubeflow's mpi-operator" in message
    assert "launcher: Native" in message
    assert (world.phase, world.mpijob) == ("Pending", None)
    assert world.again is not None
    assert "MPIJobNotServed" in world.events()
    world.cluster.served.add(("kubeflow.org/v1", "mpijobs"))
    for _ in range(20):
        await world.step()
    assert (world.phase, world.mpijob) == ("Pending", None)
    world.cluster.served.add(SERVED)
    await world.rest()

    assert world.phase == "Succeeded"
    assert world.events().count("MPIJobNotServed") == 1


async def test_an_mpijob_that_nobody_takes_up_is_told() -> None:
    world = MpiWorld()
    world.mpi.runs = False
    await world.until(lambda: world.condition("Running").get("reason") == "MPIJobNotTakenUp")

    assert "check that mpi-operator runs" in world.condition("Running")["message"]
    world.mpi.runs = True
    await world.rest()
    assert world.phase == "Succeeded"


async def test_a_failed_launcher_is_tried_again_in_an_mpijob_of_its_own() -> None:
    world = MpiWorld()
    world.kubelet.program = fail_first(1)
    await world.until(lambda: world.status.get("attempt") == 2)
    first = world.mpijob
    await world.rest()

    assert world.phase == "Succeeded"
    assert world.status["restarts"] == {"application": 1, "infrastructure": 0}
    assert world.status["failure"]["pod"] == "mnist-launcher-x0001"
    assert world.status["failure"]["class"] == "ApplicationError"
    assert first is not None
    assert world.mpijob is not None
    assert first["metadata"]["uid"] != world.mpijob["metadata"]["uid"]
    assert world.mpijob["metadata"]["labels"]["dtj.dev/attempt"] == "2"
    # Never two attempts at a time.
    attempts = [attempt for _, attempt in world.cluster.created_pods]
    assert attempts == ["1", "1", "1", "2", "2", "2"]


async def test_retries_are_dtjs_and_as_many_as_the_limit_says() -> None:
    world = MpiWorld(runPolicy={"backoffLimit": 2})
    world.kubelet.program = fail_first(99)
    await world.rest()

    assert world.phase == "Failed"
    assert world.condition("Failed")["reason"] == "BackoffLimitExceeded"
    assert world.status["attempt"] == 3
    assert world.mpi.launchers == 3
    # What ended stays to be looked at, as with dtj's own pods.
    assert world.pod_names() == ["mnist-launcher-x0003"]


async def test_a_worker_lost_in_training_is_an_infrastructure_failure_and_all_begin_anew() -> None:
    world = MpiWorld()
    world.kubelet.program = lambda pod, ran: None
    await until(world, "Running")
    world.cluster.end_pod(world.cluster.pod("mnist-worker-1"))
    world.kubelet.program = fail_first(0)
    await world.rest()

    assert world.phase == "Succeeded"
    assert world.status["restarts"] == {"application": 0, "infrastructure": 1}


async def test_an_evicted_worker_of_which_mpi_operator_never_cleans_up_is_gone_with_its_mpijob() -> None:
    world = MpiWorld(runPolicy={"backoffLimit": 0})
    world.kubelet.program = lambda pod, ran: None
    await until(world, "Running")

    def evict(pod: Manifest) -> None:
        pod["status"] |= {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."}

    world.cluster.change(("Pod", "ml", "mnist-worker-0"), evict)
    world.kubelet.program = fail_first(0)
    await world.rest()

    assert world.phase == "Succeeded"
    assert world.status["failure"]["class"] == "Evicted"
    assert world.status["restarts"]["infrastructure"] == 1


async def test_no_mpijob_is_made_beside_pods_of_the_attempt_before_that_were_not_seen() -> None:
    world = MpiWorld()
    world.kubelet.program = fail_first(1)
    await until(world, "Restarting")
    world.cluster.remove(MPIJOB)
    world.cluster.now += timedelta(seconds=60)
    assert world.pod_names()

    world.start_operator(behind={"Pod": 99})
    await world.turn()
    assert world.mpijob is None
    assert world.again == 1.0
    await until(world, "Succeeded")
    assert world.status["attempt"] == 2


async def test_a_failure_of_which_no_pod_tells_is_the_mpijobs() -> None:
    world = MpiWorld(runPolicy={"backoffLimit": 0})
    world.mpi.runs = False
    await world.until(lambda: world.mpijob is not None)
    said = condition("Failed", True, "BackoffLimitExceeded/", "no quota", "2026-11-21T12:00:00Z")
    world.cluster.change(MPIJOB, lambda there: there.update(status={"conditions": [said]}))
    await until(world, "Failed")

    assert world.status["failure"]["class"] == "MPIJobFailed"
    assert world.status["failure"]["message"] == "MPIJob mnist: BackoffLimitExceeded: no quota"
    await world.rest()
    # Without a completionTime mpi-operator would leave its pods for ever.
    assert world.mpijob is None


async def test_a_success_told_by_the_mpijob_alone_counts() -> None:
    world = MpiWorld()
    world.kubelet.program = lambda pod, ran: None
    await until(world, "Running")
    said = condition("Succeeded", True, "MPIJobSucceeded", "done", "2026-11-21T12:00:00Z")
    done = {"conditions": [said], "completionTime": "2026-11-21T12:00:00Z"}
    world.cluster.change(MPIJOB, lambda there: there.update(status=done))
    await world.rest()

    assert world.phase == "Succeeded"


async def test_a_job_that_is_suspended_has_no_mpijob_until_it_is_resumed() -> None:
    world = MpiWorld()
    world.kubelet.program = lambda pod, ran: None
    await until(world, "Running")
    name = ("DistributedTrainingJob", "ml", "mnist")
    world.cluster.change(name, lambda there: there["spec"].update(runPolicy={"suspend": True}))
    await until(world, "Suspended")
    await world.rest()

    assert (world.mpijob, world.pod_names()) == (None, [])
    assert world.condition("Suspended")["reason"] == "JobSuspended"
    world.kubelet.program = fail_first(0)
    world.cluster.change(name, lambda there: there["spec"].update(runPolicy={"suspend": False}))
    await world.rest()

    assert (world.phase, world.status["attempt"]) == ("Succeeded", 2)
    assert world.status["restarts"] == {"application": 0, "infrastructure": 0}


class QueuedWorld(MpiWorld):
    """A world in which Kueue's webhook suspends each MPIJob that is made, and a launcher finds out of its workers."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(**spec)
        self.ends = False
        self.kubelet.program = self.program
        add = self.cluster.add

        def admit(made: Manifest) -> Manifest:
            if made["kind"] == "MPIJob":
                made = copy.deepcopy(made)
                made["spec"]["runPolicy"]["suspend"] = True
            return add(made)

        self.cluster.add = admit  # type: ignore[method-assign]

    def program(self, pod: Manifest, ran: int) -> Ending | None:
        """mpirun fails at once where a worker is not ready, unless it is told to wait for them."""
        if pod["metadata"]["labels"]["dtj.dev/role"] != "launcher":
            return None
        if "DTJ_LAUNCHER_WAITS" not in variables(pod) and not self.workers_are_ready():
            return (1, "ssh: Could not resolve hostname mnist-worker-0")
        return (0, "") if self.ends and ran >= 2 else None

    def workers_are_ready(self) -> bool:
        pods = self.cluster.of_kind("Pod")
        workers = [pod for pod in pods if pod["metadata"]["labels"]["dtj.dev/role"] == "worker"]
        return bool(workers) and all(view_pod(pod).ready for pod in workers)


async def test_a_launcher_that_is_admitted_with_its_workers_waits_for_them() -> None:
    world = QueuedWorld()
    await until(world, "Suspended")
    for _ in range(5):
        await world.step()
    assert ("Job", "ml", "mnist-launcher") in world.cluster.objects, "as the original makes it: suspended"
    assert world.pod_names() == []

    world.kubelet.hold = {"mnist-worker-0", "mnist-worker-1"}  # their image is large
    world.change_mpijob(suspend=False)
    launcher = "mnist-launcher-x0001"
    await world.until(lambda: launcher in world.pod_names() and view_pod(world.cluster.pod(launcher)).ready)
    assert not world.workers_are_ready()
    world.kubelet.hold = set()
    world.ends = True
    await world.rest()

    assert (world.phase, world.status["attempt"]) == ("Succeeded", 1)
    assert world.status["restarts"] == {"application": 0, "infrastructure": 0}


async def test_a_queue_holds_the_mpijob_lets_it_go_and_takes_it_back() -> None:
    world = QueuedWorld()
    await until(world, "Suspended")
    for _ in range(20):
        await world.step()

    assert world.condition("Suspended")["reason"] == "MPIJobSuspended"
    assert world.pod_names() == []
    assert "startTime" not in world.status
    world.change_mpijob(suspend=False)
    await until(world, "Running")
    first = world.mpijob
    world.change_mpijob(suspend=True)
    await until(world, "Suspended")
    await world.until(lambda: world.pod_names() == [])
    world.ends = True
    world.change_mpijob(suspend=False)
    await world.rest()

    assert world.phase == "Succeeded"
    assert world.status["restarts"] == {"application": 0, "infrastructure": 0}
    assert first is not None
    assert world.mpijob is not None
    # The same one: it keeps its place in the queue.
    assert world.mpijob["metadata"]["uid"] == first["metadata"]["uid"]
    assert world.status["attempt"] == 1


async def test_a_deadline_ends_the_mpijob_with_its_pods() -> None:
    world = MpiWorld(runPolicy={"activeDeadlineSeconds": 20, "cleanPodPolicy": "None"})
    world.kubelet.program = lambda pod, ran: None
    await until(world, "Failed")
    await world.rest()

    assert world.condition("Failed")["reason"] == "DeadlineExceeded"
    assert (world.mpijob, world.pod_names()) == (None, [])


@pytest.mark.parametrize(("policy", "stay"), [("None", 3), ("All", 0), ("Running", 1)])
async def test_pods_go_at_the_end_as_cleanpodpolicy_says(policy: str, stay: int) -> None:
    world = MpiWorld(runPolicy={"cleanPodPolicy": policy})
    await world.rest()

    assert world.phase == "Succeeded"
    assert len(world.pod_names()) == stay
    assert (world.mpijob is None) is (policy == "All")


async def test_an_mpijob_of_somebody_else_is_not_touched() -> None:
    world = MpiWorld()
    theirs = mpijob_of()
    del theirs["metadata"]["ownerReferences"], theirs["metadata"]["labels"]
    world.cluster.add(theirs)
    world.mpi.runs = False
    await world.until(lambda: world.condition("Running").get("reason") == "NameTaken")

    assert "and the job does not own it" in world.condition("Running")["message"]
    world.cluster.remove(MPIJOB)
    world.mpi.runs = True
    await world.rest()
    assert world.phase == "Succeeded"


async def test_a_job_that_is_deleted_takes_its_mpijob_and_pods_with_it() -> None:
    world = MpiWorld()
    world.kubelet.program = lambda pod, ran: None
    await until(world, "Running")
    world.cluster.remove(("DistributedTrainingJob", "ml", "mnist"))
    world.view.deliver()
    for _ in range(6):
        await world.turn()
        world.kubelet.step()
        world.view.deliver()

    kinds = {name[0] for name in world.cluster.objects}
    assert kinds <= {"Event"}


async def test_progress_of_the_pods_of_mpi_operator_is_asked_for_and_shown() -> None:
    world = MpiWorld()
    world.kubelet.program = lambda pod, ran: None
    await until(world, "Running")
    assert set(world.progress.followed[KEY]) == {"mnist-worker-0"}
    world.progress.reports[KEY] = ProgressReport(progress=ProgressStatus(step=7))
    await world.until(lambda: world.status.get("progress") == {"step": 7})


async def test_a_refusal_to_make_mpijobs_is_told() -> None:
    world = MpiWorld()
    world.cluster.refuse = lambda made: (
        ApiError(
            403, "Forbidden", 'mpijobs.kubeflow.org is forbidden: User "x" cannot create resource "mpijobs"'
        )
        if made["kind"] == "MPIJob"
        else None
    )
    await world.until(lambda: world.condition("Running").get("reason") == "Forbidden")

    assert "MPIJob mnist can't be made" in world.condition("Running")["message"]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_operator_that_dies_anywhere_goes_on_with_the_mpijob_that_is_there(when: Any) -> None:
    for request in range(1, 26, 3):
        world = MpiWorld()
        world.kubelet.program = fail_first(1)
        world.cluster.die_at, world.cluster.die_when = request, when
        await world.rest()

        assert world.phase == "Succeeded"
        assert world.status["restarts"] == {"application": 1, "infrastructure": 0}


SAID = st.lists(
    st.tuples(
        st.sampled_from(["Created", "Running", "Restarting", "Succeeded", "Failed", "Suspended"]),
        st.booleans(),
        st.sampled_from(["MPIJobEvicted", "BackoffLimitExceeded/", "DeadlineExceeded", ""]),
        st.booleans(),
        st.booleans(),
    ),
    max_size=8,
)


@given(SAID)
@settings(max_examples=40, deadline=None)
def test_whatever_an_mpijob_says_a_job_that_ended_stays_as_it_ended(said: Any) -> None:
    seen, made = Life(**HANDED_OVER, runPolicy={"backoffLimit": 1}), mpijob_of()
    conditions: dict[str, Manifest] = {}
    before: Manifest = {}
    for number, (kind, holds, reason, completed, suspended) in enumerate(said):
        conditions[kind] = condition(kind, holds, reason, "said", "2026-11-21T12:00:00Z")
        made["status"] = {"conditions": [*conditions.values()]}
        made["status"] |= {"completionTime": "2026-11-21T12:00:00Z"} if completed else {}
        made["spec"]["runPolicy"]["suspend"] = suspended
        made["metadata"]["labels"]["dtj.dev/attempt"] = str(seen.job.status.attempt or 1)
        after = seen.see(seconds=20 * number + 10, mpijob=view_mpijob(made))

        if before.get("phase") in ("Succeeded", "Failed"):
            assert after == before
        assert after["phase"] in ("Succeeded", "Failed") or "completionTime" not in after
        before = after

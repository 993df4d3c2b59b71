"""`spec.tensorboard`: a Deployment and a Service beside the training, which never block the training.

* the Deployment and the Service that are created
* the end, suspension, edits and deletions
* refusals, and names in use
* faults of the spec
"""

from __future__ import annotations

from typing import Any

import pytest

from dtj.api.job import Manifest
from dtj.api.validation import faults
from dtj.cluster.interface import ApiError
from dtj.local.plan import left_out
from dtj.plan.job import plan_job
from dtj.plan.tensorboard import DEFAULT_IMAGE
from tests.unit.support.jobs import job
from tests.unit.support.kubelet import Ending
from tests.unit.support.world import World

ARTIFACTS = {"uri": "s3://training/jobs", "endpoint": "http://store:8333", "secretName": "s3-credentials"}
SPEC: dict[str, Any] = {"artifacts": ARTIFACTS, "tensorboard": {"enabled": True}}
NAME = "mnist-tensorboard"
DEPLOYMENT = ("Deployment", "ml", NAME)
URL = "http://mnist-tensorboard.ml.svc:6006"


def endless(pod: Manifest, ran: int) -> Ending | None:
    return None


def running() -> World:
    world = World(**SPEC)
    world.kubelet.program = endless
    return world


def change(world: World, **spec: Any) -> None:
    world.cluster.change(("DistributedTrainingJob", "ml", "mnist"), lambda job: job["spec"].update(spec))


def becomes_ready(world: World) -> None:
    world.cluster.change(DEPLOYMENT, lambda there: there.update(status={"availableReplicas": 1}))


def container(**board: Any) -> Manifest:
    plan = plan_job(job(artifacts=ARTIFACTS, tensorboard={"enabled": True, **board}))
    assert plan.tensorboard
    (found,) = plan.tensorboard.deployment["spec"]["template"]["spec"]["containers"]
    return dict(found)


# --- what is made ------------------------------------------------------------------------------------


async def test_it_is_made_beside_the_training_owned_by_the_job_and_counted_nowhere() -> None:
    world = running()
    await world.rest()

    assert world.phase == "Running"
    assert world.status["replicaStatuses"].keys() == {"launcher", "worker"}
    for kind in ("Service", "Deployment"):
        (owner,) = world.cluster.objects[kind, "ml", NAME]["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (world.cluster.job()["metadata"]["uid"], True)
    assert world.status["tensorboard"] == {"url": URL, "ready": False}
    becomes_ready(world)
    await world.rest()
    assert world.status["tensorboard"] == {"url": URL, "ready": True}
    world.cluster.calls.clear()
    await world.rest()
    assert world.cluster.calls == []


async def test_its_pod_is_none_of_the_jobs_and_no_name_of_the_job_leads_to_it() -> None:
    world = running()
    await world.rest()
    labels = world.cluster.objects[DEPLOYMENT]["spec"]["template"]["metadata"]["labels"]

    assert "dtj.dev/job" not in labels
    selector = {
        kind: world.cluster.objects["Service", "ml", kind]["spec"]["selector"] for kind in ("mnist", NAME)
    }
    assert selector[NAME].items() <= labels.items()
    assert not selector["mnist"].items() <= labels.items()


async def test_without_it_a_job_makes_none() -> None:
    world = World(artifacts=ARTIFACTS)
    await world.rest()
    assert world.cluster.of_kind("Deployment") == []
    assert "tensorboard" not in world.status


def test_its_image_is_the_jobs_the_installations_or_dtjs() -> None:
    plan = plan_job(job(**SPEC), tensorboard_image="registry.example/tb:1")
    assert plan.tensorboard
    (installed,) = plan.tensorboard.deployment["spec"]["template"]["spec"]["containers"]
    assert installed["image"] == "registry.example/tb:1"
    assert container()["image"] == DEFAULT_IMAGE
    assert container(image="mine:2")["image"] == "mine:2"


def test_it_reaches_the_bucket_as_the_replicas_do_and_gets_nothing_else_of_theirs() -> None:
    env = [
        {"name": "AWS_REGION", "value": "eu-central-1"},
        {"name": "DTJ_S3_REQUEST_PAYER", "value": "requester"},
        {"name": "https_proxy", "value": "http://proxy:3128"},
        {"name": "WANDB_API_KEY", "value": "x"},
    ]
    plan = plan_job(job(**SPEC, env=env))
    assert plan.tensorboard
    pod = plan.tensorboard.deployment["spec"]["template"]["spec"]
    (made,) = pod["containers"]
    assert made["envFrom"] == [{"secretRef": {"name": "s3-credentials"}}]
    assert [variable["name"] for variable in made["env"]] == [
        "DTJ_JOB", "DTJ_ARTIFACTS_URI", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "DTJ_S3_REQUEST_PAYER",
        "https_proxy",
    ]  # fmt: skip
    assert "serviceAccountName" not in pod


# --- what becomes of it ------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["Running", "All", "None"])
async def test_it_stays_after_the_end_and_goes_with_the_job(policy: str) -> None:
    world = World(**SPEC, runPolicy={"cleanPodPolicy": policy})
    await world.rest()
    assert world.phase == "Succeeded"
    assert world.cluster.objects[DEPLOYMENT]["spec"]["replicas"] == 1
    becomes_ready(world)
    await world.rest()
    assert (world.phase, world.status["tensorboard"]["ready"]) == ("Succeeded", True)

    world.cluster.remove(("DistributedTrainingJob", "ml", "mnist"))
    world.cluster.collect_garbage()
    assert world.cluster.of_kind("Deployment") == world.cluster.of_kind("Service") == []


async def test_a_job_that_has_ended_can_be_given_one() -> None:
    world = World(artifacts=ARTIFACTS)
    await world.rest()
    change(world, tensorboard={"enabled": True})
    await world.rest()
    assert (world.phase, world.status["tensorboard"]["url"]) == ("Succeeded", URL)
    assert DEPLOYMENT in world.cluster.objects


async def test_a_suspended_job_has_none_until_it_is_resumed() -> None:
    world = running()
    await world.rest()
    change(world, runPolicy={"suspend": True})
    await world.rest()
    assert world.phase == "Suspended"
    assert world.cluster.objects[DEPLOYMENT]["spec"]["replicas"] == 0
    assert "tensorboard" not in world.status

    change(world, runPolicy={"suspend": False})
    await world.rest()
    assert (world.phase, world.status["tensorboard"]["url"]) == ("Running", URL)
    assert world.cluster.objects[DEPLOYMENT]["spec"]["replicas"] == 1


async def test_it_follows_a_change_of_the_spec_and_the_training_does_not_notice() -> None:
    world = running()
    await world.rest()
    becomes_ready(world)
    pods = world.cluster.of_kind("Pod")

    change(world, tensorboard={"enabled": True, "image": "mine:2"})
    await world.rest()
    template = world.cluster.objects[DEPLOYMENT]["spec"]["template"]
    assert template["spec"]["containers"][0]["image"] == "mine:2"

    change(world, tensorboard={"enabled": False})
    await world.rest()
    assert world.cluster.objects[DEPLOYMENT]["spec"]["replicas"] == 0
    assert "tensorboard" not in world.status
    assert (world.phase, world.cluster.of_kind("Pod")) == ("Running", pods)


async def test_one_that_somebody_deletes_comes_again() -> None:
    world = running()
    await world.rest()
    world.cluster.remove(DEPLOYMENT)
    await world.rest()
    assert DEPLOYMENT in world.cluster.objects


@pytest.mark.parametrize(
    "error",
    [
        ApiError(403, "Forbidden", 'deployments.apps "mnist-tensorboard" is forbidden: exceeded quota'),
        ApiError(422, "Invalid", 'Deployment "mnist-tensorboard" is invalid: spec.template: no'),
        ApiError(500, "InternalError", "no"),
        ApiError(0, "Unreachable", "no answer"),
    ],
    ids=lambda error: str(error.status),
)
@pytest.mark.parametrize("kind", ["Service", "Deployment"])
async def test_the_training_runs_and_ends_whatever_the_api_server_says_of_it(
    kind: str, error: ApiError
) -> None:
    world = World(**SPEC)
    world.cluster.refuse = lambda there: (
        error if (there["kind"], there["metadata"]["name"]) == (kind, NAME) else None
    )
    await world.until(lambda: world.phase == "Succeeded")
    for _ in range(3):
        await world.step()

    assert world.status["attempt"] == 1
    assert "failure" not in world.status
    message = world.status["tensorboard"].get("message", "")
    assert (f"{kind} {NAME} can't be made: " in message) is (error.status in (403, 422))
    assert world.again is not None
    assert world.again <= 10

    world.cluster.refuse = lambda there: None
    await world.rest()
    assert DEPLOYMENT in world.cluster.objects
    assert world.status["tensorboard"] == {"url": URL, "ready": False}


async def test_a_change_that_is_refused_is_told() -> None:
    world = running()
    await world.rest()
    wrong = ApiError(422, "Invalid", 'Deployment "mnist-tensorboard" is invalid: no such thing')
    world.cluster.refuse = lambda there: wrong if there["kind"] == "Deployment" else None
    change(world, tensorboard={"enabled": True, "template": {"spec": {"restartPolicy": "Never"}}})
    await world.until(lambda: "message" in world.status["tensorboard"])
    assert "no such thing" in world.status["tensorboard"]["message"]
    assert world.phase == "Running"


async def test_what_keeps_its_pod_from_being_made_is_told() -> None:
    world = running()
    await world.rest()
    failing = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: compute"}
    world.cluster.change(DEPLOYMENT, lambda there: there.update(status={"conditions": [failing]}))
    await world.rest()
    assert world.status["tensorboard"] == {"url": URL, "ready": False, "message": "exceeded quota: compute"}


async def test_a_queue_of_kueue_that_holds_its_pod_is_told() -> None:
    world = running()
    await world.until(lambda: ("Deployment", "ml", NAME) in world.cluster.objects)
    queued = {"kueue.x-k8s.io/queue-name": "default"}
    world.cluster.change(("Deployment", "ml", NAME), lambda there: there["metadata"]["labels"].update(queued))

    await world.until(lambda: bool((world.status.get("tensorboard") or {}).get("message")))

    assert world.status["tensorboard"]["message"] == (
        "its pod waits until Kueue admits it from LocalQueue default"
    )


def test_it_has_what_a_policy_or_a_quota_demands_of_the_replicas() -> None:
    template = {
        "metadata": {"labels": {"team": "ml"}, "annotations": {"sidecar.istio.io/inject": "false"}},
        "spec": {"nodeSelector": {"pool": "gpus"}},
    }
    made = {}
    for gpus in (0, 2):
        worker = {"gpus": gpus, "template": template, "resources": {"limits": {"cpu": "4"}}}
        board = plan_job(job(**SPEC, replicaSpecs={"worker": worker})).tensorboard
        assert board is not None
        made[gpus] = board.deployment["spec"]["template"]
    pod = made[0]
    assert pod["metadata"]["labels"]["team"] == "ml"
    assert pod["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"memory": "1Gi", "cpu": "1"}
    # A TensorBoard stays, and must keep no node with GPUs.
    selectors = [pod["spec"]["nodeSelector"] for pod in made.values()]
    assert selectors == [{"kubernetes.io/os": "linux", "pool": "gpus"}, {"kubernetes.io/os": "linux"}]


async def test_a_name_that_another_job_has_is_waited_for() -> None:
    world = World(**SPEC)
    world.cluster.add({"apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME, "namespace": "ml"}})
    await world.until(lambda: world.phase == "Succeeded")
    await world.step()
    assert "another object of this name exists" in world.status["tensorboard"]["message"]


# --- faults ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "field", "words"),
    [
        ({"tensorboard": {"enabled": True}}, "spec.tensorboard.enabled", "needs spec.artifacts"),
        ({**SPEC, "tensorboard": {"image": "no image"}}, "spec.tensorboard.image", "not an image reference"),
        (
            {**SPEC, "tensorboard": {"resources": {"limits": {"memory": "1 GB"}}}},
            "spec.tensorboard.resources.limits[memory]",
            "not a quantity",
        ),
        (
            {**SPEC, "tensorboard": {"template": {"spec": {"containers": [{"image": "x"}]}}}},
            "spec.tensorboard.template.spec.containers[0].name",
            "the container that serves is called tensorboard",
        ),
        (
            {**SPEC, "tensorboard": {"template": {"metadata": {"labels": {"dtj.dev/job": "x"}}}}},
            "spec.tensorboard.template.metadata.labels[dtj.dev/job]",
            "belong to the operator",
        ),
    ],
)
def test_a_wrong_spec_is_told_by_its_field(spec: dict[str, Any], field: str, words: str) -> None:
    (fault,) = faults(job(**spec))
    assert fault.field == field
    assert words in fault.message


def test_its_name_has_to_fit_too() -> None:
    assert faults(job("a" * 51, **SPEC)) == []
    (fault,) = faults(job("a" * 52, **SPEC))
    assert "the Service" in fault.message
    assert "use a job name of at most 51" in fault.message


def test_a_run_on_this_machine_says_how_to_have_one() -> None:
    assert left_out(plan_job(job(**SPEC))) == [
        "spec.tensorboard is for a cluster; on this machine, use `dtj tensorboard NAME --local`"
    ]

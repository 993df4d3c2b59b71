"""torch.distributed in real pods, by scripts that know nothing of dtj.

* ranks in the order of the workers, their logs and files in the bucket
* ranks that torchrun starts, and torchrun that would train apart in each pod
* images without dtj_trainer
* the accuracy of the example, with the ranks in two pods and in one
* scripts in the forms of others
* suspension, a pod that comes late, and the number of writes
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dtj.cli.job_table import COLUMNS, WIDE_COLUMNS
from dtj_trainer import contract
from tests.cluster.jobs import (
    ROOT,
    TORCH_EXAMPLE,
    Job,
    KubectlError,
    Manifest,
    Namespace,
    example,
    stub,
    until,
    with_script,
)
from tests.cluster.operator_pods import ask, leader
from tests.patience import PATIENCE

pytestmark = pytest.mark.cluster
BARE = "dtj-horovod-base:0.1.0"
"""An image without dtj_trainer."""
WITH_COMPILER = "dtj-trainer-horovod:0.1.0-compile"
SCRIPT = """
import argparse, os, pathlib, socket, sys
import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--master_ip")
parser.add_argument("--num_nodes", type=int)
parser.add_argument("--rank", type=int)
given = parser.parse_args()
if given.master_ip:
    address = f"tcp://{given.master_ip}:{os.environ['MASTER_PORT']}"
    dist.init_process_group("gloo", init_method=address, world_size=given.num_nodes, rank=given.rank)
else:
    dist.init_process_group("gloo")
total = torch.tensor(dist.get_rank() + 1.0)
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} on {socket.gethostname()}: {total.item():.0f}", flush=True)
if dist.get_rank() == 0 and os.path.exists("/dtj/checkpoints"):
    torch.save(total, "/dtj/checkpoints/epoch-1.pt")
    torch.save(total, "/dtj/model/total.pt")
dist.destroy_process_group()
"""
ARGUMENTS = ["--master_ip=$(MASTER_ADDR)", "--num_nodes=$(WORLD_SIZE)", "--rank=$(RANK)"]
FORMS_FOLDER = ROOT / "tests/trainer/torch_scripts"
NO_RETRY = {"backoffLimit": 0}


def script_job(name: str, workers: int, **spec: object) -> Manifest:
    """A job whose containers have SCRIPT as /app/train.py."""
    manifest = example(
        name,
        TORCH_EXAMPLE,
        replicaSpecs={"worker": {"replicas": workers, "template": with_script()}},
        **{"command": ["python", "/app/train.py"], "args": [], **spec},
    )
    del manifest["spec"]["data"]
    return manifest


@pytest.fixture(scope="module")
def scripts(shared_namespace: Namespace) -> dict[str, Job]:
    """Jobs of SCRIPT, by name. They run at once."""
    compiled = FORMS_FOLDER / "compiled.py"
    shared_namespace.kubectl(
        "create", "configmap", "script", f"--from-literal=train.py={SCRIPT}", f"--from-file={compiled}"
    )
    astray = {
        # The text of the shell does not show the flag.
        "command": ["bash", "-c", "torchrun $HOW /app/train.py; sleep 600"],
        "env": [{"name": "HOW", "value": "--standalone"}],
    }
    manifests = [
        script_job("workers", 2, args=ARGUMENTS),
        script_job("pair", 1, args=ARGUMENTS, torch={"procsPerWorker": 2}),
        script_job("torchrun", 2, command=["torchrun", "/app/train.py"]),
        script_job("astray", 2, runPolicy=NO_RETRY, **astray),
        script_job("bare", 2, image=BARE),
        script_job("bare-pair", 1, image=BARE, torch={"procsPerWorker": 2}, runPolicy=NO_RETRY),
        script_job("compiled", 1, image=WITH_COMPILER, command=["python", f"/app/{compiled.name}"]),
    ]
    (container,) = manifests[-1]["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"]
    container["securityContext"] = {"readOnlyRootFilesystem": True}
    for manifest in manifests:
        if manifest["spec"]["image"] == BARE:
            del manifest["spec"]["artifacts"]
    return {manifest["metadata"]["name"]: shared_namespace.apply(manifest) for manifest in manifests}


@pytest.mark.parametrize(
    ("name", "hosts"),
    [("workers", ["workers-worker-0", "workers-worker-1"]), ("pair", ["pair-worker-0"] * 2)],
)
def test_ranks_are_in_the_order_of_the_workers_and_their_files_are_kept(
    scripts: dict[str, Job], name: str, hosts: list[str]
) -> None:
    job = scripts[name]
    status = job.wait(180)
    assert status["restarts"] == {"application": 0, "infrastructure": 0}
    artifacts = job.artifacts()
    for rank, host in enumerate(hosts):
        log = artifacts.read(f"logs/attempt-1/rank-{rank}.log").decode()
        assert f"rank {rank} of 2 on {host}: 3\n" in log
    assert {
        "model/total.pt",
        "checkpoints/1/manifest.json",
        "checkpoints/1/epoch-1.pt",
    } <= artifacts.sizes().keys()


def test_torchrun_starts_the_ranks_that_were_asked_for(scripts: dict[str, Job]) -> None:
    job = scripts["torchrun"]
    job.wait(180)
    logs = [job.artifacts().read(f"logs/attempt-1/worker-{index}.log").decode() for index in (0, 1)]
    for rank, log in enumerate(logs):
        assert f"rank {rank} of 2 on torchrun-worker-{rank}: 3\n" in log


def test_torchrun_that_would_train_apart_in_each_pod_fails_within_seconds(scripts: dict[str, Job]) -> None:
    failure = scripts["astray"].wait(120, "Failed")["failure"]
    assert failure["class"] == "WorldSizeMismatch"
    assert failure["pod"].startswith("astray-worker-")
    assert "2 ranks were asked for" in failure["message"]
    assert "remove --standalone" in failure["message"]


def test_the_environment_is_enough_for_an_image_without_dtj_trainer(scripts: dict[str, Job]) -> None:
    job = scripts["bare"]
    job.wait(180)
    for rank in (0, 1):
        log = job.namespace.kubectl("logs", f"bare-worker-{rank}")
        assert f"rank {rank} of 2 on bare-worker-{rank}: 3\n" in log


def test_several_ranks_in_a_pod_of_such_an_image_are_refused(scripts: dict[str, Job]) -> None:
    status = scripts["bare-pair"].wait(120, "Failed")
    assert status["failure"]["exitCode"] == 78
    lines = "\n".join(status["failure"]["lastLogLines"])
    assert "the image has no dtj-launch, which starts the 2 ranks of this pod" in lines


def test_a_network_is_compiled_and_drawn_under_a_read_only_root(scripts: dict[str, Job]) -> None:
    job = scripts["compiled"]
    job.wait(180)
    log = job.artifacts().read("logs/attempt-1/rank-0.log").decode()
    assert "uid 1000, read-only root True, compiled True, equal True\n" in log
    kept = job.artifacts().sizes()
    assert any("events.out.tfevents" in key for key in kept)
    assert not any(key.startswith("cache/") for key in kept)


FORMS: dict[str, Manifest] = {
    "multinode": {
        "command": ["torchrun", "/app/multinode.py"],
        "args": ["8", "--snapshot_path=/tmp/snapshot.pt"],
    },
    "pytorchjob": {"args": ["--epochs=10"]},
    "spawn": {"args": ["--nproc=1"], "torch": {"startedBy": "Command"}},
    "hf-trainer": {"command": ["python", "/app/hf_trainer.py"]},
}


# On one machine, in `make test`: tests/trainer/test_torch_scripts.py, which also has scripts of accelerate.
@pytest.mark.chaos
def test_scripts_in_the_forms_of_others_train_in_one_world(namespace: Namespace) -> None:
    namespace.kubectl("create", "configmap", "script", f"--from-file={FORMS_FOLDER}")
    manifests = [
        script_job(name, 2, **{"command": ["python", f"/app/{name}.py"], **form})
        for name, form in FORMS.items()
    ]
    for job in [namespace.apply(manifest) for manifest in manifests]:
        job.wait(300)
        logs = [namespace.kubectl("logs", f"{job.name}-worker-{index}") for index in (0, 1)]
        for rank, log in enumerate(logs):
            slope = re.search(rf"rank {rank} of 2.*: slope ([0-9.]+)", log)
            assert slope is not None, log
            assert float(slope[1]) == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize(
    ("workers", "limit", "accuracy"),
    [
        (2, ["--max-steps=40"], 0.6),
        pytest.param(2, [], 0.85, marks=pytest.mark.chaos),
        pytest.param(1, [], 0.85, marks=pytest.mark.chaos),
    ],
)
def test_the_example_learns(namespace: Namespace, workers: int, limit: list[str], accuracy: float) -> None:
    args = ["--model=cnn", "--epochs=1", "--batch-size=64", *limit]
    replicas = {"worker": {"replicas": workers}}
    torch = {"procsPerWorker": 2 // workers}
    job = namespace.apply(
        example("learns", TORCH_EXAMPLE, args=args, replicaSpecs=replicas, torch=torch),
    )
    assert job.wait(300)["progress"]["accuracy"] >= accuracy
    assert {"model/model.pt", "logs/attempt-1/rank-1.log"} <= job.artifacts().sizes().keys()
    assert {row["worldSize"] for row in job.artifacts().metrics() if "worldSize" in row} == {2}


def test_a_suspended_job_goes_on_where_it_was(namespace: Namespace) -> None:
    job = namespace.apply(stub("paused", "--steps=3000", file=TORCH_EXAMPLE))
    reached = job.wait_for_step(40)
    row = re.compile(r"^paused +Running +([0-9.]+) +\S+ +\S+ +TorchDistributed +2 +1 +0 +0", re.MULTILINE)
    table = namespace.kubectl("get", "dtj", "--output=wide")
    assert table.splitlines()[0].split() == [*COLUMNS, *WIDE_COLUMNS], table
    assert (shown := row.search(table)), table
    assert float(shown[1]) > 1
    patch(job, suspend=True)
    job.wait(120, "Suspended")
    said = re.compile(
        r"^paused +Suspended .* suspended by runPolicy.suspend; attempt 2 is next", re.MULTILINE
    )
    assert said.search(table := namespace.kubectl("get", "dtj", "--output=wide")), table
    assert job.pods() == []
    (saved,) = [key for key in job.artifacts().sizes() if key.endswith("/manifest.json")]
    step = int(saved.split("/")[1].partition("-")[0])
    assert step >= reached
    patch(job, suspend=False)
    status = job.hurry_to_the_end()
    assert status["attempt"] == 2
    assert status["restarts"] == {"application": 0, "infrastructure": 0}
    log = job.artifacts().read("logs/attempt-2/rank-0.log").decode()
    assert f"resuming from the checkpoint of step {step}," in log
    assert job.artifacts().stub_steps_are_complete(3000)


def patch(job: Job, **policy: object) -> None:
    text = json.dumps({"spec": {"runPolicy": policy}})
    job.namespace.kubectl("patch", "dtj", job.name, "--type=merge", f"--patch={text}")


PLAYED = "played-by-a-test"
READY = "all 2 pods are ready"


def test_no_rank_starts_before_a_pod_that_comes_late(namespace: Namespace) -> None:
    manifest = stub("late", "--steps=5", file=TORCH_EXAMPLE)
    # The test is the scheduler of these pods.
    manifest["spec"]["replicaSpecs"]["worker"]["template"] = {"spec": {"schedulerName": PLAYED}}
    job = namespace.apply(manifest)
    until("the pods", lambda: len(job.pods()) == 2, 60)
    bind(namespace, "late-worker-0")
    until("worker 0 to wait", lambda: listens(namespace, "late-worker-0", contract.START_BARRIER_PORT), 120)
    # The kubelet of a busy node reports the start of a container late, and `kubectl logs` needs the report.
    running = "--for=jsonpath={.status.phase}=Running"
    namespace.kubectl("wait", running, "pod/late-worker-0", f"--timeout={50 * PATIENCE}s")
    assert READY not in namespace.kubectl("logs", "late-worker-0")
    bind(namespace, "late-worker-1")
    assert job.wait(120)["restarts"] == {"application": 0, "infrastructure": 0}
    assert job.artifacts().stub_steps_are_complete(5)
    log = namespace.kubectl("logs", "late-worker-0")
    assert 0 < log.index(READY) < log.index("one of 2 ranks"), log


def listens(namespace: Namespace, pod: str, port: int) -> bool:
    """Whether a process of the pod listens on the port."""
    try:
        sockets = namespace.kubectl("exec", pod, "--", "cat", "/proc/net/tcp", "/proc/net/tcp6")
    except KubectlError:  # The container does not run yet.
        return False
    return re.search(rf":{port:04X} [0-9A-F]+:0000 0A ", sockets) is not None


def bind(namespace: Namespace, pod: str) -> None:
    """Give a pod a node, as a scheduler does."""
    node = namespace.kubectl("get", "nodes", "--output=jsonpath={.items[0].metadata.name}")
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    path = f"/api/v1/namespaces/{namespace.name}/pods/{pod}/binding"
    namespace.kubectl("create", "--raw", path, "--filename=-", stdin=json.dumps(binding))


@pytest.mark.alone
def test_a_job_of_two_workers_costs_at_most_ten_writes(namespace: Namespace) -> None:
    before, began = writes(), time.monotonic()
    job = namespace.apply(stub("thrifty", "--steps=5", file=TORCH_EXAMPLE))
    job.wait(120)
    cost = writes() - before
    # On a busy machine the pods run for longer, and each look at their progress may find a new step. The first look
    # comes at once.
    looks = 1 + int((time.monotonic() - began) / PROGRESS_SECONDS)
    assert cost.pop("patch DistributedTrainingJob") <= 3 + looks, (looks, cost)
    assert cost.total() <= 7, cost


PROGRESS_SECONDS = 5
"""The default of the operator's --progress-interval."""


def writes() -> Counter[str]:
    """How often the leader created, changed and deleted objects since its start, by verb and kind."""
    return Counter(
        {
            f"{sample.labels['verb']} {sample.labels['kind']}": int(sample.value)
            for family in text_string_to_metric_families(ask(leader(), 8081, "/metrics"))
            for sample in family.samples
            if sample.name == "dtj_api_requests_total"
            and sample.labels["verb"] not in ("get", "list", "watch")
        }
    )

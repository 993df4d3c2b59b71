"""What a conversion makes of the ranks of torch.distributed.

* the options of torchrun
* ranks in each node of a PyTorchJob, and who starts them
* Master and Worker
* TrainJobs and their runtimes
* tasks of torchx
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.api.job import Manifest
from dtj.api.spec import StartedBy
from dtj.api.torch_distributed import procs_per_worker, ranks_start
from dtj.convert.job import convert, is_job
from dtj.convert.notes import Conversion
from dtj.convert.torch import read_torchrun
from dtj.convert.training_runtime import patched
from tests.unit.support.conversions import read, refusals

JOBS = Path(__file__).parents[2] / "convert_jobs"


def documents(name: str) -> list[Manifest]:
    return list(yaml.safe_load_all((JOBS / f"{name}.yaml").read_text()))


def job_of(objects: list[Manifest]) -> Manifest:
    (job,) = [each for each in objects if is_job(each)]
    return job


def converted(objects: list[Manifest]) -> Conversion:
    return convert(job_of(objects), others=objects)


def pytorch_job(*command: str, gpus: int = 0, master: Manifest | None = None, **spec: Any) -> Conversion:
    """torch-simple with another command, GPUs, fields of the spec, and fields of the master's container."""
    (job,) = documents("torch-simple")
    job["spec"] |= spec
    for role in job["spec"]["pytorchReplicaSpecs"].values():
        container = role["template"]["spec"]["containers"][0]
        container["command"] = [*command]
        if gpus:
            container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0] |= master or {}
    return convert(job)


@pytest.mark.parametrize(
    ("name", "args"),
    [("torch-gloo", ["--backend", "gloo"]), ("torch-nccl", ["--backend", "nccl"]), ("trainjob", [])],
)
def test_a_container_without_a_command_has_that_of_the_user(name: str, args: list[str]) -> None:
    objects = documents(name)
    if name == "trainjob":
        job_of(objects)["spec"]["trainer"]["image"] = "registry.test/torch:1"
    (why,) = refusals(converted(objects))
    assert why.endswith("(dtj convert --command 'python train.py')")
    job = read(convert(job_of(objects), others=objects, command=["torchrun", "train.py"]))
    assert (job.spec.command, job.spec.args) == (["torchrun", "train.py"], args)


def test_a_command_that_no_container_needs_is_told() -> None:
    (job,) = documents("torch-simple")
    made = convert(job, command=["python", "other file.py"])
    assert read(made).spec == read(convert(job)).spec
    assert "--command: python 'other file.py': left out: the job has a command" in map(str, made.notes)


# --- the options of torchrun ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "command", "options"),
    [
        (
            ["torchrun", "--nnodes=2", "--tee", "3", "-m", "a.b", "--nnodes", "9"],
            ["torchrun", "--tee", "3", "-m", "a.b", "--nnodes", "9"],
            {"nnodes": "2"},
        ),
        (
            ["/opt/bin/python3.11", "-u", "-m", "torch.distributed.run", "--nproc-per-node", "4", "a.py"],
            ["/opt/bin/python3.11", "-u", "-m", "torch.distributed.run", "a.py"],
            {"nproc_per_node": "4"},
        ),
        (
            ["torchrun", "--standalone", "--no-python", "a"],
            ["torchrun", "--no-python", "a"],
            {"standalone": ""},
        ),
        # An option that is not known may have a value: what follows stays as it is.
        (
            ["torchrun", "--unheard-of", "--nnodes=2", "a.py"],
            ["torchrun", "--unheard-of", "--nnodes=2", "a.py"],
            {},
        ),
        (
            [
                "bash",
                "-ec",
                'cd /a && torchrun --node_rank ${RANK:-0} --master_addr="$A" a.py "$X" | tee log',
            ],
            ["bash", "-ec", 'cd /a && torchrun a.py "$X" | tee log'],
            {"node_rank": "${RANK:-0}", "master_addr": "$A"},
        ),
        (
            ["sh", "-c", "exec torchrun \\\n  --nnodes=2 \\\n  a.py\necho done"],
            ["sh", "-c", "exec torchrun a.py\necho done"],
            {"nnodes": "2"},
        ),
    ],
)
def test_options_that_the_operator_sets_are_taken_out(
    words: list[str], command: list[str], options: dict[str, str]
) -> None:
    torchrun = read_torchrun(words)
    assert torchrun is not None
    assert (torchrun.command, torchrun.options) == (command, options)


@pytest.mark.parametrize(
    "words",
    [["python", "a.py"], ["sh", "-c", "torchrun a.py; torchrun b.py"], ["accelerate", "launch", "a.py"], []],
)
def test_a_command_without_one_torchrun_is_not_read(words: list[str]) -> None:
    assert read_torchrun(words) is None


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--nnodes=1:3"], "--nnodes 1:3: elastic"),
        (["--nnodes", "1"], "--nnodes 1: the job has 2 nodes"),
        (["--standalone"], "each of 2 nodes would train by itself"),
        (["--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0"], "each of 2 nodes would wait for itself"),
        (["--rdzv_backend=c10d", "--rdzv_endpoint=0.0.0.0:29500"], "each of 2 nodes would wait for itself"),
        (["--master-addr", "127.0.0.1"], "each of 2 nodes would wait for itself"),
        (["--nproc-per-node=gpu"], "the pods have no GPU"),
        (["--nproc-per-node=cpu"], "one rank for each CPU of the node"),
    ],
)
def test_options_that_would_train_otherwise_are_refused(options: list[str], why: str) -> None:
    (said,) = refusals(pytorch_job("torchrun", *options, "a.py", nprocPerNode="1"))
    assert why in said


# --- ranks in each node ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "gpus", "asked", "procs", "by"),
    [
        # A PyTorchJob starts a program once in each pod, whatever the GPUs.
        (["python", "a.py"], 4, None, 1, StartedBy.RANKS),
        (["python", "a.py"], 0, "auto", 1, StartedBy.RANKS),
        (["bash", "-c", "cd /a && python a.py"], 0, "1", 1, StartedBy.RANKS),
        (["python", "a.py"], 0, "2", 2, StartedBy.COMMAND),
        (["torchrun", "a.py"], 4, None, 4, StartedBy.COMMAND),
        (["torchrun", "a.py"], 4, "gpu", 4, StartedBy.COMMAND),
        (["torchrun", "a.py"], 4, 2, 2, StartedBy.COMMAND),
        (["torchrun", "--nproc_per_node", "3", "a.py"], 4, "2", 3, StartedBy.COMMAND),
        (["torchrun", "--nproc_per_node=$(PROCS)", "a.py"], 4, "2", 2, StartedBy.COMMAND),
        (["accelerate", "launch", "a.py"], 2, None, 2, StartedBy.COMMAND),
        (["./a.sh"], 0, "2", 2, StartedBy.COMMAND),
    ],
)
def test_as_many_ranks_start_in_each_node_as_in_kubeflow(
    command: list[str], gpus: int, asked: str | int | None, procs: int, by: StartedBy
) -> None:
    spec = read(pytorch_job(*command, gpus=gpus, nprocPerNode=asked)).spec
    assert (spec.worker.replicas, procs_per_worker(spec), ranks_start(spec).by) == (2, procs, by)


@pytest.mark.parametrize("command", [["torchrun", "a.py"], ["bash", "a.sh"]])
def test_a_number_of_ranks_that_the_node_decides_is_refused(command: list[str]) -> None:
    (said,) = refusals(pytorch_job(*command))
    assert said.startswith("spec.nprocPerNode: auto: one rank for each CPU of the node")


def test_a_world_size_that_counts_nodes_in_kubeflow_is_refused() -> None:
    text = "torchrun --nproc_per_node=4 a.py --nodes $WORLD_SIZE"
    (said,) = refusals(pytorch_job("sh", "-c", text))
    assert "WORLD_SIZE: 2 in Kubeflow, and 8 in dtj" in said
    assert read(pytorch_job("sh", "-c", text, nprocPerNode="4"))


def test_variables_of_the_operator_are_left_out() -> None:
    (job,) = documents("torch-master-alone")
    container = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "MASTER_PORT", "value": "1"}, {"name": "NCCL_DEBUG", "value": "INFO"}]
    made = convert(job)
    assert [variable.name for variable in read(made).spec.env] == ["NCCL_DEBUG"]
    assert any("env[MASTER_PORT]: 1: left out" in str(note) for note in made.notes)


# --- Master and Worker ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("master", "field"),
    [
        ({"image": "registry.test/other:1"}, "image"),
        ({"command": ["python", "b.py"]}, "command"),
        ({"env": [{"name": "A", "value": "1"}]}, "env"),
        ({"resources": {"limits": {"nvidia.com/gpu": 1}}}, "resources.limits"),
        ({"imagePullPolicy": "Always"}, "imagePullPolicy"),
    ],
)
def test_a_master_of_another_template_is_refused_with_the_field(master: Manifest, field: str) -> None:
    (said,) = refusals(pytorch_job("python", "a.py", master=master))
    assert said.startswith(f"spec.pytorchReplicaSpecs.Master.template.spec.containers[pytorch].{field}: ")


def test_a_master_that_differs_by_the_rank_of_its_node_does_not_differ() -> None:
    master = {"command": ["torchrun", "--node_rank=0", "a.py"]}
    made = pytorch_job("torchrun", "--node_rank=1", "a.py", master=master, nprocPerNode="1")
    assert read(made).spec.command == ["torchrun", "a.py"]


@pytest.mark.parametrize(
    ("roles", "why"),
    [
        ({}, "must have Master or Worker"),
        ({"Master": 2, "Worker": 1}, "Master.replicas: 2: must be 1"),
        ({"Worker": 2}, "without Master, Kubeflow gives the workers no RANK"),
        ({"Chief": 1, "Master": 1}, "a PyTorchJob has no such role"),
    ],
)
def test_roles_that_no_pytorchjob_trains_with_are_refused(roles: dict[str, int], why: str) -> None:
    (job,) = documents("torch-simple")
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    job["spec"]["pytorchReplicaSpecs"] = {role: {**worker, "replicas": n} for role, n in roles.items()}
    assert any(why in said for said in refusals(convert(job)))


@pytest.mark.parametrize(("restarts", "limit"), [(None, 3), ("OnFailure", 3), ("Never", 0)])
def test_the_master_sets_the_retries(restarts: str | None, limit: int) -> None:
    (job,) = documents("torch-simple")
    job["spec"]["pytorchReplicaSpecs"]["Master"]["restartPolicy"] = restarts
    assert read(convert(job)).spec.run_policy.backoff_limit == limit


# --- TrainJobs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resources", "asked", "procs"),
    [
        (None, None, 1),
        ({"limits": {"cpu": "2"}}, None, 2),
        ({"requests": {"cpu": "1500m"}, "limits": {"cpu": "4"}}, None, 2),
        ({"limits": {"cpu": "8", "nvidia.com/gpu": 2}}, None, 2),
        ({"limits": {"cpu": "8"}}, 3, 3),
    ],
)
def test_a_trainjob_has_a_rank_for_each_gpu_or_else_cpu(
    resources: Manifest | None, asked: int | None, procs: int
) -> None:
    (job,) = documents("trainjob-nodes")
    job["spec"]["trainer"] |= {"resourcesPerNode": resources, "numProcPerNode": asked}
    assert procs_per_worker(read(convert(job)).spec) == procs


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"runtimeRef": {"name": "other"}}, "kubectl get clustertrainingruntime other -o yaml"),
        ({"podTemplateOverrides": [{}]}, "write spec.runtimePatches"),
        ({"trainer": None}, "spec.trainer: required"),
        ({"trainer": {"numNodes": 0}}, "greater than or equal to 1"),
        ({"trainer": {"command": ["torchrun", "a.py"]}}, "spec.trainer.image: required"),
        (
            {"trainer": {"image": "a", "command": ["ping", "trainjob-nodes-node-0-0.trainjob-nodes"]}},
            "names a pod of the TrainJob",
        ),
    ],
)
def test_a_trainjob_that_would_train_otherwise_is_refused(change: Manifest, why: str) -> None:
    (job,) = documents("trainjob-nodes")
    job["spec"] |= change
    assert any(why in said for said in refusals(convert(job)))


def test_retries_of_a_jobset_are_kept() -> None:
    objects = documents("trainjob-runtime")
    objects[0]["spec"]["template"]["spec"]["failurePolicy"] = {"maxRestarts": 5}
    assert read(converted(objects)).spec.run_policy.backoff_limit == 5


def test_patches_merge_as_in_kubernetes() -> None:
    container = {"name": "node", "env": [{"name": "A", "value": "1"}], "image": "a"}
    patch = {"name": "node", "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}]}
    pod = {"containers": [{"name": "other"}, container], "tolerations": [{"key": "a"}]}
    assert patched(pod, {"containers": [patch], "tolerations": [{"key": "b"}]}) == {
        "containers": [{"name": "other"}, {**patch, "image": "a"}],
        "tolerations": [{"key": "b"}],
    }


# --- tasks of torchx ------------------------------------------------------------------------------


def test_tasks_that_differ_by_more_than_their_node_are_refused() -> None:
    (job,) = documents("torchx-ddp")
    pod = job["spec"]["tasks"][1]["template"]["spec"]
    pod["nodeSelector"], pod["containers"][0]["image"] = {"pool": "a"}, "registry.test/torch:2"
    said = refusals(convert(job))
    assert [each.partition(": ")[0] for each in said] == [
        "spec.tasks[digits-1].template.spec.containers[0].image",
        "spec.tasks[digits-1].template.spec.nodeSelector",
    ]


def test_a_variable_of_volcano_in_the_arguments_is_refused() -> None:
    (job,) = documents("torchx-gpus")
    command = job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["command"]
    command[2] += " --task $VC_TASK_INDEX"
    (said,) = refusals(convert(job))
    assert "uses a variable that Volcano sets" in said


def test_retries_of_torchx_restart_the_job() -> None:
    (job,) = documents("torchx-gpus")
    assert read(convert(job)).spec.run_policy.backoff_limit == 2
    del job["spec"]["tasks"][0]["policies"]
    assert read(convert(job)).spec.run_policy.backoff_limit == 0

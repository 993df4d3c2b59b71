"""The rules of strategy TorchDistributed: how the ranks start, and what can't work.

* who starts the ranks
* options of launchers that are refused, and those that work
* variables that the operator sets
"""

from __future__ import annotations

from typing import Any

import pytest

from dtj.api.job import Job
from dtj.api.spec import StartedBy
from dtj.api.strategies import rules_of
from dtj.api.torch_distributed import procs_per_worker, ranks_start
from dtj.api.validation import faults
from tests.unit.support.jobs import job


def torch_job(
    command: str | list[str] = "python train.py", *, workers: int = 2, gpus: int = 0, **spec: Any
) -> Job:
    words = command.split() if isinstance(command, str) else command
    worker = {"replicas": workers, "gpus": gpus, **spec.pop("worker", {})}
    roles = {"worker": worker}
    return job(strategy="TorchDistributed", command=words, replicaSpecs=roles, **spec)


def said(*given: Any, **spec: Any) -> list[str]:
    return [str(fault) for fault in faults(torch_job(*given, **spec))]


def own(**container: Any) -> dict[str, Any]:
    return {"template": {"spec": {"containers": [{"name": "trainer", **container}]}}}


# --- who starts the ranks -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "started_by", "by", "reason"),
    [
        (
            "python train.py",
            "Auto",
            "Ranks",
            "the command calls none of torchrun, accelerate launch and deepspeed",
        ),
        ("torchrun train.py", "Auto", "Command", "the command calls torchrun"),
        ("bash train.sh", "Command", "Command", "torch.startedBy is Command"),
        ("python train.py", "Ranks", "Ranks", "torch.startedBy is Ranks"),
        (["bash", "-c", "torchrun train.py"], "Auto", "Command", "the command calls torchrun"),
    ],
)
def test_the_command_or_the_job_says_who_starts_the_ranks(
    command: Any, started_by: str, by: str, reason: str
) -> None:
    given = torch_job(command, torch={"startedBy": started_by})

    assert faults(given) == []
    start = ranks_start(given.spec)
    assert (start.by, start.reason) == (StartedBy(by), reason)
    who = "dtj-launch" if by == "Ranks" else "the command"
    assert given.rules.notes(given.spec) == (f"Ranks are started by {who}, 1 in each worker: {reason}.",)


def test_a_workers_own_command_counts_and_does_not_get_the_jobs_args() -> None:
    given = torch_job("python train.py", worker=own(command=["torchrun", "own.py"]), args=["--standalone"])

    assert ranks_start(given.spec).by is StartedBy.COMMAND
    assert faults(given) == []
    (fault,) = said(worker=own(command=["torchrun"], args=["--standalone", "own.py"]))
    assert fault.startswith(
        "spec.replicaSpecs.worker.template.spec.containers[trainer].args[0]: --standalone lets each of the 2 workers"
    )
    (fault,) = said("torchrun", worker=own(args=["--nnodes=1", "own.py"]), args=["train.py"])
    assert fault.startswith(
        "spec.replicaSpecs.worker.template.spec.containers[trainer].args[0]: --nnodes=1 must"
    )


@pytest.mark.parametrize(
    ("gpus", "torch", "procs"), [(0, None, 1), (4, None, 4), (4, {}, 4), (4, {"procsPerWorker": 2}, 2)]
)
def test_a_worker_has_as_many_ranks_as_gpus_unless_the_job_says_otherwise(
    gpus: int, torch: Any, procs: int
) -> None:
    spec = torch_job(gpus=gpus, **({} if torch is None else {"torch": torch})).spec

    assert procs_per_worker(spec) == procs
    assert [rules_of(spec).ranks_of(spec, "worker", index) for index in range(2)] == [
        range(procs),
        range(procs, 2 * procs),
    ]


# --- options of launchers --------------------------------------------------------------------------------

REFUSED = {
    "torchrun --standalone t.py": "spec.command[1]: --standalone lets each of the 2 workers train alone: remove it",
    "torchrun --nnodes=1 train.py": "spec.command[1]: --nnodes=1 must be the number of workers, 2: remove it; "
    "torchrun reads PET_NNODES, which the operator sets",
    "torchrun --nnodes 1:2 train.py": "spec.command[1]: --nnodes 1:2 must be the number of workers, 2",
    "torchrun --node_rank=0 train.py": "spec.command[1]: --node_rank=0 gives all 2 workers the same rank: remove it; "
    "torchrun reads PET_NODE_RANK",
    "torchrun --rdzv-endpoint=localhost:29500 t.py": "spec.command[1]: --rdzv-endpoint=localhost:29500 names each",
    "torchrun --master_addr=127.0.0.1 train.py": "torchrun reads PET_MASTER_ADDR, which the operator sets",
    "torchrun --rdzv-backend c10d train.py": "spec.command[1]: --rdzv-backend c10d must be static",
    "torchrun --max-restarts=3 train.py": "spec.command[1]: --max-restarts=3 must be 0",
    "torchrun --nproc-per-node=4 train.py": "spec.command[1]: --nproc-per-node=4 must be the number of ranks of a "
    "worker, 1: remove it; torch.procsPerWorker",
    "torchrun --nproc_per_node gpu train.py": "spec.command[1]: --nproc_per_node gpu must be the number of ranks",
    "deepspeed train.py": "spec.command[0]: the deepspeed command starts the ranks of other hosts by ssh",
    "accelerate launch --num_machines=1 train.py": "spec.command[2]: --num_machines=1 must be the number of workers, "
    "2: remove it, and the operator inserts --num_machines=$(PET_NNODES)",
    "accelerate launch --num_processes 4 train.py": "--num_processes 4 must be the number of ranks of all workers, 2",
    "accelerate launch --machine_rank=1 train.py": "--machine_rank=1 gives all 2 workers the same rank",
    "accelerate launch --main_process_ip=::1 train.py": "--main_process_ip=::1 names each worker's own host",
    "accelerate launch --main_process_port=0 train.py": "--main_process_port=0 gives each worker another port",
    "accelerate launch --rdzv_backend=c10d train.py": "--rdzv_backend=c10d must be static",
    "accelerate launch --max_restarts=1 train.py": "--max_restarts=1 must be 0",
}


@pytest.mark.parametrize(("command", "message"), REFUSED.items())
def test_an_option_that_parts_the_workers_is_refused_by_its_name(command: str, message: str) -> None:
    (fault,) = said(command)
    assert message in fault
    (fault,) = said(command.split()[:1], args=command.split()[1:])
    assert fault.startswith(("spec.args[", "spec.command[0]: the deepspeed"))
    text = command.replace("accelerate launch", LINE)
    (fault,) = said(["bash", "-c", f"echo begin && {text}"])
    assert fault.startswith("spec.command[2]: ")


LINE = (
    "accelerate launch --multi_gpu --num_machines=$PET_NNODES --num_processes=$WORLD_SIZE "
    "--machine_rank=$PET_NODE_RANK --main_process_ip=$MASTER_ADDR --main_process_port=$MASTER_PORT"
)


@pytest.mark.parametrize(
    ("command", "spec"),
    [
        ("torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=static train.py", {}),
        ("torchrun --nnodes=2:2 --node-rank=$(RANK) --master-addr=$(MASTER_ADDR) train.py", {}),
        ("torchrun --rdzv-endpoint=mnist-worker-0.mnist.ml.svc:29500 --max-restarts=0 train.py", {}),
        ("torchrun --standalone --nproc-per-node=4 train.py", {"workers": 1, "gpus": 4}),
        ("torchrun --standalone --nproc-per-node=gpu --max-restarts=3 t.py", {"workers": 1, "gpus": 4}),
        (
            "torchrun --nnodes=1 --node-rank=0 --rdzv-backend=c10d --master-addr=localhost t.py",
            {"workers": 1},
        ),
        ("deepspeed --num_gpus=4 train.py", {"workers": 1, "gpus": 4}),
        ("accelerate launch --num_machines=2 --num_processes=2 --cpu train.py", {}),
        ("accelerate launch --config_file=a.yaml train.py", {}),
        (["bash", "-c", f"{LINE} train.py"], {}),
        (["bash", "-c", "accelerate launch train.py"], {"workers": 1, "gpus": 4}),
        (["bash", "-c", "accelerate launch train.py"], {"workers": 1}),
        ("torchrun train.py --nnodes=1 --standalone", {}),
    ],
)
def test_what_works_passes(command: Any, spec: dict[str, Any]) -> None:
    assert said(command, **spec) == []


@pytest.mark.parametrize(
    ("command", "spec", "message"),
    [
        ("torchrun --nnodes=2 t.py", {"workers": 1}, "--nnodes=2 must be the number of workers, 1"),
        (
            "torchrun --node-rank=1 t.py",
            {"workers": 1},
            "--node-rank=1 must be 0, the index of the only worker",
        ),
        (
            "deepspeed --num_gpus=2 t.py",
            {"workers": 1, "gpus": 4},
            "--num_gpus=2 must be the number of ranks",
        ),
        (
            "accelerate launch --cpu t.py",
            {"torch": {"procsPerWorker": 2}},
            "--cpu starts one process in a worker",
        ),
        (
            ["sh", "-c", "accelerate launch t.py"],
            {},
            f"write `{LINE} …`, or make accelerate the command itself",
        ),
        (
            ["sh", "-c", f"{LINE.replace('--machine_rank=$PET_NODE_RANK', '')} t.py"],
            {},
            "write `accelerate launch --machine_rank=$PET_NODE_RANK …`",
        ),
        (
            ["sh", "-c", "accelerate launch t.py"],
            {"workers": 1, "torch": {"procsPerWorker": 2}},
            "accelerate launch takes the number of machines and processes",
        ),
    ],
)
def test_other_numbers_of_workers_and_ranks(command: Any, spec: dict[str, Any], message: str) -> None:
    (fault,) = said(command, **spec)
    assert message in fault


def test_dtj_and_a_launcher_do_not_both_start_ranks() -> None:
    assert said("torchrun train.py", torch={"startedBy": "Ranks"}) == [
        "spec.torch.startedBy: Ranks starts the command once for each rank, and the command calls torchrun, which "
        "starts ranks itself: use Auto or Command, or remove the launcher from the command"
    ]


# --- variables -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["RANK", "MASTER_PORT", "PET_NNODES", "TORCHELASTIC_RUN_ID", "DTJ_ROLE"])
def test_variables_by_which_ranks_find_each_other_are_the_operators(name: str) -> None:
    variable = {"name": name, "value": "1"}
    sidecar = {"name": "sidecar", "image": "x", "env": [variable]}
    template = {"spec": {"containers": [{"name": "trainer", "env": [variable]}]}}

    assert said(env=[variable]) == [f"spec.env[0].name: {name} is set by the operator"]
    assert said(worker={"template": template}) == [
        f"spec.replicaSpecs.worker.template.spec.containers[trainer].env: {name} is set by the operator"
    ]
    if not name.startswith("DTJ_"):
        assert said(worker={"template": {"spec": {"containers": [sidecar]}}}) == []
        assert faults(job(env=[variable])) == [], "another strategy does not set the variable"


def test_a_variable_that_refers_to_a_rank_is_refused_where_a_worker_has_several() -> None:
    env = [{"name": "TAG", "value": "rank-$(RANK)"}, {"name": "B", "value": "$$(RANK) $(WORLD_SIZE)"}]

    assert said(env=env) == []
    assert said("torchrun train.py", env=env, torch={"procsPerWorker": 2}) == []
    assert said(env=env, torch={"procsPerWorker": 2}) == [
        "spec.env[0].value: $(RANK) differs between the ranks of a worker, and a variable is the same for all of "
        "them: refer to it in spec.args, or read it in the program"
    ]

"""The plan of strategy TorchDistributed: what each pod is told of the world, and how its ranks start.

* ranks, address and port
* variables of a rank, of torchrun and of accelerate
* references in the program
* threads and devices
* images without dtj-launch
* this machine

Whole objects are in tests/golden.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtj.api.job import Job
from dtj.api.torch_distributed import VARIABLES
from dtj.api.validation import faults
from dtj.local.plan import Place, container_ports, local_plan
from dtj.plan import torch_distributed
from dtj.plan.config_map import START, script
from dtj.plan.job import plan_job
from dtj.plan.model import Plan
from dtj.plan.pods import ranks_info, trainer_container
from dtj_trainer import contract
from tests.patience import PATIENCE
from tests.unit.support.jobs import UID, job

HOST = "mnist-worker-0.mnist.ml.svc"


def torch_job(*, workers: int = 2, gpus: int = 0, attempt: int = 1, worker: Any = None, **spec: Any) -> Job:
    roles = {"worker": {"replicas": workers, "gpus": gpus, **(worker or {})}}
    status = {"attempt": attempt}
    made = job(**{"strategy": "TorchDistributed", "replicaSpecs": roles} | spec, status=status)
    assert faults(made) == []
    return made


def environments(plan: Plan) -> list[dict[str, str]]:
    """The variables of each pod, by name."""
    return [
        {variable["name"]: variable.get("value", "") for variable in trainer_container(pod)["env"]}
        for pod in plan.pods
    ]


def program(plan: Plan, index: int = 0) -> list[str]:
    container = trainer_container(plan.pods[index])
    assert tuple(container["command"][:2]) == START
    assert "args" not in container
    words: list[str] = container["command"][2:]
    return words


def expanded(words: list[str], env: dict[str, str]) -> list[str]:
    """What the kubelet makes of words: https://kubernetes.io/docs/reference/kubernetes-api, Container.command."""
    pattern = re.compile(r"\$\$|\$\(([A-Za-z0-9_.-]+)\)")
    return [
        pattern.sub(lambda found: "$" if found[0] == "$$" else env.get(found[1], found[0]), word)
        for word in words
    ]


# --- ranks, address and port -----------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(1, 8), st.integers(1, 250), st.sampled_from(["python", "torchrun"]))
@settings(max_examples=60)
def test_the_pods_make_one_world(workers: int, procs: int, attempt: int, starter: str) -> None:
    plan = plan_job(
        torch_job(
            workers=workers, attempt=attempt, torch={"procsPerWorker": procs}, command=[starter, "t.py"]
        )
    )
    worlds = environments(plan)
    infos = [contract.PodInfo.from_json(env["DTJ_POD"]) for env in worlds]

    assert [rank for info in infos for rank in info.ranks] == list(range(workers * procs))
    assert [info.uploads for info in infos] == ["primary"] + ["other"] * (workers - 1)
    assert all(info.restores and info.reads_data for info in infos)
    names = ["MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "DTJ_WORLD_SIZE", "DTJ_SLOTS_PER_WORKER"]
    shared = {tuple(env[name] for name in names) for env in worlds}
    port = 29500 + attempt % 100
    assert shared == {(HOST, str(port), str(workers * procs), str(workers * procs), str(procs))}
    barrier = f"{HOST}:8475" if workers > 1 else None
    assert {env.get("DTJ_START_BARRIER") for env in worlds} == {barrier}
    assert [env["GROUP_RANK"] for env in worlds] == [str(index) for index in range(workers)]
    strategys = [
        {name for name in env if name.startswith(("TORCH", "PET_")) or "RANK" in name} for env in worlds
    ]
    reserved = set().union(*strategys) - {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT"}
    assert reserved | {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"} <= VARIABLES

    assert plan.shape.decisive == tuple(replica.name for replica in plan.shape.replicas)
    assert plan.shape.reporter == "mnist-worker-0"
    assert plan.serves_progress == {*plan.shape.decisive}
    first, *others = [
        {port["name"]: port["containerPort"] for port in trainer_container(pod)["ports"]} for pod in plan.pods
    ]
    assert first == {"progress": 8474, "master": port} | ({"start-barrier": 8475} if workers > 1 else {})
    assert others == [{"progress": 8474}] * (workers - 1)


def test_a_large_job_is_planned_in_linear_work() -> None:
    plan = plan_job(torch_job(workers=5000))

    assert len(plan.shape.decisive) == 5000
    assert len(str(plan.config)) < 20_000, "the ConfigMap does not name the pods"
    env = {v["name"]: v.get("value") for v in trainer_container(plan.pod(plan.shape.replicas[-1]))["env"]}
    assert (env["RANK"], env["WORLD_SIZE"]) == ("4999", "5000")


# --- variables -------------------------------------------------------------------------------------------


def test_a_pod_has_the_variables_that_torchrun_gives_to_its_first_rank() -> None:
    plan = plan_job(torch_job(torch={"procsPerWorker": 2}, attempt=3, runPolicy={"backoffLimit": 5}))

    env = environments(plan)[1]
    assert {name: env[name] for name in env if name in VARIABLES} == {
        "RANK": "2", "LOCAL_RANK": "0", "ROLE_RANK": "2", "GROUP_RANK": "1",
        "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "ROLE_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": HOST, "MASTER_PORT": "29503",
        "TORCHELASTIC_RUN_ID": UID, "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "5",
        "TORCHELASTIC_ERROR_FILE": "/dtj/run/torch-error-2.json",
    }  # fmt: skip
    assert plan.config["data"]["strategy.sh"] == script("torch.sh")


def test_a_command_that_starts_ranks_has_the_variables_that_torchrun_reads_for_its_flags() -> None:
    plan = plan_job(torch_job(gpus=4, attempt=2, command=["torchrun", "train.py"]))

    env = environments(plan)[1]
    assert {name: env[name] for name in env if name in VARIABLES} == {
        "RANK": "1", "GROUP_RANK": "1", "WORLD_SIZE": "8", "MASTER_ADDR": HOST, "MASTER_PORT": "29502",
        "PET_NNODES": "2", "PET_NPROC_PER_NODE": "4", "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": HOST, "PET_MASTER_PORT": "29502", "PET_RDZV_BACKEND": "static",
        "PET_RDZV_ENDPOINT": f"{HOST}:29502", "PET_RDZV_ID": UID, "PET_MAX_RESTARTS": "0",
    }  # fmt: skip
    assert "strategy.sh" not in plan.config["data"]
    assert program(plan) == ["torchrun", "train.py"]


@pytest.mark.parametrize("command", [["torchrun", "train.py"], ["bash", "train.sh"]])
def test_torchrun_reads_these_variables(command: list[str]) -> None:
    """The script of a pod with one rank may call torchrun too."""
    run = pytest.importorskip("torch.distributed.run")
    env = environments(plan_job(torch_job(gpus=1, command=command)))[1]
    torchs = {name: value for name, value in env.items() if name.startswith("PET_")}

    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        args = run.get_args_parser().parse_args(["train.py"])
        config, _, _ = run.config_from_args(args)

    assert {f"PET_{name.upper()}": str(value) for name, value in vars(args).items()}.items() >= torchs.items()
    assert (config.min_nodes, config.max_nodes, config.rdzv_configs["rank"]) == (2, 2, 1)
    assert config.shutdown_timeout == contract.STOP_SECONDS - 2
    assert env["RANK"] == "1"


def test_the_variables_of_torchrun_are_for_pods_whose_program_may_call_it() -> None:
    several = environments(plan_job(torch_job(gpus=4, command=["bash", "train.sh"])))[1]

    assert not [name for name in several if name.startswith(("PET_", "TORCH_ELASTIC"))]


@pytest.mark.parametrize("name", ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "OMP_NUM_THREADS", "ACCELERATE_USE_CPU"])
def test_the_jobs_own_value_of_a_default_counts(name: str) -> None:
    own = torch_job(worker={"resources": {"limits": {"cpu": 4}}}, env=[{"name": name, "value": "9"}])
    variables = trainer_container(plan_job(own).pods[0])["env"]

    assert [variable["value"] for variable in variables if variable["name"] == name] == ["9"]
    assert name in environments(plan_job(torch_job(worker={"resources": {"limits": {"cpu": 4}}})))[0]


ACCELERATE = [
    "--num_machines=2", "--num_processes=4", "--machine_rank=1", f"--main_process_ip={HOST}",
    "--main_process_port=$(MASTER_PORT)",
]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (["accelerate", "launch"], ["--multi_gpu", *ACCELERATE]),
        (["python", "-m", "accelerate.commands.launch", "--multi_gpu"], [*ACCELERATE, "--multi_gpu"]),
        (["accelerate", "launch", "--use_fsdp"], [*ACCELERATE, "--use_fsdp"]),
        (
            ["accelerate", "launch", "--use_deepspeed"],
            [*ACCELERATE, "--deepspeed_multinode_launcher=standard", "--use_deepspeed"],
        ),
        (
            ["accelerate", "launch", "--num-machines", "2", "--main_process_port=1"],
            ["--multi_gpu", *ACCELERATE[1:4], "--num-machines", "2", "--main_process_port=1"],
        ),
    ],
)
def test_accelerate_gets_the_options_that_it_lacks(given: list[str], made: list[str]) -> None:
    command = [*given, "train.py", "--num_machines=9"]
    plan = plan_job(torch_job(gpus=2, command=command))

    words = expanded(program(plan, 1), environments(plan)[1])

    start = given.index("launch") if "launch" in given else given.index("accelerate.commands.launch")
    assert words == [*given[: start + 1], *made, "train.py", "--num_machines=9"]


def test_the_text_of_a_shell_stays_as_it_is() -> None:
    command = ["bash", "-c", "accelerate launch --multi_gpu train.py"]

    assert program(plan_job(torch_job(workers=1, gpus=2, command=command))) == command


# --- references in the program ---------------------------------------------------------------------------

SCRIPT = ["python", "train.py"]
ARGS = ["--master_ip=$(MASTER_ADDR)", "--num_nodes=$(WORLD_SIZE)", "--rank=$(RANK)", "$(LOCAL_RANK)$(HOME)"]


def test_arguments_that_refer_to_the_pods_variables_are_expanded_by_the_kubelet() -> None:
    plan = plan_job(torch_job(command=SCRIPT, args=ARGS))

    assert expanded(program(plan), environments(plan)[1]) == [
        *SCRIPT, f"--master_ip={HOST}", "--num_nodes=2", "--rank=1", "0$(HOME)",
    ]  # fmt: skip


def test_of_several_ranks_in_a_pod_dtj_launch_expands_what_differs_between_them() -> None:
    plan = plan_job(torch_job(command=SCRIPT, args=ARGS, torch={"procsPerWorker": 2}))

    assert expanded(program(plan), environments(plan)[1]) == [
        *SCRIPT, f"--master_ip={HOST}", "--num_nodes=4", "--rank=$(RANK)", "$(LOCAL_RANK)$(HOME)",
    ]  # fmt: skip


WORD = st.lists(
    st.sampled_from(["$", "$$", "$(RANK)", "$(WORLD_SIZE)", "$(", ")", "RANK", "a", "$(LOCAL_RANK)"]),
    max_size=8,
).map("".join)


@given(WORD)
def test_the_kubelet_leaves_exactly_the_references_that_differ(word: str) -> None:
    plan = plan_job(torch_job(command=["python", "train.py", word], torch={"procsPerWorker": 2}))
    env = environments(plan)[0]
    kept = {name: f"$({name})" for name in contract.PER_RANK_VARIABLES}

    assert expanded(program(plan), env)[2] == expanded([word], env | kept)[0]


@pytest.mark.parametrize("procs", [1, 2])
def test_in_restarts_in_place_dtj_launch_expands_what_a_round_changes(
    procs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_rounds(*of: Any, **more: Any) -> contract.PodInfo:
        return replace(ranks_info(*of, **more), rounds=contract.Rounds(0, 6))

    monkeypatch.setattr(torch_distributed, "ranks_info", with_rounds)
    words = ["--port=$(MASTER_PORT)", "$(PET_MASTER_PORT)$$(MASTER_PORT)", "$(RANK)", "$(MASTER_ADDR)"]
    plan = plan_job(torch_job(command=SCRIPT, args=words, torch={"procsPerWorker": procs}))

    assert expanded(program(plan), environments(plan)[1])[len(SCRIPT) :] == [
        "--port=$(MASTER_PORT)",
        "$(PET_MASTER_PORT)$(MASTER_PORT)",
        "1" if procs == 1 else "$(RANK)",
        HOST,
    ]


# --- threads and devices ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "procs", "threads"),
    [(None, 1, None), (None, 2, "1"), (8, 2, "4"), ("7500m", 2, "3"), ("500m", 1, "1"), ("2", 4, "1")],
)
@pytest.mark.parametrize("in_template", [False, True])
def test_the_ranks_of_a_pod_share_its_cpus(
    limit: Any, procs: int, threads: str | None, in_template: bool
) -> None:
    resources = {"limits": {} if limit is None else {"cpu": limit}}
    container = {"name": "trainer", "resources": resources}
    worker = {"template": {"spec": {"containers": [container]}}} if in_template else {"resources": resources}
    spec = {"worker": worker, "torch": {"procsPerWorker": procs}}

    assert {env.get("OMP_NUM_THREADS") for env in environments(plan_job(torch_job(**spec)))} == {threads}


@pytest.mark.parametrize(
    ("worker", "on_cpus"),
    [
        ({}, True),
        ({"gpus": 1}, False),
        ({"resources": {"limits": {"cpu": 1, "amd.com/gpu": 1}}}, False),
        ({"template": {"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}}}, False),
    ],
)
def test_accelerate_is_told_to_train_on_cpus_where_a_worker_asks_for_no_device(
    worker: dict[str, Any], on_cpus: bool
) -> None:
    (env, _) = environments(plan_job(torch_job(worker=worker)))

    assert env.get("ACCELERATE_USE_CPU") == ("true" if on_cpus else None)


# --- images without dtj-launch ---------------------------------------------------------------------------


def start(folder: Path, programs: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run start.sh with strategy.sh in a container that has these programs only."""
    (folder / "bin").mkdir()
    for name in programs:
        (folder / "bin" / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (folder / "bin" / name).chmod(0o755)
    (folder / "strategy.sh").write_text(script("torch.sh"))
    (folder / "start.sh").write_text(script("start.sh"))
    return subprocess.run(
        [shutil.which("dash") or "/bin/sh", folder / "start.sh", "python", "a b"],
        env={"PATH": str(folder / "bin"), "DTJ_CONFIG_DIR": str(folder), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=20 * PATIENCE,
    )


def test_dtj_launch_starts_the_ranks(tmp_path: Path) -> None:
    done = start(tmp_path, ["dtj-launch", "python"], DTJ_SLOTS_PER_WORKER="2")

    assert done.stdout == "dtj-launch ranks -- python a b\n"


def test_without_dtj_launch_one_rank_runs_by_its_environment(tmp_path: Path) -> None:
    assert start(tmp_path, ["python"], DTJ_SLOTS_PER_WORKER="1").stdout == "python a b\n"


def test_without_dtj_launch_several_ranks_are_refused(tmp_path: Path) -> None:
    done = start(tmp_path, ["python"], DTJ_SLOTS_PER_WORKER="2")

    assert (done.returncode, done.stdout) == (contract.EXIT_CONFIG, "")
    assert done.stderr.startswith(
        "dtj: the image has no dtj-launch, which starts the 2 ranks of this pod: add it"
    )


# --- this machine ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["InPlaceRestart", "Recreate"])
@pytest.mark.parametrize(
    "command", [["python", "t.py"], ["torchrun", "t.py"], ["accelerate", "launch", "t.py"]]
)
def test_on_this_machine_every_address_has_the_port_of_worker_0(
    command: list[str], strategy: str, tmp_path: Path
) -> None:
    policy = {"restartStrategy": strategy}
    plan = plan_job(torch_job(command=command, args=["--port=$(MASTER_PORT)"], runPolicy=policy))
    ports = {wanted: 20000 + number for number, wanted in enumerate(container_ports(plan))}
    master, barrier = ports["mnist-worker-0", 29501], ports["mnist-worker-0", 8475]

    here = local_plan(plan, Place(run=tmp_path, mark="r", ports=ports))

    for env in environments(here):
        assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("127.0.0.1", str(master))
        assert env["DTJ_START_BARRIER"] == f"127.0.0.1:{barrier}"
        if command != ["python", "t.py"]:
            assert (env["PET_MASTER_ADDR"], env["PET_MASTER_PORT"]) == ("127.0.0.1", str(master))
            assert env["PET_RDZV_ENDPOINT"] == f"127.0.0.1:{master}"
    words = shlex.join(trainer_container(here.pods[1])["command"])
    port = master if strategy == "Recreate" else "$(MASTER_PORT)"
    assert shlex.quote(f"--port={port}") in words
    if command[0] == "accelerate":
        assert f"--main_process_ip=127.0.0.1 {shlex.quote(f'--main_process_port={port}')}" in words
    assert str(tmp_path) in words

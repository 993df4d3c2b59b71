"""Converted MPIJobs at run time: the commands of containers, with stand-ins for mpirun, ssh and the program.

* ranks of each worker
* launchers with their own mpirun, with and without dtj_trainer in the image
* launchers as root
* hosts: by name, in mpi-operator's hostfile, in the environment
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.api.job import Job, Manifest, read_job
from dtj.convert.job import convert
from dtj.plan.job import plan_job
from dtj_trainer.launch.mpirun_hosts import mpirun_command
from dtj_trainer.launch.settings import read_settings
from tests.unit.support.container_run import Image, Run
from tests.unit.support.pods import kubelet_environment

JOBS = Path(__file__).parents[2] / "convert_jobs"
# The program of each MPIJob that converts, and how many ranks of it run in each worker, as in Kubeflow.
RANKS: dict[str, tuple[str, list[int]]] = {
    "mpi-benchmarks": ("python", [1, 1]),
    "mpi-digits": ("python", [1, 1]),
    "mpi-efa-nccl": ("/opt/tests/all_reduce", [8, 8]),
    "mpi-elastic": ("python", [1, 1]),
    "mpi-hosts": ("python", [1, 1, 1, 1]),
    "mpi-imagenet": ("python", [8, 8]),
    "mpi-kueue": ("/opt/home/pi", [1, 1]),
    "mpi-npernode": ("python", [3, 3]),
    "mpi-pi": ("/opt/home/pi", [1, 1]),
    "mpi-root": ("python", [1, 1]),
    "mpi-script": ("python", [4, 4]),  # It runs mpirun twice, over two slots in each worker.
    "mpi-some-slots": ("python", [2, 1]),
    "mpi-volcano": ("/opt/home/pi", [1, 1, 1, 1]),
}
EFA = "/opt/amazon/openmpi/bin/mpirun"


def converted(name: str, **metadata: Any) -> Job:
    text = (JOBS / f"{name}.yaml").read_text().replace("/home/mpi/pi", "/opt/home/pi")
    manifest: Manifest = yaml.safe_load(text)
    manifest["metadata"] |= metadata
    made = convert(manifest)
    assert made.manifest is not None, [str(note) for note in made.notes]
    return read_job(made.manifest)


def run(folder: Path, name: str, mpirun: str = "/usr/bin/mpirun") -> Run:
    image = Image(folder, converted(name))
    image.has_mpirun(mpirun)
    image.has_program(RANKS[name][0])
    return image.run()


@pytest.fixture(autouse=True)
def _bash() -> None:
    if shutil.which("bash") is None:
        pytest.skip("needs bash")


def test_every_mpijob_that_converts_is_run_here() -> None:
    made = {file.stem: convert(yaml.safe_load(file.read_text())).manifest for file in JOBS.glob("mpi-*.yaml")}
    assert {name for name, manifest in made.items() if manifest is not None} == set(RANKS)


@pytest.mark.parametrize("name", sorted(RANKS))
def test_as_many_ranks_run_in_each_worker_as_in_kubeflow(name: str, tmp_path: Path) -> None:
    done = run(tmp_path, name, EFA if name == "mpi-efa-nccl" else "/usr/bin/mpirun")

    assert (done.code, done.errors) == (0, "")
    program, wanted = RANKS[name]
    assert Counter(done.pods_of_ranks()) == {
        f"{name}-worker-{index}": count for index, count in enumerate(wanted)
    }
    assert {rank["argv"][0] for rank in done.ranks} == {program}


def test_the_launchers_own_mpirun_runs_and_gives_its_path_to_the_ranks(tmp_path: Path) -> None:
    image = Image(tmp_path, converted("mpi-efa-nccl"))
    image.has_mpirun()  # Another one, which is first on PATH.
    image.has_mpirun(EFA)
    image.has_program("/opt/tests/all_reduce")

    done = image.run()

    assert done.code == 0, done.errors
    assert [call["mpirun"] for call in done.calls] == [EFA]
    assert done.calls[0]["rootAllowed"]
    assert done.ranks[0]["argv"] == ["/opt/tests/all_reduce", "-b", "8", "-e", "1G"]
    of_rank = done.ranks[0]["env"]
    assert of_rank["PATH"] == "$PATH:/opt/amazon/efa/bin:/usr/bin"
    assert of_rank["LD_LIBRARY_PATH"] == "/opt/amazon/openmpi/lib:/opt/nccl/lib"
    assert (of_rank["FI_PROVIDER"], of_rank["NCCL_DEBUG"]) == ("efa", "INFO")


def test_an_image_without_that_mpirun_says_so_and_takes_no_other(tmp_path: Path) -> None:
    image = Image(tmp_path, converted("mpi-efa-nccl"))
    image.has_mpirun()

    done = image.run()

    assert (done.code, done.calls) == (127, [])
    assert f"the image has no {tmp_path}{EFA}" in done.errors


def test_an_image_with_dtj_trainer_runs_it_too() -> None:
    plan = plan_job(converted("mpi-efa-nccl"))
    launcher = plan.pods[-1]["spec"]["containers"][0]
    env = kubelet_environment(launcher, plan.config)

    command = mpirun_command(read_settings(env), ["a.out"], env)

    assert command[:3] == [EFA, "-n", "16"]


@pytest.mark.parametrize("name", ["mpi-root", "mpi-benchmarks", "mpi-npernode", "mpi-script"])
def test_mpirun_starts_for_root_where_the_launcher_allowed_it(name: str, tmp_path: Path) -> None:
    calls = run(tmp_path, name).calls

    assert calls
    assert all(call["rootAllowed"] for call in calls)
    for pod in plan_job(converted(name)).pods:
        security = pod["spec"]["containers"][0]["securityContext"]
        # sshd serves root by its capabilities alone. The pod's runAsNonRoot holds unless the container says else.
        assert (security["runAsUser"], security["runAsNonRoot"]) == (0, False)
        assert security["capabilities"]["drop"] == []


def test_a_launcher_that_allows_no_root_gets_none(tmp_path: Path) -> None:
    assert not any(call["rootAllowed"] for call in run(tmp_path, "mpi-digits").calls)


def test_ranks_find_their_hosts_by_dtjs_names(tmp_path: Path) -> None:
    done = run(tmp_path, "mpi-hosts")

    hostfile = plan_job(converted("mpi-hosts")).config["data"]["hostfile"]
    hosts = [line.split()[0] for line in hostfile.splitlines()]
    rank = done.ranks[0]
    assert rank["argv"] == [
        *("python", "pictures.py", "--dist-url=tcp://mpi-hosts-worker-0.mpi-hosts:23456"),
        *("--out", "/runs/mpi-hosts-worker-0/log"),
    ]
    assert rank["env"]["MASTER_ADDR"] == "mpi-hosts-worker-0.mpi-hosts"
    assert hosts[0].startswith(f"{rank['env']['MASTER_ADDR']}.")


def test_a_script_finds_the_hosts_in_its_mpi_operators_place(tmp_path: Path) -> None:
    done = run(tmp_path, "mpi-script")

    assert [call["argv"][-1] for call in done.calls] == ["--lr=1", "--lr=2"]
    assert done.calls[0]["argv"][:5] == [
        *("--allow-run-as-root", "-np", "4"),
        *("--hostfile", "/etc/mpi/hostfile"),
    ]
    assert "-F /etc/dtj/ssh_config" in done.calls[0]["env"]["OMPI_MCA_plm_rsh_args"]
    assert {rank["env"]["RUNS"] for rank in done.ranks} == {"/tmp/runs"}


def test_mpirun_without_a_hostfile_of_its_own_finds_the_hosts_in_the_environment(tmp_path: Path) -> None:
    done = run(tmp_path, "mpi-some-slots")

    assert done.calls[0]["argv"] == ["-np", "3", "python", "train.py"]
    assert len(done.ranks) == 3

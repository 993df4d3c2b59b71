"""The resources that this machine offers to a job."""

from __future__ import annotations

import importlib.util
import os
import socket
from pathlib import Path

import pytest

from dtj.api.errors import NotFound, Unusable
from dtj.api.job import Job
from dtj.local import machine
from dtj.local.machine import check_machine, free_ports, gpus, share_gpus
from dtj.local.runs import Runs, home
from dtj.local.store_choice import S3Store, chosen_store
from dtj.plan.job import plan_job
from dtj_trainer.contract.distribution import install_line
from tests.unit.support.jobs import job, manifest


def ps(**roles: int) -> Job:
    """A ParameterServer job with so many GPUs for each replica of a role."""
    replicas = {
        role: {"replicas": 2 if role == "worker" else 1, "gpus": count} for role, count in roles.items()
    }
    return job(strategy="ParameterServer", replicaSpecs={"worker": {"replicas": 2}, "ps": {}, **replicas})


def test_each_replica_gets_gpus_of_its_own() -> None:
    wanted = ps(worker=2, chief=1)
    assert share_gpus(wanted, plan_job(wanted), ["0", "1", "2", "3", "4", "5"]) == {
        "mnist-worker-0": ["0", "1"],
        "mnist-worker-1": ["2", "3"],
        "mnist-chief-0": ["4"],
    }


def test_all_ranks_of_horovod_see_all_gpus_of_the_job() -> None:
    wanted = job(replicaSpecs={"worker": {"replicas": 2, "gpus": 1}})
    both = ["0", "1"]
    assert share_gpus(wanted, plan_job(wanted), ["0", "1", "2"]) == {
        "mnist-worker-0": both,
        "mnist-worker-1": both,
    }


def test_more_gpus_than_there_are_is_told() -> None:
    wanted = ps(worker=1)
    with pytest.raises(Unusable, match="asks for 2 GPUs, this machine has 1"):
        share_gpus(wanted, plan_job(wanted), ["0"])


def test_gpus_are_those_that_the_environment_leaves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 3")
    assert gpus() == ["2", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus() == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: A (UUID: x)'\necho '  MIG'\necho 'GPU 1: A (UUID: y)'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert gpus() == ["0", "1"]


def test_what_is_not_installed_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["python", "-m", "dtj_trainer.programs.ps_image_classification"]
    wanted = job(strategy="ParameterServer", command=command, replicaSpecs={"worker": {}, "ps": {}})
    find = importlib.util.find_spec
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda n: None if n == "tensorflow" else find(n))
    with pytest.raises(Unusable, match="needs tensorflow") as told:
        check_machine(wanted)
    assert told.value.remedy == install_line("tensorflow")
    monkeypatch.setattr(machine.sys, "platform", "darwin")
    with pytest.raises(Unusable, match="needs Linux"):
        check_machine(wanted)


def test_horovod_needs_something_that_starts_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.shutil, "which", lambda name, path: name if name == "dtj-launch" else None)
    with pytest.raises(Unusable, match="neither mpirun nor horovodrun"):
        check_machine(job())


def test_free_ports_are_free_and_each_another_one() -> None:
    with socket.create_server(("127.0.0.1", 0)):
        ports = free_ports(40)
    assert len(set(ports)) == 40
    assert not {*ports} & {*free_ports(12_000, ports)}
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


def test_runs_are_found_by_name_and_namespace(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    for namespace in ("a", "b"):
        run = runs.run("mnist", namespace)
        run.folder.mkdir(parents=True)
        run.write(manifest() | {"metadata": {**manifest()["metadata"], "namespace": namespace}})
    assert [(run.namespace, run.name) for run in runs.list()] == [("a", "mnist"), ("b", "mnist")]
    assert runs.find("mnist", "b").job.namespace == "b"
    with pytest.raises(Unusable, match="several namespaces: a, b"):
        runs.find("mnist")
    with pytest.raises(NotFound):
        runs.find("other")


def test_one_run_of_a_name_at_a_time(tmp_path: Path) -> None:
    run = Runs(tmp_path).run("mnist", "a")
    with run.locked():
        assert run.pid == os.getpid()
        with pytest.raises(Unusable, match=f"is already running in process {os.getpid()}"), run.locked():
            pass
    assert run.pid is None


def test_home_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DTJ_HOME", str(tmp_path / "here"))
    assert home() == tmp_path / "here"
    monkeypatch.delenv("DTJ_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert home() == tmp_path / "dtj"


def test_the_jobs_own_store_is_taken_where_it_answers_and_there_are_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        own = job(artifacts={"uri": "s3://training/jobs", "endpoint": endpoint})
        with chosen_store(own, S3Store.EMBEDDED, tmp_path, None, print) as store:
            assert (store.kind, store.environment, store.descriptors) == (S3Store.JOB, {}, ())


@pytest.mark.parametrize(
    ("data", "folder", "said", "remedy"),
    [
        (
            None,
            "full",
            "--data copies a folder to the job's data.uri, and the job has none",
            "to the job's spec",
        ),
        ({"uri": "file:///data"}, "full", "the job reads file:///data from this machine", "remove --data"),
        ({"uri": "s3://datasets/it"}, "nowhere", "nowhere is not a folder", None),
        ({"uri": "s3://datasets/it"}, "full/file", "full/file is not a folder", None),
        ({"uri": "s3://datasets/it"}, "empty", "empty has no files", None),
    ],
)
def test_data_that_can_not_be_copied_is_refused_before_a_store_starts(
    tmp_path: Path, data: dict[str, str] | None, folder: str, said: str, remedy: str | None
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("")
    (tmp_path / "empty/folder").mkdir(parents=True)
    wanted = job(**({"data": data} if data else {}))
    with (
        pytest.raises(Unusable) as caught,
        chosen_store(wanted, S3Store.EMBEDDED, tmp_path / "home", tmp_path / folder, print),
    ):
        pass
    assert said in caught.value.message
    assert (remedy or "") in (caught.value.remedy or "")
    assert not (tmp_path / "home").exists()

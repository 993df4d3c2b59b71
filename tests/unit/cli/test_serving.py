"""`dtj export` and `dtj serve`: the programs that the commands start."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from dtj.api.errors import DtjError, NotFound, Unusable
from dtj_trainer.contract.distribution import version
from dtj_trainer.serving.serve import read_options
from tests.unit.support.fake_client import FakeArtifacts, FakeClient, call


@pytest.fixture
def environments() -> list[dict[str, str]]:
    """The environments of the programs that were started."""
    return []


@pytest.fixture
def started(
    monkeypatch: pytest.MonkeyPatch, environments: list[dict[str, str]], tmp_path: Path
) -> list[list[str]]:
    """The commands that were started, on a machine that has no runs."""
    commands: list[list[str]] = []

    def start(command: list[str], *, env: dict[str, str], **_: object) -> SimpleNamespace:
        commands.append(command)
        environments.append(env)
        return SimpleNamespace(wait=lambda: 0)

    monkeypatch.setenv("DTJ_HOME", str(tmp_path))
    monkeypatch.setattr(subprocess, "Popen", start)
    return commands


def test_the_export_gets_what_was_given(started: list[list[str]]) -> None:
    words = ("--labels", "a,b", "--range", "0,1", "--mean", "-1", "--invert")
    assert call("export", "s3://training/job", *words).exit_code == 0
    python = [sys.executable, "-m", "dtj_trainer.serving.export"]
    given = ["--labels=a,b", "--range=0,1", "--mean=-1", "--invert"]
    assert started == [[*python, *given, "--", "s3://training/job"]]


def test_the_command_has_the_defaults_of_the_program_that_it_starts(started: list[list[str]]) -> None:
    assert call("serve", "a=folder", "b=s3://bucket/job").exit_code == 0
    assert call("serve", "a=folder", "--pin", "--port", "0", "--threads", "3").exit_code == 0
    first, second = (words[3:] for words in started)
    assert started[0][:3] == [sys.executable, "-m", "dtj_trainer.serving.serve"]
    assert read_options(first) == read_options(["a=folder", "b=s3://bucket/job"])
    assert read_options(second) == read_options(["a=folder", "--pin", "--port=0", "--threads=3"])


@pytest.mark.parametrize("command", ["export", "serve"])
def test_the_name_of_a_job_is_its_prefix_in_the_store_of_the_job(
    started: list[list[str]], environments: list[dict[str, str]], client: type[FakeClient], command: str
) -> None:
    result = call(command, "mnist", "--namespace=ml", "--context=here", "--endpoint=http://s3:1")
    assert result.exit_code == 0, result.exception
    address = FakeArtifacts.uri if command == "export" else f"mnist={FakeArtifacts.uri}"
    assert started[0][-1] == address
    assert environments[0]["AWS_ENDPOINT_URL_S3"] == "http://of-the-job"
    assert ("connect", "ml", "here") in client.calls
    assert ("artifacts", "http://s3:1") in client.calls


def test_a_folder_goes_before_a_job_of_its_name(
    started: list[list[str]], client: type[FakeClient], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mnist").mkdir()
    assert call("export", "mnist").exit_code == 0
    assert call("serve", "mnist=mnist").exit_code == 0
    assert [words[-1] for words in started] == ["mnist", "mnist=mnist"]
    assert client.calls == []


def test_what_is_neither_a_folder_nor_a_job_is_told_as_both(
    started: list[list[str]], client: type[FakeClient]
) -> None:
    export, serve, run = call("export", "none"), call("serve", "none"), call("export", "none", "--local")
    for each in (export, serve, run):
        assert isinstance(each.exception, NotFound)
    assert str(export.exception) == "there is no folder none, and there is no job none in namespace ml"
    assert str(serve.exception) == "there is no job none in namespace ml"
    assert str(run.exception) == "no job none was run on this machine"
    assert not started


@pytest.mark.parametrize(("command", "lacks"), [("export", "onnx"), ("serve", "uvicorn")])
def test_it_says_what_is_not_installed(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch, command: str, lacks: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == lacks else find(name))
    result = call(command, "a=folder")
    assert isinstance(result.exception, DtjError)
    assert f"dtj {command} needs {lacks}" in str(result.exception)
    assert not started


URI = "s3://training/jobs/ml/vgg-1a2b3c4d"


def printed(*words: str) -> list[dict[str, Any]]:
    result = call("serve", "--manifest", *words)
    assert result.exit_code == 0, result.output
    return [*yaml.safe_load_all(result.stdout)]


def test_the_image_of_the_server_comes_from_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTJ_IMAGE_REGISTRY", "registry.example.com/dtj/")
    for words, image in (
        ((), f"registry.example.com/dtj/dtj-serve:{version()}"),
        (("--registry=localhost:5000",), f"localhost:5000/dtj-serve:{version()}"),
        (("--image=mine:1",), "mine:1"),
    ):
        (container,) = printed(f"vgg={URI}", *words)[0]["spec"]["template"]["spec"]["containers"]
        assert container["image"] == image


def test_the_manifest_runs_the_program_with_what_was_given(started: list[list[str]]) -> None:
    deployment, service, budget = printed(
        f"vgg={URI}", "--secret=s3", "--max-batch=8", "--pin", "--port=9000"
    )
    assert [each["kind"] for each in (deployment, service, budget)] == [
        "Deployment",
        "Service",
        "PodDisruptionBudget",
    ]
    assert {each["metadata"]["name"] for each in (deployment, service, budget)} == {"vgg-serve"}
    assert "namespace" not in deployment["metadata"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"dtj-serve:{version()}"
    assert container["envFrom"] == [{"secretRef": {"name": "s3"}}]
    wanted = [f"vgg={URI}", "--host=::", "--port=9000", "--threads=1", "--max-batch=8", "--pin"]
    assert read_options(container["args"]) == read_options(wanted)
    assert not started


def test_the_manifest_is_for_the_place_that_was_named() -> None:
    words = (
        "--name=pictures",
        "--namespace=ml",
        "--image=example.com/serve:1",
        "--replicas=5",
        "--memory=1Gi",
    )
    deployment, service, _ = printed(f"vgg={URI}", *words, "--cpus=5", "--workers=2")
    assert service["metadata"]["name"] == "pictures"
    assert service["metadata"]["namespace"] == "ml"
    assert deployment["spec"]["replicas"] == 5
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "example.com/serve:1"
    assert container["resources"]["limits"] == {"memory": "1Gi"}
    assert container["resources"]["requests"] == {"memory": "1Gi", "cpu": "5"}
    assert read_options(container["args"]).threads == 2, "two workers share the processors"


def test_kserve_gets_an_inference_service() -> None:
    (made,) = printed(f"vgg={URI}", "--kserve", "--service-account=reader", "--endpoint=http://s3:9000")
    assert (made["apiVersion"], made["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    predictor = made["spec"]["predictor"]
    assert predictor["serviceAccountName"] == "reader"
    assert predictor["containers"][0]["env"] == [{"name": "AWS_ENDPOINT_URL_S3", "value": "http://s3:9000"}]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("vgg=./model", "--manifest"), "vgg=./model has to be s3://bucket/prefix"),
        (("vgg", "--manifest"), "'vgg' has to be NAME=FOLDER or NAME=URI"),
        ((f"vgg={URI}", f"vgg={URI}", "--manifest"), "two models have the name vgg"),
        ((f"V.G={URI}", "--manifest"), "--name 'V.G-serve' has to be"),
        ((f"vgg={URI}", "--manifest", "--host=0.0.0.0"), "--host can't be used with --manifest"),
        ((f"vgg={URI}", "--manifest", "--token-file=x"), "--token-file can't be used with --manifest"),
        ((f"vgg={URI}", "--manifest", "--max-held=1"), "--max-held 1 has to be at least --max-body 16"),
        ((f"vgg={URI}", "--manifest", "--local"), "--local can't be used with --manifest"),
        ((f"vgg={URI}", "--secret=s3"), "--secret has an effect only with --manifest"),
        ((f"vgg={URI}", "--kserve"), "--kserve has an effect only with --manifest"),
        ((f"vgg={URI}", "--service-account=a"), "--service-account has an effect only with --manifest"),
        (("./vgg",), "'./vgg' has to be the name of a job, NAME=FOLDER or NAME=URI"),
        (("vgg=s3://",), "names no valid bucket"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_no_manifest_can_have_is_refused(
    started: list[list[str]], words: tuple[str, ...], said: str
) -> None:
    result = call("serve", *words)
    assert isinstance(result.exception, Unusable)
    assert said in str(result.exception)
    assert not started

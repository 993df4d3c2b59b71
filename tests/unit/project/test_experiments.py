"""The jobs of docs/experiments.md: valid, with the experiments' hyperparameters, submitted by the page's commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtj.api.job import read_job
from dtj.api.validation import faults
from dtj.cli import main as cli
from dtj.report.cost import read_price

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/experiments.md").read_text()
JOBS = sorted((ROOT / "manifests/examples/experiments").glob("*.yaml"))
NETWORKS = ("vgg16_bn", "resnet18", "mobilenet_v2", "shufflenet_v2", "densenet121")
DTJ = """#!/bin/sh
[ "$1" = submit ] || exit 1
name=${4:-$(basename "$2" .yaml)}
[ ! -e "$SUBMITTED/$name.yaml" ] || exit 1
cat "$2" > "$SUBMITTED/$name.yaml"
"""
"""In place of `dtj submit FILE [--name NAME]`: keeps the files."""


def spec(name: str) -> dict[str, Any]:
    job = yaml.safe_load((ROOT / f"manifests/examples/experiments/{name}.yaml").read_text())
    return dict(job["spec"])


@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.stem)
def test_dtj_validate_accepts_it_and_the_page_shows_it(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["dtj", "validate", str(file)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    assert (ended.value.code or 0, said.err) == (0, "")
    assert f"(../manifests/examples/experiments/{file.name})" in PAGE


def test_the_hyperparameters_are_those_of_the_experiments() -> None:
    adadelta = {"--epochs=20", "--optimizer=adadelta", "--lr=0.1", "--batch-size=128", "--data-workers=2"}
    alone, distributed = spec("networks-alone"), spec("networks-distributed")
    assert adadelta <= {*alone["args"]}
    assert alone["args"] == distributed["args"]
    assert [each["replicaSpecs"]["worker"]["replicas"] for each in (alone, distributed)] == [1, 2]
    for name in ("asynchronous", "synchronous"):
        servers = spec(f"ps-{name}")
        assert {"--model=resnet44", "--batch-size=128", "--max-steps=60000"} <= {*servers["args"]}
        assert servers["parameterServer"]["updates"].lower() == name
        assert {role: each["replicas"] for role, each in servers["replicaSpecs"].items()} == {
            "ps": 1, "worker": 3, "evaluator": 1
        }  # fmt: skip
    assert spec("vgg-three-nodes")["replicaSpecs"]["worker"]["replicas"] == 3
    assert "--classes=Apple Braeburn,Kiwi,Guava" in spec("fruits-horovod")["args"]


def test_the_page_gives_each_pod_of_the_parameter_servers_a_price() -> None:
    (price,) = re.findall(r"^\$ dtj report .*--price (\S+)$", PAGE, re.MULTILINE)
    job = read_job(yaml.safe_load((ROOT / "manifests/examples/experiments/ps-asynchronous.yaml").read_text()))
    assert {*job.pods} == {*read_price(price).by_role}


def test_the_commands_of_the_page_submit_every_run(tmp_path: Path) -> None:
    submitted = tmp_path / "submitted"
    submitted.mkdir()
    (tmp_path / "dtj").write_text(DTJ)
    (tmp_path / "dtj").chmod(0o755)
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    lines = re.findall(r"^\$ (.*dtj submit.*)$", PAGE, re.MULTILINE)
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join([*blocks, *lines])],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SUBMITTED": str(submitted)},
        check=True,
    )
    jobs = {file.stem: yaml.safe_load(file.read_text()) for file in submitted.iterdir()}
    models = {}
    for name, job in jobs.items():
        job["metadata"]["name"] = name
        assert faults(read_job(job)) == [], name
        models[name] = next(word for word in job["spec"]["args"] if word.startswith("--model=")).partition(
            "="
        )[2]
    networks = {
        f"networks-{kind}-{model.replace('_', '-')}": model
        for kind in ("alone", "distributed")
        for model in NETWORKS
    }
    servers = {f"{kind}-{n}": "resnet44" for kind in ("synchronous", "asynchronous") for n in range(1, 6)}
    vgg = dict.fromkeys(("vgg-one-node", "vgg-three-nodes"), "vgg16_bn")
    assert models == networks | servers | vgg | {"fruits-horovod": "cnn"}
    assert jobs["vgg-one-node"]["spec"]["replicaSpecs"]["worker"]["replicas"] == 1

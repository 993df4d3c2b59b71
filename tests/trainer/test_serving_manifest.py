"""What `dtj serve --manifest` prints is a server that answers: its container runs here, with a model in S3."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from tests.patience import PATIENCE
from tests.trainer.conftest import until
from tests.trainer.served_models import Client, file_of, pixels, write_model
from typer.testing import CliRunner

from dtj.cli.commands import load
from dtj.cli.main import app
from dtj.local.store_keeper import free_ports
from dtj_trainer.artifacts.store import Store

PAGE = (Path(__file__).parents[2] / "docs/serving.md").read_text()
TOKEN = "open-sesame"


def manifests(*words: str) -> list[dict[str, Any]]:
    """What the command prints."""
    result = CliRunner().invoke(app, ["serve", *words])
    assert result.exit_code == 0, result.output
    return [*yaml.safe_load_all(result.stdout)]


def test_the_commands_of_the_page_serve_a_model_in_s3(job_store: Store, job_uri: str, tmp_path: Path) -> None:
    model = write_model(tmp_path / "written", 1)
    for name in ("model.onnx", "model.json", "manifest.json"):
        job_store.below("model").put_file(name, model / name)
    (tmp_path / "kitten.jpg").write_bytes(file_of(pixels(1), "JPEG"))
    _, _, page = PAGE.partition("\n## In a cluster\n")
    (words,) = re.findall(r"^\$ dtj serve (.*) \| kubectl apply --filename -$", page, re.MULTILINE)
    (asked, forwarded) = re.search(r"\$\((kubectl get .*?)\).*service/(\S+)", page, re.DOTALL).groups()  # type: ignore[union-attr]
    assert asked.endswith("{.status.artifacts.model}")
    given = shlex.split(words.replace(f"$({asked})", f"{job_uri}/model"))
    (port,) = free_ports(1)
    given = [*given, f"--port={port}", "--poll=0.05"]
    deployment, service, _ = manifests(*given)
    assert deployment["metadata"]["name"] == service["metadata"]["name"] == forwarded
    assert f"deployment/{forwarded}`" in page
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (inference_service,) = manifests(*given, "--kserve")
    assert inference_service["spec"]["predictor"]["containers"][0]["args"] == container["args"]
    assert container["envFrom"] == [{"secretRef": {"name": "s3-credentials"}}]

    process = subprocess.Popen(
        [sys.executable, "-m", "dtj_trainer.serving.serve", *container["args"]],  # The image's entry point.
        env={**os.environ, "DTJ_SERVE_TOKEN": TOKEN},
        cwd=tmp_path,
    )
    try:
        client, probe = Client(port), container["readinessProbe"]["httpGet"]
        assert probe["port"] == port

        def is_ready() -> bool:
            assert process.poll() is None
            try:
                return client("GET", probe["path"]).status == 200
            except ConnectionError:
                return False

        until(is_ready, "the server is ready")
        assert client("GET", container["livenessProbe"]["httpGet"]["path"]).status == 200
        assert client("GET", "/models").status == 401
        (command,) = re.findall(r"^\$ (curl .*)$", page, re.MULTILINE)
        curl = shlex.split(command.replace("127.0.0.1:8080", f"127.0.0.1:{port}"))
        done = subprocess.run(
            [curl[0], "--silent", "--fail", "--header", f"Authorization: Bearer {TOKEN}", *curl[1:]],
            cwd=tmp_path, capture_output=True, check=True, timeout=40 * PATIENCE,
        )  # fmt: skip
        found = json.loads(done.stdout)
        assert len(found) == 5
        assert [*found.values()] == sorted(found.values(), reverse=True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(40 * PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


def test_the_page_has_every_option_of_the_manifest() -> None:
    _, _, page = PAGE.partition("\n## In a cluster\n")
    own = {
        name
        for option in load("serve").params
        if getattr(option, "rich_help_panel", None)
        for name in option.opts
        if name.startswith("--")
    }
    assert len(own) == 9
    without_it = {"--namespace", "--endpoint"}
    assert {name for name in own | without_it if f"`{name}" not in page} == set(), (
        "these have a meaning with it"
    )

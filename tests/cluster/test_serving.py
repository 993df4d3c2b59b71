"""From `kubectl apply` of a training to a prediction, by the three commands of docs/serving.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from PIL import Image

from tests.cluster.browser import forwarded
from tests.cluster.install import POLICY_V1_SINCE, server_minor
from tests.cluster.jobs import ROOT, TORCH_EXAMPLE, Job, Namespace, example, kubectl, until
from tests.patience import PATIENCE

pytestmark = pytest.mark.cluster
PAGE = (ROOT / "docs/serving.md").read_text()


def commands() -> tuple[str, str, str]:
    """Those of the page, in its section about clusters."""
    (block,) = re.findall(r"```console\n(\$ kubectl apply.*?)```", PAGE, re.DOTALL)
    apply, serve, ask = re.findall(r"^\$ (.*)", block, re.MULTILINE)
    return apply, serve, ask


def test_three_commands_lead_from_a_training_to_a_prediction(namespace: Namespace, tmp_path: Path) -> None:
    args = ["--model=cnn", "--max-steps=40", "--batch-size=64"]
    job = example("vgg", TORCH_EXAMPLE, exports=True, args=args)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    Image.new("L", (300, 200), 128).save(tmp_path / "kitten.jpg")
    environment = {
        **os.environ,
        "KUBECONFIG": str(_kubeconfig(namespace, tmp_path)),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    endpoint = json.dumps({"stringData": {"AWS_ENDPOINT_URL_S3": os.environ["DTJ_TEST_S3_ENDPOINT"]}})
    namespace.kubectl("patch", "secret", "s3-credentials", f"--patch={endpoint}")

    def run(command: str) -> str:
        began = time.monotonic()
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300 * PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stderr}\n{Job(namespace, 'vgg').story()}"
        print(f"{time.monotonic() - began:5.1f} s  {command}")
        return done.stdout

    train, serve, ask = commands()
    run(train)
    assert "exportError" not in Job(namespace, "vgg").status["progress"]
    made = {line.split("/")[0] for line in run(_as_served(serve)).splitlines()}
    assert made == {"deployment.apps", "service", "poddisruptionbudget.policy"}
    run(f"kubectl rollout status deployment/vgg-serve --timeout={120 * PATIENCE:.0f}s")
    until("one pod of the two to be allowed to go", lambda: _may_go(namespace), 30)
    with forwarded(namespace, "vgg-serve", 8080) as url:
        answer = json.loads(run(ask.replace("http://127.0.0.1:8080", f"--no-progress-meter {url}")))
        named = json.loads(run(f"curl --no-progress-meter '{url}/predictions/vgg?labels=true' -T kitten.jpg"))
    assert len(answer) == 5
    assert [*answer.values()] == sorted(answer.values(), reverse=True)
    assert not any(name.isdecimal() for name in named)


def _as_served(command: str) -> str:
    """The command for this cluster: a server before 1.21 has the PodDisruptionBudget in policy/v1beta1 alone."""
    if server_minor() >= POLICY_V1_SINCE:
        return command
    return command.replace("| kubectl apply", "| sed 's:^apiVersion. policy/v1$:&beta1:' | kubectl apply")


def _may_go(namespace: Namespace) -> bool:
    """Whether the cluster lets a drain take one of the two pods."""
    (budget,) = namespace.list("poddisruptionbudgets")
    status = budget.get("status", {})
    return (status.get("expectedPods"), status.get("disruptionsAllowed")) == (2, 1)


def _kubeconfig(namespace: Namespace, folder: Path) -> Path:
    """The configuration of kubectl with this namespace."""
    file = folder / "kubeconfig"
    file.write_text(kubectl("config", "view", "--flatten"))
    kubectl(f"--kubeconfig={file}", "config", "set-context", "--current", f"--namespace={namespace.name}")
    return file

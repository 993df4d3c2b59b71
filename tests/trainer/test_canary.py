"""Secrecy of the bucket's key: the key from the environment of a replica is in no log, report or object."""

from __future__ import annotations

import json
import urllib.request

from tests.patience import PATIENCE
from tests.trainer.conftest import SECRET_KEY, free_ports, get_text, keys, until

from dtj_trainer import contract

PROGRAM = """
import os, pathlib, time
from dtj_trainer import progress
secret = os.environ["AWS_SECRET_ACCESS_KEY"]  # a local variable, as of any S3 library
root = pathlib.Path(os.environ["DTJ_ROOT"])
step = root / "checkpoints" / "1"
step.mkdir(parents=True)
(step / "weights").write_text("weights")
(root / "tensorboard").mkdir(exist_ok=True)
(root / "tensorboard" / "events.out.tfevents.1").write_text("events")
(root / "model").mkdir(exist_ok=True)
(root / "model" / "weights").write_text("weights")
progress.report(step=1, total_steps=2)
print("trains")
while not (root / "go").exists():
    time.sleep(0.05)
raise RuntimeError("it broke")
"""


def test_a_secret_of_the_environment_is_in_no_log_report_or_object(make_workspace, job_uri, job_store):
    (port,) = free_ports(1)
    workspace = make_workspace(
        DTJ_STRATEGY="ParameterServer",
        DTJ_ROLE="chief",
        DTJ_ARTIFACTS_URI=job_uri,
        DTJ_PROGRESS_PORT=str(port),
    )
    (workspace.config / contract.JOB_FILE).write_text("spec: {artifacts: {secretName: s3-credentials}}\n")
    run = workspace.python(PROGRAM)
    run.says("trains")
    told = [get_text(f"http://127.0.0.1:{port}/{page}") for page in ("progress", "metrics")]
    request = urllib.request.Request(f"http://127.0.0.1:{port}{contract.STACKS_PATH}", method="POST")
    urllib.request.urlopen(request, timeout=5 * PATIENCE).close()
    until(lambda: any("stacks-" in key for key in keys(job_store, "logs")), "the stacks are in the bucket")
    (workspace.root / "go").touch()
    assert run.ended() == 1

    kept = {key: job_store.get_bytes(key) for key in keys(job_store)}
    kinds = {key.partition("/")[0] for key in kept}
    assert {"checkpoints", "tensorboard", "logs", contract.JOB_FILE} <= kinds
    told += [run.output, json.dumps(workspace.termination), *(f"{key} {kept[key]!r}" for key in kept)]
    assert "it broke" in run.output
    assert [text for text in told if SECRET_KEY in text] == []

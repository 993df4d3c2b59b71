"""`dtj run` of a TorchDistributed job: every attempt has a port of its own, and no variable of another world."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from dtj.cli.main import app
from tests.unit.support.jobs import manifest

PROGRAM = """
import os, socket, sys, time
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
assert os.environ["PET_RDZV_ENDPOINT"] == "%s:%d" % address and sys.argv[1] == str(address[1])
if os.environ["PET_NODE_RANK"] == "0":
    with socket.create_server(address) as listener:
        listener.accept()
else:
    while True:
        try:
            socket.create_connection(address).close()
            break
        except OSError:
            time.sleep(0.05)
print("met on", address[1], "LOCAL_RANK", os.environ.get("LOCAL_RANK"))
sys.exit(os.environ["DTJ_ATTEMPT"] == "1")
"""


def test_workers_meet_on_a_free_port_in_each_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTJ_HOME", str(tmp_path))
    # As where a rank of another world calls `dtj run`.
    monkeypatch.setenv("LOCAL_RANK", "7")
    monkeypatch.setenv("MASTER_PORT", "1")
    job = manifest(
        strategy="TorchDistributed",
        command=[sys.executable, "-c", PROGRAM, "$(MASTER_PORT)"],
        torch={"startedBy": "Command"},
        runPolicy={"restartStrategy": "Recreate"},
    )
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))

    result = CliRunner().invoke(app, ["run", str(file)])

    assert result.exit_code == 0, result.output
    ports = re.findall(r"\[worker-\d\] met on (\d+) LOCAL_RANK None", result.output)
    assert len(ports) == 4, result.output
    assert len(set(ports)) == 2, "one port for each attempt"
    assert {*ports}.isdisjoint({"29501", "29502"})

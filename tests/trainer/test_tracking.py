"""The process that writes a job's run to an MLflow server, as `dtj-launch` starts it.

* one run over attempts, with a server that is down; its points are those of metrics.jsonl in the bucket
* a server that hangs, is down or refuses: the programs run and end all the same
* which rank has the run's variables, for MLflow and for Weights & Biases
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.trainer.conftest import pod_variable, until
from tests.trainer.torch_pods import torch_pods
from tests.trainer.tracked_jobs import UID, FakeServer, attempt, tracked, two_restarts


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeServer]:
    made = FakeServer(tmp_path)
    yield made
    made.kill()


def test_a_job_with_two_restarts_and_a_server_that_is_down_is_one_run(
    make_workspace, server, job_uri, tmp_path
):
    two_restarts(make_workspace, server, job_uri, tmp_path)


def test_a_server_that_hangs_holds_up_neither_the_programs_nor_the_pod_for_long(
    make_workspace, server, tmp_path
):
    server.start()
    pod = tracked(make_workspace, server.uri, DTJ_TRACKING_END_SECONDS="3")
    go = tmp_path / "go"
    run = pod.python(attempt(range(5), wait_for=go), "ranks")
    run.says("reported", 90)
    until(lambda: server.runs, "the server has the run")

    server.signal(signal.SIGSTOP)
    go.touch()

    assert run.ended(90) == 0
    assert "has not taken all metrics within 3 s" in run.output
    assert "class" not in pod.termination
    server.signal(signal.SIGCONT)
    assert len(server.runs) == 1


def test_programs_run_without_a_server(make_workspace, server):
    pod = tracked(make_workspace, server.uri)
    run = pod.python(attempt(range(2), exit_code=4), "ranks")

    assert run.ended(90) == 4

    assert "run None None\n" in run.output
    assert f"the tracking server {server.uri} does not accept metrics; trying again" in run.output


def test_only_rank_0_has_the_run(make_workspace, server):
    server.start()
    pod = tracked(make_workspace, server.uri, 2, WANDB_PROJECT="digits", WANDB_RESUME="must")
    names = ("MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI", "WANDB_RUN_ID", "WANDB_RESUME", "WANDB_RUN_GROUP")
    run = pod.python(
        f"import json, os; print(json.dumps([os.environ.get(name) for name in {names}]))", "ranks"
    )

    assert run.ended(90) == 0, run.output

    (known,) = server.runs
    group = "mnist-uid"
    assert json.loads(pod.log("rank-0.log")) == [known, server.uri, UID, "must", group]
    assert json.loads(pod.log("rank-1.log")) == [None, None, None, "must", group]


def test_a_job_without_a_tracker_gets_no_variables(make_workspace):
    (pod,) = torch_pods(make_workspace, 1)
    run = pod.python(
        "import os; print([name for name in os.environ if name[:5] in ('MLFLO', 'WANDB')])", "ranks"
    )

    assert run.ended(90) == 0

    assert pod.log("rank-0.log") == "[]\n"


def test_the_jobs_own_variable_names_the_server_and_its_run(make_workspace, server):
    server.start()
    pod = tracked(make_workspace, "", MLFLOW_TRACKING_URI=server.uri, MLFLOW_EXPERIMENT_NAME="letters")
    run = pod.python("import os; print(os.environ['MLFLOW_RUN_ID'])", "ranks")

    assert run.ended(90) == 0, run.output

    (known,) = server.runs
    assert pod.log("rank-0.log") == f"{known}\n"
    assert server.run["experiment"] == "1"


def test_the_training_goes_on_when_the_process_is_killed(make_workspace, server, tmp_path):
    server.start()
    pod = tracked(make_workspace, server.uri)
    go = tmp_path / "go"
    run = pod.python(attempt(range(2), wait_for=go), "ranks")
    run.says("reported", 90)
    children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()
    (tracker,) = [
        int(child)
        for child in children
        if b"dtj_trainer.tracking" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]

    os.kill(tracker, signal.SIGKILL)
    run.says("the tracking process has ended; the training goes on without it", 90)
    go.touch()

    assert run.ended(90) == 0


def test_restarts_in_place_are_a_metric(make_workspace, server):
    server.start()
    pod = tracked(make_workspace, server.uri)
    told = [{"begin": {}}, {"restarts": 2}, {"end": "FINISHED"}]
    subprocess.run(
        [sys.executable, "-m", "dtj_trainer.tracking"],
        input="".join(f"{json.dumps(each)}\n" for each in told),
        text=True,
        env={**os.environ, **pod_variable(pod.environment), **pod.environment},
        check=True,
        timeout=90,
    )
    counts = [(value, step) for name, value, _, step in server.run["metrics"] if name == "restarts_in_place"]
    assert counts == [(2, 1)]

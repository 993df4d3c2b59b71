"""The roles of a ParameterServer job under `dtj-launch replica`: restored files, uploads, and the end of each role.

* servers: restore, SIGTERM, a bucket out of reach
* the chief after SIGTERM
* the evaluator: checkpoints, artifacts, SIGTERM
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest
from tests.trainer.conftest import Workspace, free_ports, get_json, has, keys, put_checkpoint, until

from dtj_trainer import contract

Role = Callable[..., Workspace]


@pytest.fixture
def role(make_workspace: Callable[..., Workspace], job_uri: str) -> Role:
    """Makes the pod of a role."""

    def make(name: str, **environment: str) -> Workspace:
        return make_workspace(
            f"{name}-{environment.get('DTJ_ATTEMPT', '1')}",
            **{"DTJ_STRATEGY": "ParameterServer", "DTJ_ROLE": name, "DTJ_ARTIFACTS_URI": job_uri}
            | environment,
        )

    return make


START = "import os, pathlib, time\nroot = pathlib.Path(os.environ['DTJ_ROOT'])\n"
FINDS = (
    START + "print('found', sorted(p.name for p in (root / 'checkpoints').iterdir() if p.name[0] != '.'))\n"
)
WRITES_ALL = (
    START
    + "for name in ('checkpoints/ckpt-900.pt', 'model/m.pt', 'tensorboard/eval/events.1', 'metrics.jsonl'):\n"
    + "    path = root / name\n    path.parent.mkdir(exist_ok=True)\n"
    + "    with path.open('a') as file: file.write(os.environ['DTJ_ROLE'] + '\\n')\n"
)


@pytest.mark.parametrize(("name", "found"), [("ps", True), ("worker", False)])
def test_servers_restore_as_told_and_keep_only_their_log(role, job_store, tmp_path, name, found):
    put_checkpoint(job_store, tmp_path, 120)
    before = keys(job_store)
    pod = role(name, DTJ_INDEX="1", DTJ_ATTEMPT="3")
    run = pod.python(FINDS + WRITES_ALL)
    assert run.ended() == 0
    files = "['checkpoint', 'ckpt-120.data-00000-of-00001', 'ckpt-120.index']"
    assert f"found {files if found else '[]'}\n" in run.output
    assert set(keys(job_store)) - set(before) == {f"logs/attempt-3/{name}-1.log"}
    assert "is not uploaded: only the pod of rank 0 or of the chief uploads artifacts" in run.output
    assert (pod.termination["role"], pod.termination["index"]) == (name, 1)
    assert "rank" not in pod.termination


@pytest.mark.parametrize("index", [0, 1])
def test_ranks_of_equal_pods_need_no_more_than_what_their_pod_is(make_workspace, job_uri, job_store, index):
    """Of a strategy that dtj does not have: each pod runs one rank, and the pod of rank 0 uploads."""
    info = contract.PodInfo(role="node", index=index, slots=1, part="primary", restores=True)
    pod = make_workspace(DTJ_ARTIFACTS_URI=job_uri, DTJ_POD=info.to_json(), DTJ_ROLE="worker")
    assert pod.python(WRITES_ALL + "raise SystemExit(3)").ended() == 3
    of_rank_0 = {"checkpoints/1/manifest.json", "metrics.jsonl", "tensorboard/eval/events.1"}
    there = set(keys(job_store))
    assert of_rank_0 & there == (of_rank_0 if index == 0 else set())
    assert f"logs/attempt-1/node-{index}.log" in there
    assert (pod.termination["role"], pod.termination["rank"]) == ("node", index)


@pytest.mark.parametrize("handler", ["", "signal.signal(signal.SIGTERM, lambda *_: None)\n"])
def test_a_server_that_is_told_to_end_is_gone_soon(role, job_store, handler):
    """As TensorFlow's server it waits in C, where no handler of Python's could run."""
    program = f"import ctypes, signal\n{handler}print('serves')\nwhile True: ctypes.CDLL(None).sleep(1)"
    pod = role("ps")
    run = pod.python(program)
    run.says("serves\n")
    run.terminate()
    # With a handler it has 5 s to end by itself.
    assert run.ended() == (137 if handler else 143)
    assert pod.termination["class"] == "Signal"
    assert job_store.get_bytes("logs/attempt-1/ps-0.log") == b"serves\n"


def test_a_server_that_is_killed(role):
    pod = role("ps")
    assert pod.python("import os; os.kill(os.getpid(), 9)").ended() == 137
    assert pod.termination["class"] == "Signal"
    assert pod.termination["signal"] == 9


def test_an_unreachable_bucket_holds_up_no_server(role, object_store):
    pod = role("worker", DTJ_SYNC_TIMEOUT_SECONDS="2")
    run = pod.python(START + "print('works')\nwhile not (root / 'go').exists(): time.sleep(0.05)")
    run.says("works\n")
    object_store.kill()
    (pod.root / "go").touch()
    assert run.ended() == 0
    assert "class" not in pod.termination


def test_a_chief_that_leaves_when_told_has_not_succeeded(role, job_store):
    """All that it closed before it left counts."""
    program = START + (
        "import signal, sys\n"
        "from dtj_trainer.artifacts.checkpoints import save\n"
        "def leave(*_):\n"
        "    save(7, lambda folder: (folder / 'w').write_text('state'))\n"
        "    (root / 'checkpoints' / 'ckpt-8.pt').write_text('closed')\n    sys.exit(0)\n"
        "(root / 'checkpoints' / 'ckpt-6.pt').write_text('settled')\n"
        "signal.signal(signal.SIGTERM, leave)\nprint('trains')\ntime.sleep(300)"
    )
    pod = role("chief", DTJ_CHECKPOINT_SETTLE_SECONDS="2")
    run = pod.python(program)
    run.says("trains\n")
    until(lambda: has(job_store, "checkpoints/1/manifest.json"), "the settled checkpoint")
    run.terminate()
    assert run.ended() == 143
    assert pod.termination["class"] == "Signal"
    assert pod.termination["message"] == "the program ended when it was told to stop (SIGTERM)"
    assert has(job_store, "checkpoints/7/manifest.json")
    assert has(job_store, "checkpoints/7/ckpt-8.pt")


def test_evaluator_follows_the_checkpoints(role, job_store, object_store, tmp_path):
    """Each is whole when it is seen; S3 that is away for a while is waited for."""
    program = START + (
        "folder, seen = root / 'checkpoints', []\n"
        "while not (root / 'go').exists():\n"
        "    state = folder / 'checkpoint'\n"
        "    if state.exists():\n"
        "        name = pathlib.Path(state.read_text().split('\"')[1]).name\n"
        "        for suffix in ('.index', '.data-00000-of-00001'):\n"
        "            assert (folder / (name + suffix)).read_text().endswith(name[5:]), name\n"
        "        if name not in seen: print('sees', name)\n"
        "        seen.append(name)\n"
        "    time.sleep(0.001)\n"
    )
    (port,) = free_ports(1)
    put_checkpoint(job_store, tmp_path, 90)
    pod = role("evaluator", DTJ_PROGRESS_PORT=str(port), DTJ_CHECKPOINTS_KEEP="2")
    run = pod.python(program)
    run.says("sees ckpt-90\n")
    put_checkpoint(job_store, tmp_path, 100)
    run.says("sees ckpt-100\n")
    object_store.kill()
    run.says("mirroring checkpoints failed and is tried again")
    object_store.start()
    put_checkpoint(job_store, tmp_path, 120, attempt=2)
    run.says("sees ckpt-120\n")

    def newest():
        return get_json(f"http://127.0.0.1:{port}/progress")["artifacts"].get("checkpoint", {}).get("step")

    def names():
        return {path.name for path in (pod.root / "checkpoints").glob("*.index")}

    until(lambda: newest() == 120, "the newest is told")
    until(lambda: names() == {"ckpt-100.index", "ckpt-120.index"}, "the last two are there")
    (pod.root / "go").touch()
    assert run.ended() == 0, run.output
    assert pod.termination["artifacts"]["checkpoint"]["step"] == 120
    assert run.output.count("failed and is tried again: ") <= 2  # The log's upload may say so too.


def test_evaluator_adds_to_what_there_is(role, job_store, tmp_path):
    """Its second attempt goes on with its metrics; the chief's files stay as they are."""
    put_checkpoint(job_store, tmp_path, 120)
    for key in ("metrics.jsonl", "tensorboard/events.of-chief", "model/m.pt"):
        job_store.put_bytes(key, b"chief\n")
    before = keys(job_store)
    for attempt in ("1", "2"):
        assert role("evaluator", DTJ_ATTEMPT=attempt).python(WRITES_ALL).ended() == 0
    assert set(keys(job_store)) - set(before) == {
        "attempt-evaluator.json",
        "logs/attempt-1/evaluator-0.log",
        "logs/attempt-2/evaluator-0.log",
        "metrics-evaluator.jsonl",
        "tensorboard/eval/events.1",
    }
    assert set(before) <= set(keys(job_store))
    assert job_store.get_bytes("metrics-evaluator.jsonl") == b"evaluator\n" * 2
    assert job_store.get_bytes("metrics.jsonl") == b"chief\n"
    assert job_store.get_bytes("model/m.pt") == b"chief\n"


def test_evaluator_that_is_told_to_end_leaves_its_files(role, job_store):
    pod = role("evaluator")
    run = pod.python(WRITES_ALL + "print('waits')\ntime.sleep(300)")
    run.says("waits\n")
    run.terminate()
    assert run.ended() == 143
    assert has(job_store, "metrics-evaluator.jsonl")
    assert has(job_store, "tensorboard/eval/events.1")
    assert json.loads(pod.termination_log.read_bytes())["signal"] == signal.SIGTERM

"""The chief under `dtj-launch replica`: exits, signals, output, artifacts.

* exit codes, signals and causes
* output, termination messages and the report
* artifacts of a run, of a second attempt, and of killed and failed programs
* stores that are away, killed or wrong
* settings
"""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
from pathlib import Path

import pytest
from tests.trainer.conftest import (
    PATIENT,
    REPOSITORY,
    free_ports,
    get_json,
    get_text,
    has,
    keys,
    kill_with_descendants,
    until,
)

from dtj_trainer.artifacts.snapshot import read_index


@pytest.fixture
def make_workspace(make_workspace):
    def make(name="pod", **environment):
        return make_workspace(name, **{"DTJ_STRATEGY": "ParameterServer", "DTJ_ROLE": "chief"} | environment)

    return make


def test_a_pod_that_is_told_to_stop_during_its_restore_ends_at_once(make_workspace, job_uri, tmp_path):
    """Threads that wait for the bucket hold nothing up, and the reason is known."""
    (tmp_path / "sitecustomize.py").write_text(
        "import time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from dtj_trainer.artifacts import sync as pod_sync\n"
        "def hangs(*_):\n"
        "    with ThreadPoolExecutor() as pool:\n"
        "        pool.submit(time.sleep, 3600)\n"
        "        print('restores', flush=True)\n"
        "pod_sync.restore_checkpoint = hangs\n"
    )
    path = f"{tmp_path}:{REPOSITORY / 'trainer'}"
    pod = make_workspace(DTJ_ARTIFACTS_URI=job_uri, PYTHONPATH=path)
    run = pod.python("print('runs')")
    run.says("restores\n")
    run.terminate()
    assert run.ended() == 143
    message = pod.termination
    assert message["message"] == "the pod was told to stop (SIGTERM) before its program ran"
    assert (message["class"], message["role"], message["signal"]) == ("Signal", "chief", 15)
    assert "runs" not in run.output


def test_success_passes_on_output_and_code(workspace):
    run = workspace.python("print('hello'); import sys; print('oops', file=sys.stderr)")
    assert run.ended() == 0
    assert "hello\n" in run.output
    assert "oops\n" in run.output
    assert workspace.log("chief-0.log") == "hello\noops\n"
    message = workspace.termination
    assert "class" not in message
    assert message["exitCode"] == 0
    assert list(message["phases"]) == ["started", "restored", "programStarted", "programEnded", "synced"]


def test_own_exit_code_is_passed_through(workspace):
    run = workspace.python("print('last words'); raise SystemExit(3)")
    assert run.ended() == 3
    message = workspace.termination
    assert message["class"] == "ApplicationError"
    assert message["message"] == "the program exited with code 3"
    assert message["exitCode"] == 3
    assert message["lastLogLines"] == ["last words"]


def test_end_by_signal(workspace):
    run = workspace.python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert run.ended() == 128 + signal.SIGSEGV
    assert workspace.termination["class"] == "Signal"
    assert workspace.termination["signal"] == signal.SIGSEGV
    assert workspace.termination["message"] == "the program was killed by SIGSEGV"


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("no-such-program", 127, "no-such-program is not on the PATH of the image"),
        ("/no/such/program", 127, "/no/such/program does not exist in the image"),
        ("/etc/passwd", 126, "/etc/passwd: Permission denied"),
    ],
)
def test_command_that_is_not_there(workspace, command, code, words):
    assert workspace.launch("replica", command).ended() == code
    assert workspace.termination["class"] == "CommandNotFound"
    assert workspace.termination["message"] == words


@pytest.fixture
def silent_address():
    """host:port of a server that takes no connection more, and says nothing of it, as from a node that is gone."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        with socket.create_connection(address):
            yield f"{address[0]}:{address[1]}"


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        ("raise SystemExit(1)", "ConnectionLost"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "Signal"),
        ("from dtj_trainer import progress; progress.failed('DataNotFound', 'x'); exit(65)", "DataNotFound"),
    ],
)
def test_an_error_may_come_of_a_server_that_does_not_answer(make_workspace, silent_address, program, cause):
    config = {"cluster": {"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:1"], "master": [silent_address]}}
    workspace = make_workspace(TF_CONFIG=json.dumps(config))

    assert workspace.python(program).ended() > 0

    assert workspace.termination["class"] == cause
    if cause == "ConnectionLost":
        assert workspace.termination["message"] == (
            f"the program exited with code 1, while {silent_address} did not answer"
        )


@pytest.mark.parametrize(
    "config", ["", "{", "[]", '{"cluster": {"ps": ["127.0.0.1:1", "x", "no.invalid:99999"]}}']
)
def test_an_error_is_the_programs_when_nobody_is_silent(make_workspace, config):
    workspace = make_workspace(TF_CONFIG=config)

    assert workspace.python("raise SystemExit(1)").ended() == 1

    assert workspace.termination["class"] == "ApplicationError"


def test_a_script_for_keras_2_is_told_what_to_do(workspace):
    error = "AttributeError: 'Variable' object has no attribute 'ref'"
    assert workspace.python(f"print({error!r} + chr(10)); raise SystemExit(1)").ended() == 1
    assert workspace.termination["class"] == "ApplicationError"
    assert workspace.termination["message"] == (
        "the program exited with code 1; the script is one for Keras 2: set TF_USE_LEGACY_KERAS=1 in spec.env, with "
        "tf_keras in the image (docs/own-script.md)"
    )


def test_cause_told_by_the_program(workspace):
    program = (
        "from dtj_trainer import progress\n"
        "progress.failed('DataNotFound', 'no data below s3://b/x')\n"
        "raise SystemExit(65)"
    )
    assert workspace.python(program).ended() == 65
    assert workspace.termination["class"] == "DataNotFound"
    assert workspace.termination["message"] == "no data below s3://b/x"


@pytest.mark.parametrize(
    ("code", "cause", "message"),
    [
        (65, "DataCorrupt", "train.gz is cut off"),
        (3, "ApplicationError", "the program exited with code 3"),
    ],
)
def test_cause_in_the_last_lines_counts_with_codes_of_dtj(workspace, code, cause, message):
    program = f"print('DataCorrupt: train.gz is cut off\\nbye'); raise SystemExit({code})"
    assert workspace.python(program).ended() == code
    assert (workspace.termination["class"], workspace.termination["message"]) == (cause, message)


def test_sigterm_is_forwarded_to_the_whole_group(workspace):
    program = (
        "import os, signal, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; print(\"up\"); time.sleep(300)'])\n"
        "def leave(*_):\n"
        "    print('told to stop', child.wait()); sys.exit(7)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "print('ready', child.pid)\n"
        "time.sleep(300)"
    )
    run = workspace.python(program)
    run.says("ready")
    run.says("up\n")
    run.terminate()
    assert run.ended() == 7
    assert "told to stop -15" in run.output


def test_what_the_program_leaves_behind_is_ended(workspace):
    program = (
        "import subprocess, sys\n"
        "left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
        "print('left', left.pid)"
    )
    run = workspace.python(program)
    assert run.ended() == 0
    pid = int(run.output.split("left ")[1].split()[0])

    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z"
        except OSError:
            return True

    until(gone, "the process left behind is gone")


def test_progress_bars_and_long_lines(workspace):
    program = "import sys; sys.stdout.write('10%\\r20%\\r\\n'); sys.stdout.write('x' * 40000)"
    assert workspace.python(program).ended() == 0
    lines = workspace.log("chief-0.log").splitlines()
    assert lines[0] == "20%"
    assert "".join(lines[1:]) == "x" * 40000


@pytest.mark.bound(
    "agent",
    "A program, by its last words",
    "The termination message",
    "4,096 bytes",
)
def test_termination_message_keeps_within_the_kubelets_limit(workspace):
    assert workspace.python("for n in range(50): print(n, 'ä' * 2000)\nraise SystemExit(1)").ended() == 1
    message = workspace.termination  # Its size is checked there.
    assert message["lastLogLines"][-1].startswith("49 ä")
    assert len(message["lastLogLines"]) >= 10


def test_nothing_is_needed_without_artifacts(workspace):
    program = (
        "from dtj_trainer.artifacts import checkpoints\n"
        "for step in range(1, 7): checkpoints.save(step, lambda d: (d / 'w').write_text('x'))\n"
    )
    run = workspace.python(program)
    assert run.ended() == 0
    assert sorted(path.name for path in (workspace.root / "checkpoints").iterdir()) == ["4", "5", "6"]
    assert "no artifacts are kept" in run.output


TRAINING = """
import json, os, pathlib, sys, time
from dtj_trainer import progress
from dtj_trainer.artifacts import checkpoints

root = pathlib.Path(os.environ["DTJ_ROOT"])
newest = checkpoints.newest()
start = newest.step if newest else 0
print("starts from", start)
last = int(sys.argv[1]) if len(sys.argv) > 1 else 40
with (root / "metrics.jsonl").open("a") as metrics:
    for step in range(start + 1, last + 1):
        metrics.write(json.dumps({"step": step}) + "\\n")
        metrics.flush()
        if step % 10 == 0:
            checkpoints.save(step, lambda d: (d / "state").write_text(str(step)), metric=-abs(step - 10))
        progress.report(step=step, total_steps=last, loss=1 / step, final=True)
        if step == int(os.environ.get("FAIL_AT", "0")):
            print("fails"); sys.exit(3)
(root / "tensorboard").mkdir(exist_ok=True)
(root / "tensorboard" / "events.1").write_text("events")
(root / "model").mkdir(exist_ok=True)
(root / "model" / "model.pt").write_text("model of step %d" % last)
"""


def test_artifacts_of_a_whole_run(workspace, job_uri, job_store):
    (workspace.config / "job.yaml").write_text("kind: DistributedTrainingJob\n")
    run = workspace.python(TRAINING, DTJ_ARTIFACTS_URI=job_uri)
    assert run.ended() == 0, run.output
    assert "starts from 0" in run.output
    saved_files = (".dtj-checkpoint.json", "manifest.json", "state")
    assert keys(job_store) == [
        "attempt.json",
        *(f"checkpoints/{step}/{file}" for step in (10, 20, 30, 40) for file in saved_files),
        "job.yaml",
        "logs/attempt-1/chief-0.log",
        "metrics.jsonl",
        "model/manifest.json",
        "model/model.pt",
        "tensorboard/events.1",
    ]
    assert job_store.get_bytes("model/model.pt") == b"model of step 40"
    assert job_store.get_bytes("logs/attempt-1/chief-0.log") == b"starts from 0\n"
    message = workspace.termination
    assert message["progress"]["step"] == 40
    assert message["progress"]["percent"] == 100.0
    artifacts = message["artifacts"]
    assert artifacts["uri"] == job_uri
    assert artifacts["checkpoint"]["step"] == 40
    assert artifacts["checkpoint"]["uri"] == f"{job_uri}/checkpoints/40"
    assert artifacts["model"] == f"{job_uri}/model"
    assert artifacts["tensorboard"] == f"{job_uri}/tensorboard"
    assert "firstStep" in message["phases"]


def test_second_attempt_goes_on_from_the_checkpoint(make_workspace, job_uri, job_store):
    first = make_workspace("first", DTJ_ARTIFACTS_URI=job_uri, FAIL_AT="25")
    run = first.python(TRAINING)
    assert run.ended() == 3, run.output
    second = make_workspace("second", DTJ_ARTIFACTS_URI=job_uri, DTJ_ATTEMPT="2")
    run = second.python(TRAINING)
    assert run.ended() == 0, run.output
    assert "starts from 20" in run.output
    steps = [json.loads(line)["step"] for line in job_store.get_bytes("metrics.jsonl").splitlines()]
    assert steps == [*range(1, 26), *range(21, 41)]
    assert has(job_store, "logs/attempt-1/chief-0.log")
    assert has(job_store, "logs/attempt-2/chief-0.log")


def test_report_is_served(workspace, job_uri):
    port = free_ports(1)[0]
    program = TRAINING + "while not (root / 'go').exists(): time.sleep(0.05)\n"
    run = workspace.python(program, DTJ_ARTIFACTS_URI=job_uri, DTJ_PROGRESS_PORT=str(port))
    run.says("starts from")

    def report():
        try:
            return get_json(f"http://127.0.0.1:{port}/progress")
        except OSError:
            return {}

    until(lambda: report().get("progress", {}).get("step") == 40, "the last step is served")
    until(
        lambda: report().get("artifacts", {}).get("checkpoint", {}).get("step") == 40,
        "the newest checkpoint is served",
    )
    assert {"started", "restored", "programStarted", "firstStep"} <= set(report()["phases"])
    metrics = get_text(f"http://127.0.0.1:{port}/metrics")
    assert "# TYPE dtj_step gauge\ndtj_step 40.0\n" in metrics
    assert "dtj_checkpoint_step 40.0\n" in metrics
    (workspace.root / "go").touch()
    assert run.ended() == 0


@pytest.mark.parametrize(
    "before_death",
    ["", "import subprocess; subprocess.Popen(['sleep', '3'], start_new_session=True)\n"],
    ids=["alone", "a child holds the output open"],
)
def test_killed_in_the_middle_of_a_write(workspace, job_uri, job_store, before_death):
    """What was being written when the program was killed is no checkpoint, what stood before is."""
    program = (
        "import os, pathlib, signal, time\n"
        "folder = pathlib.Path(os.environ['DTJ_ROOT']) / 'checkpoints'\n"
        "(folder / 'ckpt-1.pt').write_text('whole')\n"
        "while not (folder.parent / 'go').exists(): time.sleep(0.05)\n"
        "half = (folder / 'ckpt-2.pt').open('w')\n"
        "half.write('ha')\n"
        "half.flush()\n"
        "(folder.parent / 'model' / 'model.pt').write_text('ha')\n"
        f"{before_death}"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run = workspace.python(program, DTJ_ARTIFACTS_URI=job_uri)
    until(lambda: has(job_store, "checkpoints/1/manifest.json"), "the settled checkpoint")
    (workspace.root / "go").touch()
    assert run.ended() == 137
    assert keys(job_store, "checkpoints") == ["checkpoints/1/ckpt-1.pt", "checkpoints/1/manifest.json"]
    assert keys(job_store, "model") == []
    assert workspace.termination["class"] in {"Signal", "OOMKilled"}


def test_a_pod_that_is_killed_as_a_whole_leaves_its_log(workspace, job_uri, job_store):
    """As the kernel does with all of a container's processes when one of them takes too much memory."""
    program = "echo takes more and more; sleep 300"
    run = workspace.launch("replica", "sh", "-c", program, DTJ_ARTIFACTS_URI=job_uri)
    name, log = "logs/attempt-1/chief-0.log", b"takes more and more\n"
    until(lambda: has(job_store, name) and job_store.get_bytes(name) == log, "the log is uploaded meanwhile")
    kill_with_descendants(run.process.pid)
    assert run.ended() == -signal.SIGKILL
    assert job_store.get_bytes(name) == log


@pytest.mark.parametrize(
    ("end", "code"),
    [
        pytest.param("exit 137", 137, id="child of a shell killed"),
        pytest.param("echo write: No space left on device; exit 1", 1, id="disk full"),
    ],
)
def test_failed_in_the_middle_of_a_write(workspace, job_uri, job_store, end, code):
    """The exit is its own, and the file is torn all the same."""
    script = (
        "cd $DTJ_ROOT/checkpoints; printf whole > ckpt-100.pt\n"
        "mkdir 150; printf whole > 150/w; printf '{\"step\": 150}' > 150/.dtj-checkpoint.json\n"
        "echo waits; while [ ! -e ../go ]; do sleep 0.05; done\n"
        f"printf ha > ckpt-200.pt; printf ha > ../model/model.pt; {end}\n"
    )
    run = workspace.launch(
        "replica", "sh", "-c", script, DTJ_ARTIFACTS_URI=job_uri, DTJ_CHECKPOINT_SETTLE_SECONDS="1"
    )
    checkpoints = job_store.below("checkpoints")
    until(
        lambda: any(
            "ckpt-100.pt" in manifest.paths for manifest in read_index(checkpoints).manifests.values()
        ),
        "the settled file",
    )
    (workspace.root / "go").touch()
    assert run.ended() == code
    assert has(job_store, "checkpoints/150/manifest.json")
    assert not any("ckpt-200" in key for key in keys(job_store, "checkpoints"))
    assert keys(job_store, "model") == []
    assert workspace.termination["class"] == ("DiskFull" if code == 1 else "ApplicationError")


@pytest.mark.parametrize("write", ["printf whole > ckpt-1.pt", "printf whole > .new; mv .new ckpt-1.pt"])
def test_what_a_program_closed_before_it_failed_counts(workspace, job_uri, job_store, write):
    script = f"cd $DTJ_ROOT/checkpoints; {write}; exit 3"
    run = workspace.launch(
        "replica", "sh", "-c", script, DTJ_ARTIFACTS_URI=job_uri, DTJ_CHECKPOINT_SETTLE_SECONDS="60"
    )
    assert run.ended() == 3
    assert job_store.get_bytes("checkpoints/1/ckpt-1.pt") == b"whole"
    assert has(job_store, "checkpoints/1/manifest.json")


def test_what_a_shell_runs_may_save_after_the_shell_has_died_of_sigterm(workspace):
    program = (
        "import signal, sys, time\n"
        "def save(*_):\n"
        "    time.sleep(1); print('saved', flush=True); sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save); print('ready', flush=True)\n"
        "time.sleep(300)"
    )
    run = workspace.launch(
        "replica", "bash", "-c", '"$@"; echo after', "train.sh", sys.executable, "-c", program
    )
    run.says("ready")
    run.terminate()

    assert run.ended() == 143

    assert "saved\n" in run.output
    assert "after" not in run.output
    assert (workspace.termination["class"], workspace.termination["signal"]) == ("Signal", 15)


def test_what_a_program_saved_at_sigterm_counts(workspace, job_uri, job_store):
    program = (
        "import os, pathlib, signal, sys, time\n"
        "folder = pathlib.Path(os.environ['DTJ_ROOT']) / 'checkpoints'\n"
        "def save(*_):\n"
        "    (folder / '.new').write_text('at SIGTERM')\n"
        "    (folder / '.new').rename(folder / 'ckpt-2.pt')\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('trains')\ntime.sleep(300)"
    )
    run = workspace.python(program, DTJ_ARTIFACTS_URI=job_uri, DTJ_CHECKPOINT_SETTLE_SECONDS="60")
    run.says("trains")
    run.terminate()
    assert run.ended() == 143
    assert job_store.get_bytes("checkpoints/1/ckpt-2.pt") == b"at SIGTERM"
    message = workspace.termination
    assert (message["class"], message["signal"]) == ("Signal", 15)
    assert message["message"] == "the program ended when it was told to stop (SIGTERM)"


def test_store_down_at_the_end(workspace, object_store, job_uri):
    program = TRAINING + "print('done'); \nwhile not (root / 'go').exists(): time.sleep(0.05)\n"
    run = workspace.python(program, DTJ_ARTIFACTS_URI=job_uri, DTJ_SYNC_TIMEOUT_SECONDS="3")
    run.says("done")
    object_store.kill()
    (workspace.root / "model" / "late.pt").write_text("late")
    run.says(
        "uploading files failed and is tried again"
    )  # On a busy machine 3 s may not suffice for one try.
    (workspace.root / "go").touch()
    assert run.ended() == 69
    message = workspace.termination
    assert message["class"] == "ArtifactsUnavailable"
    assert message["message"].startswith("not all artifacts could be uploaded within 3 s: S3 at http://")
    assert "can't be reached" in message["message"]


def test_store_down_at_the_start_is_waited_for_then_refused(workspace, object_store, job_uri):
    object_store.kill()
    run = workspace.launch("replica", "echo", "ran", DTJ_ARTIFACTS_URI=job_uri, DTJ_SYNC_TIMEOUT_SECONDS="2")
    assert run.ended() == 69
    assert "ran\n" not in run.output
    assert workspace.termination["class"] == "ArtifactsUnavailable"
    assert workspace.termination["message"].startswith("checkpoints could not be restored: S3 at http://")
    run = workspace.launch("replica", "echo", "ran", DTJ_ARTIFACTS_URI=job_uri, **PATIENT)
    run.says("restore waits")
    object_store.start()
    assert run.ended() == 0
    assert "ran\n" in run.output


@pytest.mark.parametrize(
    ("uri", "environment", "words"),
    [
        ("s3://no-such-bucket/x", {}, "the bucket no-such-bucket does not exist at http://"),
        ("s3://training/x", {"AWS_SECRET_ACCESS_KEY": "wrong"}, "wrong access key or secret"),
        ("s3://training/x", {"AWS_ACCESS_KEY_ID": "nobody"}, "wrong access key or secret"),
        ("gs://training/x", {}, "DTJ_ARTIFACTS_URI: 'gs://training/x' is not an S3 URI"),
    ],
)
def test_wrong_bucket_or_credentials_fail_at_once(workspace, object_store, uri, environment, words):
    run = workspace.launch("replica", "echo", "ran", DTJ_ARTIFACTS_URI=uri, **environment)
    assert run.ended(15) == 69
    assert words in workspace.termination["message"]
    assert "ran\n" not in run.output


def test_store_killed_in_the_middle_of_training(workspace, object_store, job_uri, job_store):
    """Training goes on, and once S3 is back nothing is missing."""
    program = (
        TRAINING.replace(
            "        progress.report",
            "        while step == 20 and not (root / 'go').exists(): time.sleep(0.05)\n        progress.report",
        )
        + "print('trained')\nwhile not (root / 'end').exists(): time.sleep(0.05)\n"
    )
    run = workspace.python(program, DTJ_ARTIFACTS_URI=job_uri)
    until(lambda: has(job_store, "checkpoints/20/manifest.json"), "the checkpoint before the outage")
    object_store.kill()
    (workspace.root / "go").touch()
    run.says("trained")
    run.says("failed and is tried again")
    (workspace.root / "end").touch()
    object_store.start()
    assert run.ended() == 0, run.output
    assert "works again" in run.output
    steps = {key.split("/")[1] for key in keys(job_store, "checkpoints") if key.endswith("manifest.json")}
    assert steps == {"10", "20", "30", "40"}  # The newest three and the best.
    lines = job_store.get_bytes("metrics.jsonl").splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 41))
    assert has(job_store, "model/model.pt")
    assert has(job_store, "tensorboard/events.1")


def test_user_program_with_files_of_its_own(make_workspace, job_uri, job_store):
    """A program that knows nothing of dtj writes checkpoints in its own way and finds them again."""
    program = (
        "import os, pathlib, sys\n"
        "folder = pathlib.Path(os.environ['DTJ_ROOT']) / 'checkpoints'\n"
        "print('found', sorted(str(p.relative_to(folder)) for p in folder.rglob('*')))\n"
        "(folder / 'checkpoint-7').mkdir(exist_ok=True)\n"
        "(folder / 'checkpoint-7' / 'weights').write_text('w')\n"
        "(folder / 'latest.pt').write_text('l')\n"
    )
    first = make_workspace("first", DTJ_ARTIFACTS_URI=job_uri)
    assert first.python(program).ended() == 0
    second = make_workspace("second", DTJ_ARTIFACTS_URI=job_uri, DTJ_ATTEMPT="2")
    run = second.python(program)
    assert run.ended() == 0
    assert "found ['checkpoint-7', 'checkpoint-7/weights', 'latest.pt']" in run.output


@pytest.mark.parametrize(("folder", "code"), [("tensorboard", 0), ("model", 69)])
def test_a_file_that_the_bucket_refuses_is_told_and_only_one_of_the_model_fails_the_job(
    workspace, job_uri, job_store, folder, code
):
    program = (
        "import os\n"
        "root = os.fsencode(os.environ['DTJ_ROOT'])\n"
        "deep = b'/'.join([b'x' * 250] * 5)\n"
        f"for name in (b'checkpoints/step-1', b'model/good', b'tensorboard/notes', b'{folder}/' + deep):\n"
        "    os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)\n"
        "    open(os.path.join(root, name), 'w').write('content')\n"
    )
    run = workspace.python(program, DTJ_ARTIFACTS_URI=job_uri)
    assert run.ended() == code, run.output
    assert has(job_store, "model/good")
    assert any(key.endswith("/step-1") for key in keys(job_store, "checkpoints"))
    told = "answered 400 KeyTooLongError"
    message = workspace.termination
    assert told in (message["message"] if code else message["artifacts"]["notUploaded"])
    assert re.search(rf"{folder}/x+\S+' is not uploaded: .*{told}", run.output)


def test_bad_settings_and_usage(workspace):
    run = workspace.launch("replica", "true", DTJ_ATTEMPT="one")
    assert run.ended() == 78
    assert "DTJ_ATTEMPT must be a whole number of at least 0, not 'one'" in run.output
    run = workspace.launch("chief", "true")
    assert run.ended() == 78
    assert "usage: dtj-launch" in run.output
    run = workspace.launch("replica", "true", DTJ_POD="")
    assert run.ended() == 78
    assert "dtj-launch: DTJ_POD is not set: " in run.output
    run = workspace.launch("replica", "true", DTJ_POD='{"role": "chief"}')
    assert run.ended() == 78
    assert "dtj-launch: DTJ_POD can't be read: index is missing" in run.output
    run = workspace.launch("replica")
    assert run.ended() == 78
    assert "usage: dtj-launch" in run.output


def test_python_is_not_buffered(workspace):
    run = workspace.python("import time; print('now'); time.sleep(300)")
    run.says("now\n")
    run.terminate()
    assert run.ended() == 143

"""The commands on job files: `dtj validate`, `dtj plan` and `dtj crd`.

* `dtj validate`: faults with lines, exit codes, JSON
* `dtj plan`: objects, later attempts, summaries of Horovod and ParameterServer jobs
* `dtj crd`
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dtj.api.crd import custom_resource_definition
from dtj.api.job import InvalidJob, read_job
from dtj.api.validation import faults
from dtj.cli import main as cli
from dtj.cli import plan_summary
from dtj.cli.terminal import VisibleConsole
from tests.unit.support.bad_jobs import BadJob, bad_jobs
from tests.unit.support.jobs import manifest
from tests.unit.support.structural import with_defaults

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "manifests/examples/fashion-mnist-horovod.yaml"
PS_EXAMPLE = ROOT / "manifests/examples/fashion-mnist-ps.yaml"
SCHEMA = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
Dtj = Callable[..., tuple[int, str, str]]


@pytest.fixture
def dtj(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Dtj:
    """The command as its console script runs it: exit code, standard output and standard error."""

    def call(*words: str | Path, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dtj", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def named(bad: BadJob) -> str:
    return bad.file.stem


def operators_faults(bad: BadJob) -> set[str]:
    """What the operator says of a job, as the API server stores it."""
    try:
        return {str(fault) for fault in faults(read_job(with_defaults(SCHEMA, bad.manifest)))}
    except InvalidJob as error:
        return {str(fault) for fault in error.faults}


@pytest.mark.parametrize("bad", bad_jobs("status"), ids=named)
def test_of_what_the_operator_refuses_the_same_is_said_with_its_line(bad: BadJob, dtj: Dtj) -> None:
    code, out, err = dtj("validate", bad.file)

    said = [re.fullmatch(rf"{re.escape(str(bad.file))}:(\d+): (.+)", line) for line in err.splitlines()]
    messages = [match[2] for match in said if match]
    assert (code, out) == (1, "")
    assert len(messages) == len(said)
    assert sorted(messages) == sorted(message for (message,) in bad.messages)
    assert set(messages) == operators_faults(bad)


@pytest.mark.parametrize("bad", bad_jobs("kubectl"), ids=named)
def test_of_what_the_schema_refuses_it_is_said_what_the_operator_would_say(bad: BadJob, dtj: Dtj) -> None:
    """The API server words it its own way; with no schema before it the operator says the same as `dtj validate`."""
    code, out, err = dtj("validate", bad.file)

    assert (code, out) == (1, "")
    messages = [line.removeprefix(f"{bad.file}:").split(": ", 1)[1] for line in err.splitlines()]
    assert set(messages) == operators_faults(bad)
    assert len(messages) == len(bad.messages)


@pytest.mark.parametrize("bad", bad_jobs("server", "pending", "run"), ids=named)
def test_what_only_a_cluster_finds_is_valid(bad: BadJob, dtj: Dtj) -> None:
    code, out, err = dtj("validate", bad.file)

    assert (code, err) == (0, "")
    assert out.startswith(f"{bad.file}: {bad.manifest['metadata']['name']} is valid: ")


def test_a_file_without_a_job_is_told_with_the_remedy(dtj: Dtj) -> None:
    code, out, err = dtj(
        "validate", "-", stdin="kind: MPIJob\napiVersion: kubeflow.org/v1\nmetadata: {name: x}\n"
    )

    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "-: no DistributedTrainingJob in it, only MPIJob x",
        "     `dtj new` writes a new job file, `dtj convert` writes a job file from a Kubeflow job",
    ]


def test_a_valid_file_with_a_folder_of_the_node_says_what_its_cluster_has_to_allow(
    tmp_path: Path, dtj: Dtj
) -> None:
    cache = {"size": "10Gi", "hostPath": {"path": "/var/cache/dtj"}}
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(manifest(data={"uri": "s3://datasets/fruits", "cache": cache})))
    for command in ("validate", "plan"):
        code, out, err = dtj(command, str(file))
        assert code == 0
        assert "its dataCache.hostPathPrefixes allow /var/cache/dtj; Pod Security levels" in out + err


def test_a_valid_file_is_said_to_be_valid(dtj: Dtj) -> None:
    assert dtj("validate", EXAMPLE) == (0, f"{EXAMPLE}: fashion-mnist is valid: Horovod with 3 pods\n", "")


def test_all_files_are_checked_and_the_worst_decides_the_exit_code(tmp_path: Path, dtj: Dtj) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(EXAMPLE.read_text().replace("name: fashion-mnist", "name: Fashion"))

    code, out, err = dtj("validate", wrong, EXAMPLE)
    assert (code, out.count("is valid"), err.count("\n")) == (1, 1, 1)
    code, out, err = dtj("validate", tmp_path / "none.yaml", wrong, EXAMPLE)
    assert (code, out.count("is valid"), err.count("\n")) == (2, 1, 2)
    assert err.splitlines()[0] == f"{tmp_path / 'none.yaml'}: No such file or directory"


def test_a_secret_beside_the_job_is_passed_over(dtj: Dtj) -> None:
    text = f"kind: Secret\nmetadata: {{name: s3}}\n---\n{EXAMPLE.read_text()}"

    code, out, err = dtj("validate", "-", stdin=text)

    assert (code, out) == (0, "-: fashion-mnist is valid: Horovod with 3 pods\n")
    assert err == "-:1: Secret s3 is not a job, and is not checked\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a: [", "invalid YAML: while parsing"),
        (b"", "the file is empty"),
        (b"- a", "only a list"),
        (b"\xff\xfe", "not text in UTF-8"),
    ],
)
@pytest.mark.parametrize("command", ["validate", "plan"])
def test_a_file_that_is_no_job_ends_with_2(
    command: str, text: bytes, message: str, tmp_path: Path, dtj: Dtj
) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(text)

    code, out, err = dtj(command, file)

    assert (code, out) == (2, "")
    assert message in err


def test_a_program_reads_the_faults_as_json(tmp_path: Path, dtj: Dtj) -> None:
    code, out, err = dtj(
        "validate", bad_jobs("status")[0].file, EXAMPLE, tmp_path / "none.yaml", "-o", "json"
    )

    wrong, good, missing = json.loads(out)
    assert (code, err) == (2, "")
    assert [job["valid"] for report in (wrong, good) for job in report["jobs"]] == [False, True]
    assert wrong["jobs"][0]["faults"][0].keys() == {"line", "field", "message"}
    assert "No such file" in missing["error"]


def test_the_plan_is_what_the_operator_would_make(dtj: Dtj) -> None:
    code, out, _ = dtj("plan", EXAMPLE, "-o", "yaml")

    assert code == 0
    assert [(o["kind"], o["metadata"]["name"]) for o in yaml.safe_load_all(out)] == [
        ("Service", "fashion-mnist"),
        ("ConfigMap", "fashion-mnist-config"),
        ("Pod", "fashion-mnist-worker-0"),
        ("Pod", "fashion-mnist-worker-1"),
        ("Pod", "fashion-mnist-launcher-0"),
    ]
    assert json.loads(dtj("plan", EXAMPLE, "-o", "json")[1]) == list(yaml.safe_load_all(out))


@pytest.mark.parametrize("example", [EXAMPLE, PS_EXAMPLE])
def test_the_plan_of_a_later_attempt_says_so_in_every_pod(example: Path, dtj: Dtj) -> None:
    _, out, _ = dtj("plan", example, "-o", "json", "--attempt", "3")

    pods = [made for made in json.loads(out) if made["kind"] == "Pod"]
    assert {pod["metadata"]["labels"]["dtj.dev/attempt"] for pod in pods} == {"3"}


def test_the_summary_of_a_plan_tells_pods_hosts_environment_and_what_restarts(dtj: Dtj) -> None:
    text = EXAMPLE.read_text().replace("replicas: 2", "replicas: 2\n      gpus: 2")

    code, out, _ = dtj("plan", "-", stdin=text)

    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert code == 0
    assert lines[0] == "fashion-mnist: Horovod, 3 pods in namespace default"
    for line in (
        "1 fashion-mnist-worker-1 worker 1 dtj-trainer-horovod:0.1.0 2 -",
        "2 fashion-mnist-launcher-0 launcher 0 dtj-trainer-horovod:0.1.0 - "
        "requests: cpu 100m, memory 128Mi; limits: memory 1Gi",
        "fashion-mnist-worker-1.fashion-mnist.default.svc slots=2",
        "DTJ_WORLD_SIZE 4",
        "Secret s3-credentials all of its keys",
        "DTJ_ROLE launcher-0 launcher",
        "s3://training/jobs/default/fashion-mnist-<uid>/",
        "when a pod is lost: all pods start again",
        "from the newest complete checkpoint",
    ):
        assert line in lines


def test_the_plan_has_the_jobs_tensorboard(dtj: Dtj) -> None:
    text = f"{EXAMPLE.read_text()}  tensorboard: {{enabled: true}}\n"

    made = yaml.safe_load_all(dtj("plan", "-", "-o", "yaml", stdin=text)[1])
    assert [(o["kind"], o["metadata"]["name"]) for o in made][-2:] == [
        ("Service", "fashion-mnist-tensorboard"),
        ("Deployment", "fashion-mnist-tensorboard"),
    ]
    summary = dtj("plan", "-", stdin=text)[1]
    assert "  TensorBoard: Service fashion-mnist-tensorboard, port 6006\n" in summary


def test_the_summary_tells_what_the_run_policy_will_do(dtj: Dtj) -> None:
    policy = "{startDeadlineSeconds: 600, ttlSecondsAfterFinished: 0, managedBy: example.com/queue}"

    code, out, _ = dtj("plan", "-", stdin=f"{EXAMPLE.read_text()}  runPolicy: {policy}\n")

    assert code == 0
    for line in (
        "managed by example.com/queue (runPolicy.managedBy): dtj's operator creates none of these objects",
        "the job fails if not all pods run within 600 s after a start",
        "the job is deleted 0 s after its end; its artifacts in the bucket stay",
    ):
        assert f"  {line}\n" in out


def test_the_summary_of_parameter_servers_has_their_tf_config(dtj: Dtj) -> None:
    lines = [" ".join(line.split()) for line in dtj("plan", PS_EXAMPLE)[1].splitlines()]

    for line in (
        "TF_CONFIG of fashion-mnist-ps-worker-0; the other pods have their own task",
        "ps fashion-mnist-ps-ps-0.fashion-mnist-ps.default.svc:2222",
        'task {"type": "worker", "index": 0}',
        "when a pod of worker is lost: it alone starts again",
        "when a pod of ps is lost: all chief and ps pods start again",
    ):
        assert line in lines


def test_the_summary_tells_worker_0_from_the_others_where_worker_0_leads(dtj: Dtj) -> None:
    text = PS_EXAMPLE.read_text().replace("  replicaSpecs:\n", "  replicaSpecs:\n    chief: {replicas: 0}\n")
    lines = [" ".join(line.split()) for line in dtj("plan", "-", stdin=text)[1].splitlines()]

    for line in (
        "The job succeeds when fashion-mnist-ps-worker-0 succeeds; fashion-mnist-ps-worker-0 reports the progress.",
        "when pod fashion-mnist-ps-worker-0 is lost: fashion-mnist-ps-worker-0 and all ps pods start again",
        "when another pod of worker is lost: it alone starts again",
    ):
        assert any(line in shown for shown in lines), line


def test_a_large_job_has_a_short_summary(dtj: Dtj) -> None:
    text = EXAMPLE.read_text().replace("replicas: 2", "replicas: 500")

    code, out, _ = dtj("plan", "-", stdin=text)

    assert code == 0
    assert "fashion-mnist-worker-499" in out
    assert len(out.splitlines()) < 80


def test_a_faulty_file_has_no_plan_but_every_fault(dtj: Dtj) -> None:
    text = (
        EXAMPLE.read_text()
        .replace("name: fashion-mnist", "name: Fashion")
        .replace("dtj-trainer-horovod:0.1.0", "Trainer")
    )

    code, out, err = dtj("plan", "-", stdin=text)

    assert (code, out) == (1, "")
    assert [line.split(": ")[0] for line in err.splitlines()] == ["dtj", "-:6", "-:9"]


def test_crd_prints_the_committed_file(dtj: Dtj) -> None:
    assert dtj("crd") == (0, (ROOT / "manifests/crd/distributedtrainingjobs.yaml").read_text(), "")


def columns_of(lines: list[str]) -> list[list[str]]:
    """The cells of a table's rows, whose folded parts are put together again."""
    begins = [found.start() for found in re.finditer(r"(?<=  )\S|^ *\S", lines[0])]
    begins[0] = 0
    rows: list[list[str]] = []
    for line in lines:
        cells = [line[a:b].strip() for a, b in zip(begins, [*begins[1:], None], strict=True)]
        if line.startswith("  ") and cells[0]:
            rows.append(cells)
        else:
            rows[-1] = [before + after for before, after in zip(rows[-1], cells, strict=True)]
    return [["".join(cell.split()) for cell in row] for row in rows]


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("example", [EXAMPLE, PS_EXAMPLE], ids=["horovod", "ps"])
def test_a_plan_loses_nothing_on_a_narrow_terminal(
    width: int, example: Path, dtj: Dtj, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped = dtj("plan", example)[1]
    narrow = VisibleConsole(width=width)
    narrow._force_terminal = True
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(plan_summary, "output", narrow)
    shown = dtj("plan", example)[1]

    def table(text: str, title: str) -> list[str]:
        return text.partition(f"\n{title}\n")[2].partition("\n\n")[0].splitlines()

    for title in ("Environment of every replica", "Environment that differs"):
        assert max(map(len, table(shown, title))) <= width
        assert columns_of(table(shown, title)) == columns_of(table(piped, title))
    pods = [line for line in table(shown, "Pods") if not re.match(r"  (Pods of|The job)", line)]
    whole = [line for line in table(piped, "Pods") if not re.match(r"  (Pods of|The job)", line)]
    assert max(map(len, pods)) <= width
    assert columns_of(pods) == columns_of(whole)
    assert columns_of(pods)[0] == ["stage", "pod", "role", "index", "image", "gpus", "otherresources"]

"""The commands that read the history of a bucket: `dtj … --past`, and prefixes of jobs.

* tables, formats, filters and orders of `dtj list --past`
* how the history is found, and errors that name what is missing
* the cluster as the truth, and a cluster that can't be asked
* status, logs, events, artifacts and report of a job by its name
* the examples of docs/past-jobs.md
"""

from __future__ import annotations

import json
import re
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from tests.trainer.conftest import REPOSITORY, ObjectStore
from tests.unit.support.fake_client import FakeClient
from tests.unit.support.jobs import manifest, stored
from tests.unit.support.past_jobs import NEWEST, end, entry, put, text
from tests.unit.support.training_runs import content, line
from typer.testing import CliRunner, Result

import dtj.client
from dtj.api.errors import DtjError, NotFound, Unreachable, Unusable
from dtj.cli.main import app
from dtj.client import Artifacts, DistributedTrainingJob
from dtj.cluster.interface import ApiError
from dtj_trainer.artifacts.store import Store, open_store

OLD, FAILED, LOST, OTHER = (
    entry(30, "mnist"),
    entry(2, "mnist"),
    entry(1, "lost"),
    entry(0, "resnet", namespace="vision"),
)


class PastClient(FakeClient):
    """A cluster whose jobs have namespaces and uids, or that does not answer."""

    away: DtjError | None = None
    refused_all: int | None = None
    """The status with which the cluster refuses to list the jobs of all namespaces."""

    def __init__(self, *, namespace: str | None = None, context: str | None = None) -> None:
        super().__init__(namespace=namespace, context=context)
        if self.away:
            raise self.away

    def list(self, *, all_namespaces: bool = False) -> list[DistributedTrainingJob]:
        self.calls.append(("list", all_namespaces))
        if all_namespaces and self.refused_all is not None:
            raise Unreachable("the cluster does not do this") from ApiError(self.refused_all, "R", "no")
        return [job for job in self.jobs.values() if all_namespaces or job.namespace == self.namespace]

    def artifacts(self, job: DistributedTrainingJob, *, endpoint: str | None = None) -> Artifacts:
        assert job.artifacts_uri
        return Artifacts(job.artifacts_uri, dtj.client.store_environment.user_environment(endpoint))


@pytest.fixture(autouse=True)
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[PastClient]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("DTJ_HOME", str(tmp_path / "runs"))
    monkeypatch.delenv("DTJ_ARTIFACTS", raising=False)
    monkeypatch.setattr(dtj.client, "Client", PastClient)
    PastClient.jobs, PastClient.calls, PastClient.away, PastClient.refused_all = {}, [], None, None
    return PastClient


@pytest.fixture
def uri(job_store: Store) -> str:
    """A history: two jobs of one name, one without a recorded end, and one in another namespace."""
    put(job_store, OLD, end(OLD))
    put(job_store, FAILED, end(FAILED, "Failed", restarts=2))
    put(job_store, LOST, None)
    put(job_store, OTHER, end(OTHER))
    for job in (OLD, FAILED):
        job_store.put_bytes(f"{job.prefix}/job.yaml", yaml.safe_dump(manifest("mnist")).encode())
        log = f"[rank 0] of {job.uid[:8]}\n".encode()
        job_store.put_bytes(f"{job.prefix}/logs/attempt-1/launcher-0.log", log)
        job_store.put_bytes(f"{job.prefix}/metrics.jsonl", content([line("train", 0, 1), line("end", 9, 2)]))
    return job_store.location.uri


def call(*words: str) -> Result:
    result = CliRunner().invoke(app, [*words])
    if isinstance(result.exception, DtjError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def rows(output: str) -> list[list[str]]:
    return [re.split(r" {2,}", row.strip()) for row in output.splitlines()[1:]]


def test_the_list_has_the_columns_of_jobs_and_the_end(uri: str) -> None:
    listed = call("list", "--past", "--from", uri)
    assert listed.stdout.splitlines()[0].split() == [
        *("NAMESPACE", "NAME", "STATE", "PROGRESS", "EX/S", "GPUS", "AGE", "ENDED")
    ]
    first, second, third, fourth = rows(listed.stdout)
    assert [first[1], second[1], third[1], fourth[1]] == ["resnet", "lost", "mnist", "mnist"]
    assert first[:6] == ["vision", "resnet", "Succeeded", "100.0%", "1,234", "-"]
    assert first[7] == text(OTHER.created + timedelta(minutes=1))
    assert second[2] == "No end recorded"
    assert second[-1] == "no sign"
    assert third[2] == "Failed"
    assert "Running" not in listed.stdout


def test_the_list_is_filtered_sorted_and_cut(uri: str) -> None:
    def listed(*words: str) -> list[str]:
        found = json.loads(call("list", "--past", "--from", uri, "-o", "json", *words).stdout)
        return [f"{job['metadata']['namespace']}/{job['metadata']['uid'][:8]}" for job in found]

    old, failed, lost, other = (f"{job.namespace}/{job.uid[:8]}" for job in (OLD, FAILED, LOST, OTHER))
    assert listed() == [other, lost, failed, old]
    assert listed("-n", "vision") == [other]
    assert listed("--phase", "Failed", "--phase", "Running") == [failed]
    assert listed("--sort-by", "duration") == [failed, other, old, lost]
    assert listed("--sort-by", "name") == [lost, failed, old, other]
    assert listed("--limit", "1") == [other]
    hours = (datetime.now(UTC) - NEWEST) // timedelta(hours=1)
    assert listed("--since", f"{hours + 5}h") == [other, lost, failed]
    cut = call("list", "--past", "--from", uri, "--limit", "2")
    assert cut.stderr == f"there are more than 2 jobs in {uri}; --limit 0 lists all\n"
    assert len(listed("--limit", "0")) == 4


def test_the_list_has_formats_for_programs(uri: str) -> None:
    wide = call("list", "--past", "--from", uri, "-o", "wide", "--phase", "Failed").stdout
    assert wide.split()[14:19] == ["TOOK", "NODES", "UID", "URI", "REASON"]
    assert rows(wide)[0][14:18] == [*("3m", "node-0,node-1,node-2", FAILED.uid, f"{uri}/{FAILED.prefix}")]
    (job,) = yaml.safe_load(call("list", "--past", "--from", uri, "-o", "yaml", "--phase", "Failed").stdout)
    assert job["status"]["failure"]["lastLogLines"][-1] == "ValueError: loss is nan"
    assert job["record"]["by"] == "record"
    assert job["record"]["pods"][1] == {"name": "mnist-worker-0", "node": "node-1"}
    named = call("list", "--past", "--from", uri, "-o", "name").stdout.split()
    assert named[0] == f"{uri}/{OTHER.prefix}"
    assert "resnet in vision: Succeeded" in call("status", named[0]).stdout


def test_the_history_is_found_by_option_variable_and_present_jobs(
    uri: str, cluster: type[PastClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = r"neither --from nor DTJ_ARTIFACTS is set, and no job in namespace ml has an artifacts\.uri"
    with pytest.raises(Unusable, match=missing):
        call("list", "--past")
    there = stored("new", artifacts={"uri": f"{uri}/"})
    cluster.jobs = {"new": DistributedTrainingJob.from_cluster(there)}
    cluster.refused_all = 403
    assert len(rows(call("list", "--past").stdout)) == 4
    there = stored("newer", artifacts={"uri": "s3://training/elsewhere", "endpoint": "http://s3:1"})
    cluster.jobs["newer"] = DistributedTrainingJob.from_cluster(there)
    with pytest.raises(Unusable, match=r"several artifacts\.uri: .*s3://training/elsewhere at http://s3:1"):
        call("list", "--past")
    monkeypatch.setenv("DTJ_ARTIFACTS", uri)
    assert len(rows(call("list", "--past").stdout)) == 4
    empty = call("list", "--past", "--from", f"{uri}/empty")
    assert (empty.stdout, empty.stderr) == (
        "",
        f"the history in {uri}/empty has no job that fits the options\n",
    )
    cluster.away = Unreachable("the cluster at http://x does not answer: refused")
    monkeypatch.delenv("DTJ_ARTIFACTS")
    with pytest.raises(
        Unusable, match="and the jobs of the cluster can't be listed: the cluster at http://x"
    ):
        call("list", "--past")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["list", "--from", "s3://b/jobs"], "--from needs --past"),
        (["list", "--since", "7d"], "--since needs --past"),
        (["list", "--endpoint", "http://s3:1"], "--endpoint needs --past"),
        (["list", "--past", "-A"], "--past and --all-namespaces exclude"),
        (["list", "--past", "--from", "jobs"], "is not an S3 URI"),
        (["status", "mnist", "--uid", "1"], "--uid is only for past jobs in the history"),
        (["logs", "mnist", "--past", "--local"], "--past and --local exclude"),
    ],
)
def test_options_that_contradict_each_other_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(Unusable, match=message):
        call(*words)


def test_an_object_of_the_same_uid_is_the_truth(uri: str, cluster: type[PastClient]) -> None:
    there = stored("mnist", artifacts={"uri": "s3://training/jobs"}) | {"status": {"phase": "Running"}}
    there["metadata"] |= {"uid": FAILED.uid, "creationTimestamp": text(FAILED.created)}
    cluster.jobs = {"mnist": DistributedTrainingJob.from_cluster(there)}
    states = {row[1]: row[2] for row in rows(call("list", "--past", "--from", uri, "-n", "ml").stdout)[:2]}
    assert states == {"lost": "No end recorded", "mnist": "Running"}
    for name in (["mnist", "--past", "--from", uri], [f"{uri}/{FAILED.prefix}"]):
        shown = call("status", *name)
        assert "mnist in ml: Running" in shown.stdout
        assert "read from the bucket" not in shown.stdout
    old = call("status", f"{uri}/{OLD.prefix}")
    assert "mnist in ml: Succeeded" in old.stdout, "the object is of another uid"


def test_a_cluster_that_can_not_be_asked_costs_one_line(uri: str, cluster: type[PastClient]) -> None:
    cluster.away = Unreachable("the cluster at http://x does not answer: refused")
    told = (
        "only the bucket was read, because the cluster can't be asked: "
        "the cluster at http://x does not answer"
    )
    for words in (["list", "--past"], ["status", "resnet", "--past"]):
        result = call(*words, "--from", uri)
        assert result.stderr == f"{told}: refused\n"
        assert "Succeeded" in result.stdout
    cluster.away, cluster.refused_all, cluster.calls = None, 0, []
    call("list", "--past", "--from", uri)
    assert [each for each in cluster.calls if each[0] == "list"] == [("list", True)], "no second wait"
    cluster.away = Unreachable("the cluster at http://x does not answer: refused")
    by_uri = call("status", f"{uri}/{OTHER.prefix}")
    assert by_uri.stderr == f"{told}: refused\n"


def test_the_newest_job_of_a_name_is_meant_and_the_uid_chooses(uri: str) -> None:
    shown = call("status", "mnist", "--past", "--from", uri)
    assert shown.stderr == (
        f"2 jobs are called mnist: this is the newest, ml/mnist with uid {FAILED.uid}, created "
        f"{text(FAILED.created)}; --uid chooses another one\n"
    )
    other = call("status", "mnist", "--past", "--from", uri, "--uid", OLD.uid[:8])
    assert other.stderr == ""
    assert "mnist in ml: Succeeded" in other.stdout
    with pytest.raises(NotFound, match="has no job mnist in namespace vision with a uid that begins with 9"):
        call("status", "mnist", "--past", "--from", uri, "-n", "vision", "--uid", "9")


def test_the_status_is_that_of_the_record(uri: str) -> None:
    shown = " ".join(call("status", "mnist", "--past", "--from", uri).stdout.split())
    for part in (
        "mnist in ml: Failed, Horovod, attempt 3",
        "read from the bucket: the job's end was recorded by the pod record at",
        "worker-1 1 node-2 Failed (exit code 1)",
        "worker-0 0 node-1 Ended",
        "Restarts 2 application",
        "Took 3m",
        "Failure of attempt 3: ApplicationError: rank 1 in worker-1 on node-1: ValueError: loss is nan",
        "Traceback (most recent call last):",
    ):
        assert part in shown
    data = json.loads(call("status", "mnist", "--past", "--from", uri, "-o", "json").stdout)
    assert data["metadata"]["uid"] == FAILED.uid
    assert data["spec"]["image"] == "trainer:1"
    assert data["status"]["restarts"] == {"application": 2, "infrastructure": 0}
    lost = call("status", "lost", "--past", "--from", uri).stdout
    assert "read from the bucket: no end recorded, and no sign of the training" in lost
    assert "Running" not in lost


def test_logs_events_artifacts_and_report_take_a_name_of_the_past(uri: str, tmp_path: Path) -> None:
    past = ["--past", "--from", uri, "--uid", OLD.uid[:8]]
    assert call("logs", "mnist", *past).stdout == f"[rank 0] of {OLD.uid[:8]}\n"
    (event,) = json.loads(call("events", "mnist", *past, "-o", "json").stdout)
    assert (event["reason"], event["type"]) == ("JobSucceeded", "Normal")
    keys = json.loads(call("artifacts", "ls", "mnist", *past, "-o", "json").stdout)
    assert "end.json" in [item["key"] for item in keys]
    copied = call("artifacts", "get", "mnist", "job.yaml", str(tmp_path / "to"), *past)
    assert copied.stdout == f"{tmp_path / 'to/job.yaml'}\n"
    assert "mnist" in call("report", "mnist", *past).stdout
    away = ["--endpoint", "http://127.0.0.1:9"]
    for words in (["artifacts", "ls", "mnist", *past], ["list", "--past", "--from", uri]):
        with pytest.raises(Unreachable, match="can't be reached"):
            call(*words, *away)
    both = call("report", *(f"{uri}/{job.prefix}" for job in (OLD, FAILED))).stdout
    assert OLD.prefix.rpartition("/")[2] in both
    assert FAILED.prefix.rpartition("/")[2] in both


DOCS = REPOSITORY / "docs/past-jobs.md"


def examples() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", DOCS.read_text(), re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ dtj ")]


def test_the_examples_of_the_page_run(
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store("s3://training/past-jobs-page")
    old = entry(1, "fashion-mnist", namespace="ml", uid="1a2b3c4d-1")
    newest = entry(0, "fashion-mnist", namespace="ml", uid="5e6f7a8b-1")
    for job in (old, newest):
        put(store, job, end(job, "Failed"))
        files = {
            "job.yaml": yaml.safe_dump(manifest("fashion-mnist")).encode(),
            "model/model.pt": b"weights",
            "logs/attempt-1/launcher-0.log": b"[rank 0] step 1\n[rank 1] step 1\n",
            "logs/attempt-1/rank-1.log": b"step 1\n",
            "metrics.jsonl": content([line("train", 0, 1), line("end", 9, 2)]),
        }
        for key, text_ in files.items():
            store.put_bytes(f"{job.prefix}/{key}", text_)
    monkeypatch.chdir(tmp_path)
    assert len(examples()) >= 8
    for example in examples():
        words = shlex.split(
            example.partition(" | ")[0].replace("s3://training/jobs", "s3://training/past-jobs-page")
        )
        monkeypatch.setenv("DTJ_ARTIFACTS", "s3://training/past-jobs-page")
        assert call(*words[1:]).stdout, example


def test_the_program_of_the_page_runs(job_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    store = open_store(job_uri)
    put(store, entry(), end(entry(), "Failed"))
    exec(compile(program.replace("s3://training/jobs", job_uri), "past-jobs.md", "exec"), {})
    assert "loss is nan" in capsys.readouterr().out
